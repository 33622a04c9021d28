// Questions of an agent with structure: read from the message of a waiting task, and the answers to them.
// docs/agents.md describes both forms.
import type { Message, Part } from "./a2a";
import { isObject, record, text } from "./json";
import { startValue, validate, type Schema } from "./schema";

export const PART_TYPE = "apcore.type"; // in the metadata of a data part that repeats what the text says
const MAX_QUESTIONS = 64;

export interface Question {
  id: string;
  text: string;
  isApproval: boolean;
  tool: string;
  args: unknown; // undefined if the agent did not send them
  isEditable: boolean;
  schema: Schema | null;
  isOptional: boolean;
}

/** An answer that the user is writing. */
export interface Answer {
  value: unknown;
  decision: boolean | null; // of an approval
  reason: string;
  args: unknown; // changed arguments of an approval
}

export const isRepeated = (part: Part): boolean => part.metadata !== undefined && PART_TYPE in part.metadata;

/** The questions of a message, or none if it asks in words only. */
export function questionsOf(message: Message | undefined): Question[] {
  if (!message) return [];
  for (const part of message.parts) {
    if (!isRepeated(part) || !isObject(part.data) || !Array.isArray(part.data["questions"])) continue;
    const found = new Map<string, Question>();
    for (const each of part.data["questions"].slice(0, MAX_QUESTIONS)) {
      const question = readQuestion(each);
      if (question && !found.has(question.id)) found.set(question.id, question);
    }
    return [...found.values()];
  }
  const metadata = record(message.metadata);
  const id = text(metadata["approvalId"]);
  if (!id) return [];
  const said = message.parts.map((part) => part.text ?? "").join("");
  return [{ id, text: said, isApproval: true, tool: text(metadata["skillId"]), args: undefined, isEditable: false, schema: null, isOptional: false }];
}

function readQuestion(value: unknown): Question | null {
  const entry = record(value);
  if (typeof entry["id"] !== "string") return null;
  return {
    id: entry["id"],
    text: text(entry["text"]),
    isApproval: entry["kind"] === "approval",
    tool: text(entry["tool"]),
    args: entry["arguments"],
    isEditable: entry["editable"] === true,
    schema: isObject(entry["schema"]) ? (entry["schema"] as Schema) : null,
    isOptional: entry["optional"] === true,
  };
}

export function emptyAnswer(question: Question): Answer {
  const value = question.schema && !question.isApproval ? startValue(question.schema, question.schema) : "";
  return { value, decision: null, reason: "", args: question.args };
}

/** What is missing or wrong in an answer, by the path in it. */
export function complaintsOf(question: Question, answer: Answer): Map<string, string> {
  if (question.isApproval) return answer.decision === null ? new Map([["", "approve or reject"]]) : new Map();
  if (isDeclined(question, answer)) return new Map();
  if (!question.schema) return answer.value === "" ? new Map([["", "an answer is needed"]]) : new Map();
  return validate(answer.value, question.schema, question.schema);
}

const isDeclined = (question: Question, answer: Answer): boolean => question.isOptional && (answer.value === undefined || answer.value === "");

/** The parts of the reply. A single answer is sent in words, which every agent reads. */
export function replyParts(questions: Question[], answers: Answer[]): Part[] {
  const [first] = questions;
  const [only] = answers;
  if (questions.length === 1 && first && only) {
    if (first.isApproval && !isChanged(first, only) && !only.reason) return [{ text: only.decision ? "approve" : "reject" }];
    if (!first.isApproval && typeof only.value === "string" && only.value) return [{ text: only.value }];
    if (!first.isApproval && ["number", "boolean"].includes(typeof only.value)) return [{ text: String(only.value) }];
    if (!first.isApproval && isObject(only.value)) return [{ data: only.value }];
  }
  const given: Record<string, unknown> = {};
  questions.forEach((question, index) => (given[question.id] = valueOf(question, answers[index]!)));
  return [{ data: { answers: given } }];
}

const isChanged = (question: Question, answer: Answer): boolean => question.isEditable && JSON.stringify(answer.args) !== JSON.stringify(question.args);

function valueOf(question: Question, answer: Answer): unknown {
  if (!question.isApproval) return isDeclined(question, answer) ? null : answer.value;
  if (answer.decision && isChanged(question, answer)) return { approved: true, arguments: answer.args };
  if (!answer.decision && answer.reason) return { approved: false, reason: answer.reason };
  return answer.decision === true;
}

/** The answers that a message of the user contains, to show them in words. */
export function answersIn(part: Part): Record<string, unknown> | null {
  if (!isObject(part.data) || Object.keys(part.data).join() !== "answers") return null;
  return isObject(part.data["answers"]) ? part.data["answers"] : null;
}

/** The calls and responses of tools in a message of an agent that works: in our form, and in that of Google's ADK. */
export function toolsIn(parts: Part[]): { id: string; name: string; args: unknown; response: unknown }[] {
  const found = [];
  for (const part of parts) {
    const data = record(part.data);
    const isTool = isRepeated(part) || text(record(part.metadata)["adk_type"]).startsWith("function_");
    if (!isTool || !text(data["name"]) || !("args" in data || "response" in data)) continue;
    found.push({ id: text(data["id"]) || text(data["name"]), name: text(data["name"]), args: data["args"], response: data["response"] });
  }
  return found;
}
