// The model, shaped as A2A 1.0, and the two dialects on the wire. Every field of an agent's response is checked when it
// is read, because the shape of a response is not trusted.
import { isObject, list, record, text } from "./json";

export type Version = "1.0" | "0.3";
export type Metadata = Record<string, unknown>;

export interface Part {
  text?: string;
  raw?: string;
  url?: string;
  data?: unknown;
  filename?: string;
  mediaType?: string;
  metadata?: Metadata;
}
export interface Message {
  messageId: string;
  role: "user" | "agent";
  parts: Part[];
  contextId?: string;
  taskId?: string;
  metadata?: Metadata;
}
export type State =
  | "SUBMITTED"
  | "WORKING"
  | "COMPLETED"
  | "FAILED"
  | "CANCELED"
  | "INPUT_REQUIRED"
  | "REJECTED"
  | "AUTH_REQUIRED"
  | "UNSPECIFIED";
export interface Status {
  state: State;
  message?: Message;
  timestamp: string;
}
export interface Artifact {
  artifactId: string;
  name: string;
  description: string;
  parts: Part[];
}
export interface Task {
  id: string;
  contextId: string;
  status: Status;
  artifacts: Artifact[];
  history: Message[];
  metadata?: Metadata;
}
export type Event =
  | { kind: "task"; task: Task }
  | { kind: "message"; message: Message }
  | { kind: "status"; taskId: string; contextId: string; status: Status; metadata?: Metadata }
  | { kind: "artifact"; taskId: string; contextId: string; artifact: Artifact; append: boolean; last: boolean };

export type Operation = "send" | "stream" | "get" | "list" | "cancel" | "subscribe" | "extended" | "pushList" | "pushCreate" | "pushDelete";

export const STATES: State[] = [
  "SUBMITTED",
  "WORKING",
  "INPUT_REQUIRED",
  "AUTH_REQUIRED",
  "COMPLETED",
  "FAILED",
  "CANCELED",
  "REJECTED",
];
const ENDED: ReadonlySet<State> = new Set<State>(["COMPLETED", "FAILED", "CANCELED", "REJECTED"]);
export const isOver = (state: State): boolean => ENDED.has(state);
export const isWaiting = (state: State): boolean => state === "INPUT_REQUIRED" || state === "AUTH_REQUIRED";
export const LABELS: Record<State, string> = {
  SUBMITTED: "submitted",
  WORKING: "working",
  INPUT_REQUIRED: "input needed",
  AUTH_REQUIRED: "credentials needed",
  COMPLETED: "completed",
  FAILED: "failed",
  CANCELED: "canceled",
  REJECTED: "rejected",
  UNSPECIFIED: "unknown",
};

export const METHODS: Record<Version, Record<Operation, string>> = {
  "1.0": {
    send: "SendMessage",
    stream: "SendStreamingMessage",
    get: "GetTask",
    list: "ListTasks",
    cancel: "CancelTask",
    subscribe: "SubscribeToTask",
    extended: "GetExtendedAgentCard",
    pushList: "ListTaskPushNotificationConfigs",
    pushCreate: "CreateTaskPushNotificationConfig",
    pushDelete: "DeleteTaskPushNotificationConfig",
  },
  "0.3": {
    send: "message/send",
    stream: "message/stream",
    get: "tasks/get",
    list: "tasks/list",
    cancel: "tasks/cancel",
    subscribe: "tasks/resubscribe",
    extended: "agent/getAuthenticatedExtendedCard",
    pushList: "tasks/pushNotificationConfig/list",
    pushCreate: "tasks/pushNotificationConfig/set",
    pushDelete: "tasks/pushNotificationConfig/delete",
  },
};

// ---- writing --------------------------------------------------------------------------------------------------------

export interface SendOptions {
  message: Message;
  returnImmediately?: boolean;
}

export function encodeSend(version: Version, { message, returnImmediately }: SendOptions): Record<string, unknown> {
  const out: Record<string, unknown> = { message: encodeMessage(version, message) };
  if (returnImmediately) out["configuration"] = version === "1.0" ? { returnImmediately: true } : { blocking: false };
  return out;
}

function encodeMessage(version: Version, message: Message): Record<string, unknown> {
  if (version === "1.0") {
    return { ...message, role: message.role === "user" ? "ROLE_USER" : "ROLE_AGENT" };
  }
  return { kind: "message", ...message, parts: message.parts.map(toOldPart) };
}

function toOldPart(part: Part): Record<string, unknown> {
  const metadata = part.metadata ? { metadata: part.metadata } : {};
  if (part.text !== undefined) return { kind: "text", text: part.text, ...metadata };
  if ("data" in part) return { kind: "data", data: part.data, ...metadata };
  const file: Record<string, unknown> = part.raw !== undefined ? { bytes: part.raw } : { uri: part.url };
  if (part.filename) file["name"] = part.filename;
  if (part.mediaType) file["mimeType"] = part.mediaType;
  return { kind: "file", file, ...metadata };
}

// ---- reading --------------------------------------------------------------------------------------------------------

export function decodeEvent(version: Version, value: unknown): Event | null {
  const body = record(value);
  const [kind, content] = version === "1.0" ? memberOf(body) : [text(body["kind"]), body];
  switch (kind) {
    case "task":
      return { kind: "task", task: decodeTask(content) };
    case "message":
      return { kind: "message", message: decodeMessage(content) };
    case "statusUpdate":
    case "status-update":
      return {
        kind: "status",
        taskId: text(content["taskId"]),
        contextId: text(content["contextId"]),
        status: decodeStatus(content["status"]),
        metadata: record(content["metadata"]),
      };
    case "artifactUpdate":
    case "artifact-update":
      return {
        kind: "artifact",
        taskId: text(content["taskId"]),
        contextId: text(content["contextId"]),
        artifact: decodeArtifact(content["artifact"]),
        append: content["append"] === true,
        last: content["lastChunk"] === true,
      };
  }
  return null;
}

function memberOf(body: Record<string, any>): [string, Record<string, any>] {
  for (const name of ["task", "message", "statusUpdate", "artifactUpdate"]) {
    if (isObject(body[name])) return [name, body[name]];
  }
  return ["", {}];
}

export function decodeTask(value: unknown): Task {
  const body = record(value);
  return {
    id: text(body["id"]),
    contextId: text(body["contextId"]),
    status: decodeStatus(body["status"]),
    artifacts: list(body["artifacts"]).map(decodeArtifact),
    history: list(body["history"]).map(decodeMessage),
    metadata: record(body["metadata"]),
  };
}

export function decodeState(value: unknown): State {
  const name = text(value).replace("TASK_STATE_", "").replaceAll("-", "_").toUpperCase();
  return (STATES as string[]).includes(name) ? (name as State) : "UNSPECIFIED";
}

function decodeStatus(value: unknown): Status {
  const body = record(value);
  const status: Status = { state: decodeState(body["state"]), timestamp: text(body["timestamp"]) };
  if (isObject(body["message"])) status.message = decodeMessage(body["message"]);
  return status;
}

function decodeMessage(value: unknown): Message {
  const body = record(value);
  const role = text(body["role"]).toLowerCase();
  return {
    messageId: text(body["messageId"]),
    role: role.endsWith("user") ? "user" : "agent",
    parts: list(body["parts"]).map(decodePart),
    contextId: text(body["contextId"]),
    taskId: text(body["taskId"]),
    metadata: record(body["metadata"]),
  };
}

function decodeArtifact(value: unknown): Artifact {
  const body = record(value);
  return {
    artifactId: text(body["artifactId"]),
    name: text(body["name"]),
    description: text(body["description"]),
    parts: list(body["parts"]).map(decodePart),
  };
}

function decodePart(value: unknown): Part {
  const body = record(value);
  const file = record(body["file"]);
  const part: Part = {
    filename: text(body["filename"]) || text(file["name"]),
    mediaType: text(body["mediaType"]) || text(file["mimeType"]) || text(record(body["metadata"])["mediaType"]),
  };
  if (isObject(body["metadata"])) part.metadata = body["metadata"];
  if (typeof body["text"] === "string") part.text = body["text"];
  else if ("data" in body) part.data = body["data"];
  else if (typeof body["raw"] === "string") part.raw = body["raw"];
  else if (typeof file["bytes"] === "string") part.raw = file["bytes"];
  else if (typeof body["url"] === "string") part.url = body["url"];
  else if (typeof file["uri"] === "string") part.url = file["uri"];
  else part.data = value; // of an unknown kind: shown as JSON
  return part;
}

// ---- errors ---------------------------------------------------------------------------------------------------------

export interface Violation {
  field: string;
  message: string;
}

/** An error that an agent returned instead of a result. */
export class AgentError extends Error {
  constructor(
    message: string,
    readonly code: number,
    readonly status: number,
    readonly violations: Violation[] = [],
    readonly data: unknown = undefined,
  ) {
    super(message);
  }
}

/** No response: the server is down, or the connection to it is. */
export class GoneError extends Error {}

export function decodeError(value: unknown, status: number): AgentError {
  const body = record(value);
  const violations: Violation[] = [];
  const data = body["data"];
  for (const detail of [...list(data), ...list(record(data)["errors"])]) {
    const fields = list(record(detail)["fieldViolations"]);
    for (const item of fields.length ? fields : [detail]) {
      const entry = record(item);
      const place = Array.isArray(entry["loc"]) ? entry["loc"].join(".") : text(entry["field"]);
      const message = text(entry["description"]) || text(entry["message"]) || text(entry["msg"]);
      if (message) violations.push({ field: place, message });
    }
  }
  const code = typeof body["code"] === "number" ? body["code"] : 0;
  return new AgentError(text(body["message"]) || `HTTP ${status}`, code, status, violations, data);
}
