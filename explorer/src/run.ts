// One message and its task. A run owns its stream, so events of different runs are never mixed.
import { signal } from "@preact/signals";
import {
  AgentError,
  decodeEvent,
  decodeState,
  decodeTask,
  encodeSend,
  GoneError,
  isOver,
  isWaiting,
  type Artifact,
  type Event,
  type Message,
  type Operation,
  type Part,
  type State,
  type Status,
  type Task,
  type Violation,
} from "./a2a";
import * as agent from "./agent";
import { onNextFrame } from "./frames";
import { isObject, list, record, text } from "./json";
import { isRepeated, questionsOf, toolsIn, type Question } from "./questions";

export type Mode = "stream" | "send" | "background";
export type Phase =
  | "connecting" // sent, no response yet
  | "running" // the agent is working, and the stream is open
  | "reconnecting" // the connection broke, and is being retried
  | "resting" // ended, or waits for the user
  | "refused" // rejected: there is no task
  | "lost"; // the server no longer has it, or stays down

export interface Span {
  state: State;
  from: number;
  to: number | null;
}
export interface ArtifactSpan {
  id: string;
  name: string;
  from: number;
  to: number;
  chunks: number;
  size: number;
  isDone: boolean;
}
export interface ShownArtifact extends Artifact {
  updates: number; // how often its data was replaced while it ran
}

/** A tool that the agent has called. */
export interface ToolSpan {
  id: string;
  name: string;
  args: unknown;
  response: unknown; // undefined until it has one
  from: number;
  to: number | null;
}
/** A message of the agent while it works. */
export interface Note {
  text: string;
  detail: string; // JSON of a tool's call or response
  share: number | null; // how much is done, from 0 to 1, if it says so
  isProgress: boolean; // whether it only says what happens, so that it is never the answer
}

const MAX_ATTEMPTS = 60;
const POLLED_EVERY = 1500;
const MAX_NOTES = 200;

export class Run {
  readonly number: number;
  readonly tick = signal(0);
  phase: Phase = "connecting";
  mode: Mode;
  skillId: string;
  taskId = "";
  contextId = "";
  status: Status = { state: "UNSPECIFIED", timestamp: "" };
  messages: Message[] = [];
  notes: Note[] = [];
  artifacts = new Map<string, ShownArtifact>();
  answer: Message | null = null; // of an agent that answers without a task
  failure: { message: string; code: number; violations: Violation[]; reference: string; exception?: string } | null = null;
  spans: Span[] = [];
  artifactSpans = new Map<string, ArtifactSpan>();
  tools = new Map<string, ToolSpan>();
  startedAt = Date.now();
  endedAt: number | null = null;
  lastEventId = "";
  events = 0;
  attempt = 0;
  resumed = "";
  brokenAt = 0;
  isStopping = false;
  isOpened = false; // loaded from the list, not started here
  metadata: Record<string, unknown> = {}; // of the task
  readonly trace = agent.newTrace(); // of the requests that send or follow this message
  request: { operation: Operation; params: unknown } | null = null;
  private hasEvents = false; // whether the current stream has delivered any
  private abort = new AbortController();

  static count = 0;

  constructor(mode: Mode, skillId: string) {
    this.number = ++Run.count;
    this.mode = mode;
    this.skillId = skillId;
  }

  get state(): State {
    return this.status.state;
  }
  get isLive(): boolean {
    return this.phase === "connecting" || this.phase === "running" || this.phase === "reconnecting";
  }
  /** Whether it waits for the user. A stream stays open when credentials are needed, because the agent may continue. */
  get isAsking(): boolean {
    return (this.phase === "resting" && isWaiting(this.state)) || (this.phase === "running" && this.state === "AUTH_REQUIRED");
  }
  /** The questions with structure, if the task waits for answers to them. */
  get questions(): Question[] {
    if (this.state !== "INPUT_REQUIRED" || this.phase !== "resting") return [];
    const found = questionsOf(this.status.message);
    // An older agent sends no arguments. They are what the user has sent for the call.
    return found.map((question) => (question.isApproval && question.args === undefined ? { ...question, args: this.firstInput() } : question));
  }
  /** The only question of the task, if it is about a call. Two keys answer it. */
  get approval(): Question | null {
    const [only, ...others] = this.questions;
    return only?.isApproval && !others.length && !only.isEditable ? only : null;
  }
  private firstInput(): unknown {
    const asked = this.messages.find((message) => message.role === "user" && message.parts.some((part) => "data" in part));
    return asked?.parts.find((part) => "data" in part)?.data ?? this.messages[0]?.parts[0]?.text;
  }
  /** What the user said first, on one line. */
  get title(): string {
    return titleOf(this.messages);
  }
  /** How much is done, if the agent says so and still works. */
  get share(): number | null {
    return this.isLive ? (this.notes.at(-1)?.share ?? null) : null;
  }
  /** The answer of an agent that sends no artifact and no last message: what it said while it worked. */
  get saidAnswer(): string {
    if (this.artifacts.size || this.answer || textOf(this.status.message)) return "";
    if (this.state !== "COMPLETED") return "";
    const said: string[] = [];
    for (const note of this.notes) {
      if (note.isProgress) continue;
      // Some agents send a growing text, and then the whole text once more.
      const last = said.at(-1);
      if (last !== undefined && note.text.startsWith(last)) said[said.length - 1] = note.text;
      else said.push(note.text);
    }
    return said.join("\n\n");
  }

  changed(): void {
    onNextFrame(this, () => void this.tick.value++);
    onChange(this);
  }

  // ---- sending and following ----------------------------------------------------------------------------------------

  /** Send a message: the first of the run, or a reply to its task. */
  async send(message: Message): Promise<void> {
    const isReply = this.taskId !== "";
    if (isReply) this.settleStatus();
    this.messages = [...this.messages, message];
    this.phase = "connecting";
    this.failure = null;
    this.endedAt = null;
    this.resumed = "";
    const operation: Operation = this.mode === "stream" ? "stream" : "send";
    const params = encodeSend(agent.version.value, { message, returnImmediately: this.mode === "background" });
    this.request = { operation, params };
    this.changed();
    if (this.mode === "stream") await this.follow("stream", params);
    else await this.sendAndWait(params, isReply);
  }

  /** Send a reply while the task's stream is open. Its events arrive on that stream. */
  async say(message: Message): Promise<void> {
    this.settleStatus();
    this.messages = [...this.messages, message];
    this.failure = null;
    this.changed();
    try {
      await agent.call("send", encodeSend(agent.version.value, { message, returnImmediately: true }));
    } catch (error) {
      this.failure = { message: error instanceof Error ? error.message : String(error), code: 0, violations: [], reference: "" };
      this.changed();
    }
  }

  private async sendAndWait(params: unknown, isReply: boolean): Promise<void> {
    const version = agent.version.value;
    try {
      const result = await agent.call("send", params, { signal: this.abort.signal, headers: agent.traceHeaders(this.trace) });
      const event = decodeEvent(version, result);
      if (event) this.fold(event);
      if (this.taskId && !isOver(this.state) && !isWaiting(this.state)) await this.poll();
      this.rest();
    } catch (error) {
      if (this.wasStopped(error)) return;
      if (isReply && error instanceof GoneError) return void (await this.follow("subscribe", { id: this.taskId }));
      this.refuse(error);
    }
  }

  /** Poll a task in the background until it rests. */
  private async poll(): Promise<void> {
    this.phase = "running";
    this.changed();
    while (!isOver(this.state) && !isWaiting(this.state)) {
      await agent.waitForComeback(POLLED_EVERY, this.abort.signal);
      if (this.abort.signal.aborted) return;
      try {
        this.take(decodeTask(await agent.call("get", { id: this.taskId }, { quiet: true })));
        this.phase = "running";
      } catch (error) {
        if (error instanceof AgentError) throw error;
        this.noteBreak();
      }
      this.changed();
    }
  }

  /** Follow a stream to its end. When it breaks, resume it where it broke. */
  async follow(operation: Operation, params: unknown): Promise<void> {
    for (;;) {
      try {
        await this.read(operation, params);
        if (!this.isLive) return;
        if (this.answer || isOver(this.state) || this.state === "INPUT_REQUIRED") return this.rest();
        this.noteBreak(); // the stream ended, but the task did not
      } catch (error) {
        if (this.wasStopped(error)) return;
        if (error instanceof AgentError) return void (await this.onRefusal(error, operation));
        if (!this.taskId) return this.refuse(error);
        agent.noteGone();
        this.noteBreak();
      }
      if (this.attempt >= MAX_ATTEMPTS) return this.lose("The server is still down.");
      await agent.waitForComeback(Math.min(8000, 500 * 2 ** Math.min(this.attempt, 5)), this.abort.signal);
      if (this.abort.signal.aborted) return;
      operation = "subscribe";
      params = { id: this.taskId };
    }
  }

  private async read(operation: Operation, params: unknown): Promise<void> {
    const options: agent.CallOptions & { lastEventId?: string } = { signal: this.abort.signal, headers: agent.traceHeaders(this.trace) };
    const from = this.lastEventId;
    const isAgain = operation === "subscribe" && this.phase === "reconnecting";
    if (operation === "subscribe" && from) options.lastEventId = from;
    let isFirst = true;
    this.hasEvents = false;
    for await (const { id, event } of agent.stream(operation, params, options)) {
      if (isFirst && isAgain) this.noteResume(from, id, event);
      isFirst = false;
      this.hasEvents = true;
      this.attempt = 0;
      if (id) this.lastEventId = id;
      if (event) this.fold(event);
    }
  }

  private noteResume(from: string, id: string, event: Event | null): void {
    const after = from ? `after event ${from}` : "";
    const how = event?.kind === "task" ? `from a snapshot${id ? ` at event ${id}` : ""}` : "with the events that were missed";
    this.resumed = `Reconnected after ${((Date.now() - this.brokenAt) / 1000).toFixed(1)} s: resumed ${after} ${how}`.replace("  ", " ");
    this.phase = "running";
  }

  private noteBreak(): void {
    if (this.phase !== "reconnecting") this.brokenAt = Date.now();
    this.phase = "reconnecting";
    this.attempt++;
    this.changed();
  }

  private async onRefusal(error: AgentError, operation: Operation): Promise<void> {
    // Before the first event, the error rejects the message. After it, the stream has failed, and the task may not have.
    const isBroken = this.hasEvents && this.taskId !== "";
    if (operation !== "subscribe" && !isBroken) return this.refuse(error);
    // 1.0 rejects a subscription to a task that has ended, so fetch its outcome.
    try {
      const isAgain = this.phase === "reconnecting";
      this.take(decodeTask(await agent.call("get", { id: this.taskId }, { quiet: true })));
      if (isBroken) this.resumed = `The stream ended with an error (${error.message}). This is the task as the agent has it`;
      if (!isOver(this.state) && !isWaiting(this.state)) await this.poll(); // the agent does not stream it any further
      if (isAgain && !isBroken) this.resumed = `Reconnected after ${((Date.now() - this.brokenAt) / 1000).toFixed(1)} s: the task has come to rest in the meantime`;
      this.rest();
    } catch (failure) {
      if (isBroken) this.lose(`The stream ended with an error (${error.message}), and the task cannot be read.`);
      else if (failure instanceof AgentError) this.lose("The server is back, but no longer has this task.");
      else this.lose("The server is still down.");
    }
  }

  private wasStopped(error: unknown): boolean {
    return error instanceof DOMException && error.name === "AbortError";
  }

  private refuse(error: unknown): void {
    const known = error instanceof AgentError ? error : null;
    const message = error instanceof Error ? error.message : String(error);
    this.failure = {
      message: known ? message : "The server does not answer. It may have received the message.",
      code: known?.code ?? 0,
      violations: known?.violations ?? [],
      reference: "",
    };
    if (this.taskId && !isOver(this.state)) {
      // The task existed before this message, and waits for another one.
      this.phase = isWaiting(this.state) ? "resting" : "lost";
    } else this.phase = "refused";
    this.endedAt = Date.now();
    this.changed();
  }

  private lose(message: string): void {
    this.phase = "lost";
    this.failure = { message, code: 0, violations: [], reference: "" };
    this.endedAt = Date.now();
    this.closeSpan();
    this.changed();
  }

  private rest(): void {
    this.phase = "resting";
    this.isStopping = false;
    this.endedAt = Date.now();
    if (isOver(this.state)) this.closeSpan();
    this.changed();
  }

  /** Load a lost task again, or follow a running one. */
  async watch(): Promise<void> {
    this.mode = "stream";
    this.phase = "connecting";
    this.failure = null;
    this.attempt = 0;
    this.endedAt = null;
    this.changed();
    await this.follow("subscribe", { id: this.taskId });
  }

  async cancel(): Promise<void> {
    if (!this.taskId) {
      this.abort.abort();
      this.failure = { message: "Stopped before the agent answered.", code: 0, violations: [], reference: "" };
      this.phase = "refused";
      this.endedAt = Date.now();
      return this.changed();
    }
    this.isStopping = true;
    this.changed();
    try {
      const task = decodeTask(await agent.call("cancel", { id: this.taskId }));
      if (!this.isLive || this.mode !== "stream") {
        this.take(task);
        this.rest();
      }
    } catch (error) {
      this.isStopping = false;
      const message = error instanceof Error ? error.message : String(error);
      this.failure = { message: `Not canceled: ${message}`, code: 0, violations: [], reference: "" };
      this.changed();
    }
  }

  // ---- folding ------------------------------------------------------------------------------------------------------

  fold(event: Event): void {
    this.events++;
    switch (event.kind) {
      case "task":
        this.take(event.task);
        break;
      case "message":
        this.answer = event.message;
        this.contextId = event.message.contextId || this.contextId;
        break;
      case "status":
        if (!this.belongs(event.taskId)) return;
        this.metadata = { ...this.metadata, ...event.metadata };
        this.setStatus(event.status);
        break;
      case "artifact":
        if (!this.belongs(event.taskId)) return;
        this.addArtifact(event.artifact, event.append, event.last);
        break;
    }
    if (this.phase === "connecting" || this.phase === "reconnecting") this.phase = "running";
    this.changed();
  }

  private belongs(taskId: string): boolean {
    if (!this.taskId) this.taskId = taskId;
    return !taskId || taskId === this.taskId;
  }

  /** Apply a whole task: it replaces everything received before. */
  take(task: Task): void {
    this.taskId = task.id || this.taskId;
    this.metadata = { ...this.metadata, ...task.metadata };
    this.contextId = task.contextId || this.contextId;
    if (task.history.length) this.messages = task.history;
    this.skillId ||= text(record(task.history[0]?.metadata)["skillId"]) || text(record(task.metadata)["skillId"]);
    const seen = new Map(this.artifacts);
    this.artifacts.clear();
    for (const artifact of task.artifacts) {
      const updates = seen.get(artifact.artifactId)?.updates ?? 0;
      this.artifacts.set(artifact.artifactId, { ...artifact, parts: joinTexts(artifact.parts), updates });
      if (!this.artifactSpans.has(artifact.artifactId)) this.noteChunk(artifact, false, true);
    }
    if (this.isOpened && !this.spans.length) this.readTransitions(task);
    this.setStatus(task.status);
  }

  /** The past states of a task, if the agent records them. */
  private readTransitions(task: Task): void {
    for (const passed of list(record(task.metadata)["apcore.stateTransitions"]).map(record)) {
      const at = Date.parse(text(passed["timestamp"]));
      if (Number.isNaN(at)) continue;
      const last = this.spans.at(-1);
      if (last) last.to = at;
      else this.startedAt = at;
      this.spans.push({ state: decodeState(passed["state"]), from: at, to: null });
    }
    const last = this.spans.at(-1);
    const ended = Date.parse(task.status.timestamp);
    if (last && !Number.isNaN(ended)) last.to = ended;
    if (!last && !Number.isNaN(ended)) this.startedAt = ended;
  }

  private setStatus(status: Status): void {
    const isNew = status.state !== this.state;
    if (this.status.message && this.status.message.messageId !== status.message?.messageId) this.settleStatus();
    this.status = status;
    if (status.state === "WORKING" && status.message) {
      this.noteTools(status.message);
      const note = noteOf(status.message);
      if (note.text || note.share !== null) this.notes = [...this.notes.slice(-MAX_NOTES), note];
    }
    if (status.state === "FAILED" || status.state === "REJECTED") {
      const message = textOf(status.message) || "The agent gave no reason.";
      const exception = text(record(status.message?.metadata)["exception"]); // only agents in development send it
      this.failure = { message, code: 0, violations: [], reference: referenceIn(status.message, message), exception };
    }
    if (!isNew) return;
    this.closeSpan();
    const at = this.isOpened && !this.isLive ? Date.parse(status.timestamp) || Date.now() : Date.now();
    this.spans.push({ state: status.state, from: at, to: isOver(status.state) ? at : null });
  }

  private noteTools(message: Message): void {
    for (const tool of toolsIn(message.parts)) {
      const known = this.tools.get(tool.id);
      if (!known) this.tools.set(tool.id, { ...tool, from: Date.now(), to: tool.response === undefined ? null : Date.now() });
      else if (tool.response !== undefined) this.tools.set(tool.id, { ...known, response: tool.response, to: Date.now() });
    }
  }

  /** Add the agent's last question or message to the conversation. */
  private settleStatus(): void {
    const message = this.status.message;
    if (!message || this.status.state === "WORKING") return;
    if (!this.messages.some((known) => known.messageId === message.messageId)) this.messages = [...this.messages, message];
    this.status = { ...this.status };
    delete this.status.message;
  }

  private closeSpan(): void {
    const last = this.spans.at(-1);
    if (last && last.to === null) last.to = Date.now();
  }

  private addArtifact(artifact: Artifact, append: boolean, isLast: boolean): void {
    const known = this.artifacts.get(artifact.artifactId);
    this.noteChunk(artifact, append, isLast);
    if (!append || !known) {
      this.artifacts.set(artifact.artifactId, { ...artifact, parts: joinTexts(artifact.parts), updates: known?.updates ?? 0 });
      return;
    }
    // Replaced, not changed in place: objects are rendered again if their identity changes.
    const next: ShownArtifact = { ...known, name: artifact.name || known.name, parts: [...known.parts] };
    for (const part of artifact.parts) {
      const last = next.parts.at(-1);
      if (last && canJoin(last, part)) next.parts[next.parts.length - 1] = { ...last, text: last.text! + part.text! };
      else if (last && isSameRecord(last, part)) {
        // Repeated records of the same kind are one changing state, not a list: show the newest.
        next.updates++;
        next.parts[next.parts.length - 1] = part;
      } else next.parts.push(part);
    }
    this.artifacts.set(artifact.artifactId, next);
  }

  private noteChunk(artifact: Artifact, append: boolean, isLast: boolean): void {
    const now = Date.now();
    let size = 0;
    for (const part of artifact.parts) size += part.text?.length ?? part.raw?.length ?? 0;
    const span = this.artifactSpans.get(artifact.artifactId);
    if (!span) {
      const name = artifact.name || wordsOf(artifact) || "answer";
      this.artifactSpans.set(artifact.artifactId, { id: artifact.artifactId, name, from: now, to: now, chunks: 1, size, isDone: isLast });
      return;
    }
    span.to = now;
    span.chunks++;
    span.size = append ? span.size + size : size;
    span.isDone = isLast;
  }
}

/** The first words of an unnamed artifact, or the name or type of its file. */
function wordsOf(artifact: Artifact): string {
  for (const part of artifact.parts) {
    const words = part.text?.trim().replace(/\s+/g, " ") || part.filename || (part.raw !== undefined ? part.mediaType : "");
    if (words) return words.length > 40 ? `${words.slice(0, 39)}…` : words;
  }
  return "";
}

const canJoin = (one: Part, other: Part): boolean =>
  one.text !== undefined && other.text !== undefined && !one.filename && !other.filename && one.mediaType === other.mediaType;

function isSameRecord(one: Part, other: Part): boolean {
  if (!isObject(one.data) || !isObject(other.data)) return false;
  return Object.keys(one.data).join() === Object.keys(other.data).join();
}

function joinTexts(parts: Part[]): Part[] {
  const joined: Part[] = [];
  for (const part of parts) {
    const last = joined.at(-1);
    if (last && canJoin(last, part)) last.text! += part.text!;
    else joined.push({ ...part });
  }
  return joined;
}

/** The first words of a conversation, on one line: the skill, and the text, the inputs or the names of files. */
export function titleOf(messages: Message[]): string {
  const first = messages.find((message) => message.role === "user");
  if (!first) return "";
  const words = first.parts.map((part) => part.text ?? ("data" in part ? inputWords(part.data) : (part.filename ?? part.url ?? "file")));
  const said = words.join(" ").replace(/\s+/g, " ").trim();
  return said.length > 200 ? `${said.slice(0, 199)}…` : said;
}

function inputWords(value: unknown): string {
  if (!isObject(value)) return JSON.stringify(value) ?? "";
  const words = Object.entries(value).map(([name, each]) => (Object.keys(value).length === 1 && typeof each === "string" ? each : `${name}: ${typeof each === "string" ? each : JSON.stringify(each)}`));
  return words.join(", ");
}

function noteOf(message: Message): Note {
  const metadata = record(message.metadata);
  const said = textOf(message);
  const done = metadata["apcore.progress"];
  const share = typeof done === "number" && done >= 0 && done <= 1 ? done : null;
  // The agent writes the share as its text if it has no other one. The bar shows it.
  const isShare = share !== null && said.replaceAll(" ", "") === `${Math.round(share * 100)}%`;
  const [tool] = toolsIn(message.parts);
  if (!tool) return { text: isShare ? "" : said, detail: "", share, isProgress: "apcore.progress" in metadata || message.parts.some(isRepeated) };
  const shown = JSON.stringify(tool.response ?? tool.args) ?? "";
  const detail = shown.length > 300 ? `${shown.slice(0, 299)}…` : shown;
  return { text: said || (tool.response === undefined ? `Calls ${tool.name}` : `${tool.name} answered`), detail, share, isProgress: true };
}

export function textOf(message: Message | undefined): string {
  return (message?.parts ?? []).map((part) => part.text ?? "").join("");
}

/** The reference that the agent's operator needs to find the error in the log. */
function referenceIn(message: Message | undefined, said: string): string {
  const metadata = record(message?.metadata);
  for (const name of ["reference", "errorId", "traceId", "requestId"]) {
    if (typeof metadata[name] === "string") return metadata[name];
  }
  return /\b(?:reference|trace[- ]?id|ref)[:\s]+([\w-]{6,64})/i.exec(said)?.[1] ?? "";
}

// The task list is notified when a task of this page changes.
const listeners = new Set<(run: Run) => void>();
const onChange = (run: Run): void => listeners.forEach((listener) => listener(run));
export const listenToRuns = (listener: (run: Run) => void): void => void listeners.add(listener);
