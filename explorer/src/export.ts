// A conversation as a file: JSON for programs, Markdown for people.
import { LABELS, type Artifact, type Message, type Part } from "./a2a";
import * as agent from "./agent";
import { bytes, fromBase64 } from "./format";
import { isObject, pretty } from "./json";
import { isRepeated } from "./questions";
import { textOf, type Run } from "./run";

/** The tasks of the conversation in the form of A2A 1.0. */
export function toJson(runs: Run[]): string {
  const tasks = runs.map((run) => ({
    id: run.taskId,
    contextId: run.contextId,
    status: {
      state: `TASK_STATE_${run.state}`,
      ...(run.status.timestamp ? { timestamp: run.status.timestamp } : {}),
      ...(run.status.message ? { message: plainMessage(run.status.message) } : {}),
    },
    history: run.messages.map(plainMessage),
    artifacts: [...run.artifacts.values()].map(plainArtifact),
    ...(run.answer ? { message: plainMessage(run.answer) } : {}),
    metadata: run.metadata,
  }));
  return pretty(withoutEmpty({ agent: { name: agent.card.value?.name ?? "", url: agent.ADDRESS }, exportedAt: new Date().toISOString(), tasks }));
}

/** The value without the empty members that reading a response adds. Data of agents stays as it is. */
function withoutEmpty(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutEmpty);
  if (!isObject(value)) return value;
  const found: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if ((member === "" && name !== "text") || member === undefined || (isObject(member) && !Object.keys(member).length && name === "metadata")) continue;
    found[name] = name === "data" || name === "metadata" || name === "text" ? member : withoutEmpty(member);
  }
  return found;
}

const plainMessage = (message: Message): unknown => ({ ...message, role: message.role === "user" ? "ROLE_USER" : "ROLE_AGENT" });
const plainArtifact = ({ artifactId, name, description, parts }: Artifact): unknown => ({ artifactId, name, description, parts });

export function toMarkdown(runs: Run[]): string {
  const lines = [`# Conversation with ${oneLine(agent.card.value?.name ?? "an agent")}`, "", `${agent.ADDRESS}, ${new Date().toISOString()}`, ""];
  for (const run of runs) {
    for (const message of run.messages) {
      const who = message.role === "user" ? "You" : "Agent";
      lines.push(`## ${who}${message.role === "user" && run.skillId ? ` → ${oneLine(run.skillId)}` : ""}`, "", ...partLines(message.parts));
    }
    lines.push(`## Agent: ${run.phase === "refused" ? "refused" : LABELS[run.state]}`, "");
    if (run.answer) lines.push(...partLines(run.answer.parts));
    for (const artifact of run.artifacts.values()) {
      if (artifact.name) lines.push(`### ${oneLine(artifact.name)}`, "");
      lines.push(...partLines(artifact.parts));
    }
    if (run.saidAnswer) lines.push(run.saidAnswer, "");
    const last = run.status.message;
    if (last && textOf(last) && run.state !== "WORKING") lines.push(...partLines(last.parts));
    if (run.failure && !textOf(last)) lines.push(run.failure.message, "");
  }
  return lines.join("\n");
}

const oneLine = (words: string): string => words.replace(/\s+/g, " ").trim();

function partLines(parts: Part[]): string[] {
  const lines: string[] = [];
  for (const part of parts) {
    if (isRepeated(part)) continue;
    if (part.text !== undefined) lines.push(part.text, "");
    else if (part.raw !== undefined) lines.push(`*File ${part.filename || "without a name"}, ${part.mediaType || "unknown type"}, ${bytes(fromBase64(part.raw)?.length ?? 0)}*`, "");
    else if (part.url !== undefined) lines.push(`*File ${part.filename || ""}: ${part.url}*`, "");
    else lines.push(fenced(pretty(part.data)), "");
  }
  return lines;
}

/** A block of JSON whose fence is longer than any fence in it. */
function fenced(source: string): string {
  const longest = Math.max(2, ...(source.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${source}\n${fence}`;
}
