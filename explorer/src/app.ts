// The state of the page: the conversation, the skill and the task it shows, and the address bar.
import { batch, computed, effect, signal } from "@preact/signals";
import { AgentError, decodeTask, isOver, LABELS, type Message, type Part, type State, type Task } from "./a2a";
import * as agent from "./agent";
import type { Sample, Skill } from "./card";
import { toBase64, uuid } from "./format";
import { isObject, list, parse, pretty, record, text } from "./json";
import { listenToRuns, Run, titleOf, type Mode } from "./run";
import { filePlace, startValue, validate } from "./schema";

// ---- conversations --------------------------------------------------------------------------------------------------

export interface Conversation {
  key: string;
  contextId: string;
  runs: Run[];
}

const conversations: Conversation[] = [];
const newConversation = (): Conversation => ({ key: uuid(), contextId: "", runs: [] });
export const current = signal<Conversation>(newConversation());
export const selectedRun = signal<Run | null>(null);
export const wantedTask = signal(""); // the task in the address, until it is loaded
export const openFailure = signal("");

export function startConversation(): void {
  batch(() => {
    current.value = newConversation();
    selectedRun.value = null;
    openFailure.value = "";
  });
}

function addRun(run: Run): void {
  const conversation = current.value;
  if (!conversations.includes(conversation)) conversations.push(conversation);
  current.value = { ...conversation, runs: [...conversation.runs, run] };
  conversations[conversations.indexOf(conversation)] = current.value;
  selectedRun.value = run;
}

/** The context id from the agent, once known. */
function contextOf(conversation: Conversation): string {
  return conversation.contextId || conversation.runs.find((run) => run.contextId)?.contextId || "";
}
export const currentContext = computed(() => {
  for (const run of current.value.runs) void run.tick.value;
  return contextOf(current.value);
});

/** What the conversation began with, on one line. */
export const currentTitle = computed(() => {
  const [first] = current.value.runs;
  if (first) void first.tick.value;
  return first?.title ?? "";
});

/** The run of this conversation that waits for a reply. */
export const waitingRun = computed(() => {
  const runs = current.value.runs;
  for (const run of runs) void run.tick.value;
  return runs.findLast((run) => run.isAsking) ?? null;
});

// ---- drafts: unsent input, by skill ---------------------------------------------------------------------------------

export type Editor = "form" | "json" | "text";
export interface Attachment {
  name: string;
  mediaType: string;
  bytes: string; // base64
  size: number;
}
export interface Draft {
  editor: Editor;
  value: unknown;
  json: string;
  text: string;
  files: Attachment[];
  complaints: Map<string, string>;
}

const drafts = new Map<string, Draft>();
export const skillId = signal("");
export const skill = computed<Skill | null>(() => agent.skills.value.find((each) => each.id === skillId.value) ?? null);
export const draft = signal<Draft>(emptyDraft(null));

function emptyDraft(of: Skill | null): Draft {
  const value = of?.inputSchema ? startValue(of.inputSchema, of.inputSchema) : {};
  return {
    editor: of?.inputSchema ? "form" : "text",
    value,
    json: pretty(value),
    text: "",
    files: [],
    complaints: new Map(),
  };
}

export function edit(change: Partial<Draft>): void {
  draft.value = { ...draft.value, ...change };
  drafts.set(skillId.value, draft.value);
}

export function resetDraft(): void {
  drafts.delete(skillId.value);
  draft.value = emptyDraft(skill.value);
}

export function useSample(sample: Sample): void {
  let input = sample.input;
  if (typeof input === "string" && skill.value?.inputSchema) {
    try {
      input = parse(input);
    } catch {
      // text, then
    }
  }
  if (typeof input === "string") edit({ editor: "text", text: input, complaints: new Map() });
  else edit({ editor: skill.value?.inputSchema ? "form" : "json", value: input, json: pretty(input), complaints: new Map() });
}

/** Convert the form to JSON and back. Invalid JSON stays in place, with its error. */
export function switchEditor(to: Editor): void {
  const now = draft.value;
  if (now.editor === to) return;
  if (now.editor === "json" && to === "form") {
    const read = readJson(now.json);
    if (read.complaint) return edit({ complaints: new Map([["", read.complaint]]) });
    if (!isObject(read.value)) return edit({ complaints: new Map([["", "the form needs a JSON object"]]) });
    return edit({ editor: to, value: read.value, complaints: new Map() });
  }
  edit({ editor: to, json: now.editor === "form" ? pretty(now.value) : now.json, complaints: new Map() });
}

function readJson(source: string): { value?: unknown; complaint: string } {
  try {
    return { value: parse(source), complaint: "" };
  } catch (error) {
    return { complaint: error instanceof Error ? `not JSON: ${error.message}` : "not JSON" };
  }
}

/** The parts of the message. Null, with errors in the draft, if it cannot be sent. */
export function composeParts(): Part[] | null {
  const now = draft.value;
  const files: Part[] = now.files.map((file) => ({ raw: file.bytes, filename: file.name, mediaType: file.mediaType }));
  if (now.editor === "text") {
    if (now.text.trim()) return [{ text: now.text }, ...files];
    if (files.length) return files;
    edit({ complaints: new Map([["", "enter a text, or drop a file"]]) });
    return null;
  }
  let value = now.value;
  if (now.editor === "json") {
    const read = readJson(now.json);
    if (read.complaint) {
      edit({ complaints: new Map([["", read.complaint]]) });
      return null;
    }
    value = read.value;
  }
  const schema = skill.value?.inputSchema;
  if (now.editor === "form" && schema) {
    const complaints = validate(value, schema, schema);
    if (complaints.size) {
      edit({ complaints });
      return null;
    }
  }
  return [...dataParts(value), ...files];
}

/** A form with only a file is sent as a file part. */
function dataParts(value: unknown): Part[] {
  const schema = skill.value?.inputSchema;
  const place = schema ? filePlace(schema) : null;
  if (place && isObject(value) && Object.keys(value).join() === place) {
    const file = record(value[place]);
    const raw = text(file["bytes"]);
    if (raw) return [{ raw, filename: text(file["name"]), mediaType: text(file["mimeType"]) }];
  }
  return [{ data: value }];
}

export async function attach(files: Iterable<File>): Promise<void> {
  const added: Attachment[] = [];
  for (const file of files) {
    const content = new Uint8Array(await file.arrayBuffer());
    added.push({
      name: file.name,
      mediaType: file.type || "application/octet-stream",
      bytes: toBase64(content),
      size: content.length,
    });
  }
  const schema = skill.value?.inputSchema;
  const place = schema ? filePlace(schema) : null;
  const [first] = added;
  if (place && first && draft.value.editor === "form" && !waitingRun.value) {
    const value = { ...record(draft.value.value), [place]: fileValue(schema!, place, first) };
    edit({ value, files: [...draft.value.files, ...added.slice(1)], complaints: new Map() });
  } else edit({ files: [...draft.value.files, ...added], complaints: new Map() });
}

function fileValue(schema: Record<string, any>, place: string, file: Attachment): unknown {
  const property = record(record(schema["properties"])[place]);
  if (property["type"] === "string") return file.bytes;
  return { name: file.name, mimeType: file.mediaType, bytes: file.bytes };
}

// ---- sending --------------------------------------------------------------------------------------------------------

export function composeMessage(parts: Part[], to: Run | null): Message {
  const message: Message = { messageId: uuid(), role: "user", parts };
  const context = to?.contextId || contextOf(current.value);
  if (context) message.contextId = context;
  if (to) message.taskId = to.taskId;
  else if (skillId.value) message.metadata = { skillId: skillId.value };
  return message;
}

export function submit(mode: Mode): Run | null {
  const waiting = waitingRun.value;
  const to = waiting && !asksOnlyApprovals(waiting) ? waiting : null;
  const parts = to ? composeReply() : composeParts();
  if (!parts) return null;
  if (to) {
    edit({ text: "", files: [] });
    const answer = composeMessage(parts, to);
    if (to.phase === "running") void to.say(answer);
    else void to.send(answer).then(() => noteViolations(to));
    return to;
  }
  const run = new Run(mode, skillId.value);
  const message = composeMessage(parts, null);
  addRun(run);
  edit({ files: [], text: "", complaints: new Map() });
  void run.send(message).then(() => noteViolations(run));
  return run;
}

export const reply = signal("");

function composeReply(): Part[] | null {
  const said = reply.value.trim();
  const files: Part[] = draft.value.files.map((file) => ({ raw: file.bytes, filename: file.name, mediaType: file.mediaType }));
  if (!said && !files.length) return null;
  reply.value = "";
  return said ? [{ text: said }, ...files] : files;
}

/** Show the agent's errors at their fields. */
function noteViolations(run: Run): void {
  if (run.phase !== "refused" || !run.failure?.violations.length || skillId.value !== run.skillId) return;
  const complaints = new Map<string, string>();
  for (const violation of run.failure.violations) {
    const path = violation.field.replace(/^(message\.)?parts(\[\d+\]|\.\d+)?\.?(data\.)?/, "").replace(/\[(\d+)\]/g, ".$1");
    complaints.set(path, violation.message);
  }
  edit({ complaints });
}

/** Whether the user decides with buttons, so that the composer stays free for the next message. */
export function asksOnlyApprovals(run: Run): boolean {
  const { questions } = run;
  return questions.length > 0 && questions.every((question) => question.isApproval);
}

export function decide(run: Run, isApproved: boolean): void {
  if (run.approval) answer(run, [{ text: isApproved ? "approve" : "reject" }]);
}

export function answer(run: Run, parts: Part[]): void {
  run.mode = "stream";
  void run.send(composeMessage(parts, run));
}

export function again(run: Run): void {
  const first = run.messages.find((message) => message.role === "user");
  if (!first) return;
  const next = new Run(run.mode, run.skillId);
  const message: Message = { messageId: uuid(), role: "user", parts: first.parts };
  if (run.skillId) message.metadata = { skillId: run.skillId };
  const context = contextOf(current.value);
  if (context) message.contextId = context;
  addRun(next);
  void next.send(message);
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

export interface Row {
  id: string;
  contextId: string;
  skillId: string;
  title: string; // what the user said first
  state: State;
  timestamp: string;
}
export interface Listing {
  rows: Row[];
  next: string;
  total: number;
  isLoading: boolean;
  failure: string;
}

const PAGE = 50;
export const stateFilter = signal<State | "">("");
export const contextFilter = signal("");
export const taskSearch = signal("");
export const sinceFilter = signal(0); // minutes; 0 is any time
export const listing = signal<Listing>({ rows: [], next: "", total: 0, isLoading: false, failure: "" });
let listed = 0; // the number of the latest request, to ignore the responses of earlier ones

const toRow = (task: Task): Row => ({
  id: task.id,
  contextId: task.contextId,
  skillId: text(record(task.history[0]?.metadata)["skillId"]) || text(record(task.metadata)["skillId"]),
  title: titleOf(task.history),
  state: task.status.state,
  timestamp: task.status.timestamp,
});

function listParams(pageToken: string): Record<string, unknown> {
  const isNew = agent.version.value === "1.0";
  const params: Record<string, unknown> = { historyLength: 10 };
  params[isNew ? "pageSize" : "limit"] = PAGE;
  if (pageToken) params[isNew ? "pageToken" : "cursor"] = pageToken;
  if (contextFilter.value) params["contextId"] = contextFilter.value;
  const wanted = stateFilter.value;
  if (wanted) params["status"] = isNew ? `TASK_STATE_${wanted}` : wanted.toLowerCase().replaceAll("_", "-");
  if (sinceFilter.value) params["statusTimestampAfter"] = new Date(Date.now() - sinceFilter.value * 60_000).toISOString();
  if (!isNew) params["includeArtifacts"] = false;
  return params;
}

/** The loaded rows that contain every word of the search. Agents cannot search, so only loaded rows are found. */
export const foundRows = computed<Row[]>(() => {
  const words = taskSearch.value.toLowerCase().split(/\s+/).filter(Boolean);
  const { rows } = listing.value;
  if (!words.length) return rows;
  return rows.filter((row) => {
    const hay = `${row.title} ${row.skillId} ${row.id} ${row.contextId} ${LABELS[row.state]}`.toLowerCase();
    return words.every((word) => hay.includes(word));
  });
});

export async function listTasks(options: { more?: boolean; quiet?: boolean } = {}): Promise<void> {
  const before = listing.value;
  if (options.more && (!before.next || before.isLoading)) return;
  const question = ++listed;
  listing.value = { ...before, isLoading: true };
  try {
    const page = record(await agent.call("list", listParams(options.more ? before.next : ""), { quiet: options.quiet === true }));
    if (question !== listed) return;
    const rows = list(page["tasks"]).map(decodeTask).map(toRow);
    const total = Number(page["totalSize"] ?? 0);
    const next = text(page["nextPageToken"]) || text(page["nextCursor"]);
    const known = new Set(rows.map((row) => row.id));
    // A refresh replaces the first page and keeps the pages loaded after it.
    const isAgain = options.quiet && before.rows.length > PAGE;
    if (options.more) listing.value = done([...before.rows.filter((row) => !known.has(row.id)), ...rows], next, total);
    else if (isAgain) listing.value = done([...rows, ...before.rows.filter((row) => !known.has(row.id))], before.next, total);
    else listing.value = done(rows, next, total);
  } catch (error) {
    if (question !== listed) return;
    const failure = error instanceof AgentError && error.code === -32601 ? "This agent does not list tasks." : error instanceof Error ? error.message : "";
    listing.value = { ...before, isLoading: false, failure };
  }
}

const done = (rows: Row[], next: string, total: number): Listing => ({ rows, next, total, isLoading: false, failure: "" });

// Runs of this page are listed without a request.
listenToRuns((run) => {
  if (!run.taskId) return;
  const rows = listing.value.rows;
  const index = rows.findIndex((row) => row.id === run.taskId);
  const row: Row = {
    id: run.taskId,
    contextId: run.contextId,
    skillId: run.skillId,
    title: run.title,
    state: run.state,
    timestamp: run.status.timestamp || new Date().toISOString(),
  };
  if (index >= 0 && rows[index]!.state === row.state) return;
  if (index < 0 && (stateFilter.value || contextFilter.value || sinceFilter.value || run.isOpened)) return;
  const others = rows.filter((each) => each.id !== row.id);
  listing.value = { ...listing.value, rows: [row, ...others], total: listing.value.total + (index < 0 ? 1 : 0) };
});

/** Show a task of the list: its run on this page, or the task as loaded from the agent. */
export async function openTask(id: string): Promise<void> {
  openFailure.value = "";
  for (const conversation of [current.value, ...conversations]) {
    const run = conversation.runs.find((each) => each.taskId === id);
    if (run) {
      current.value = conversation;
      selectedRun.value = run;
      wantedTask.value = "";
      return;
    }
  }
  wantedTask.value = id;
  try {
    const task = decodeTask(await agent.call("get", { id }));
    if (wantedTask.value !== id) return; // the user has chosen another task
    const tasks = [task, ...(await siblings(task))];
    if (wantedTask.value !== id) return;
    showTasks(tasks, id);
  } catch (error) {
    if (wantedTask.value !== id) return;
    openFailure.value = error instanceof Error ? error.message : String(error);
    wantedTask.value = "";
  }
}

/** Load the other tasks of the conversation. An agent that cannot list tasks must not prevent showing this one. */
async function siblings(task: Task): Promise<Task[]> {
  if (!task.contextId) return [];
  const isNew = agent.version.value === "1.0";
  const params = { contextId: task.contextId, includeArtifacts: true, [isNew ? "pageSize" : "limit"]: 50 };
  try {
    const page = record(await agent.call("list", params, { quiet: true }));
    return list(page["tasks"]).map(decodeTask).filter((other) => other.id !== task.id);
  } catch {
    return [];
  }
}

function showTasks(tasks: Task[], id: string): void {
  tasks.sort((one, other) => one.status.timestamp.localeCompare(other.status.timestamp));
  const conversation = newConversation();
  conversation.contextId = tasks[0]!.contextId;
  for (const task of tasks) {
    const run = new Run("stream", "");
    run.isOpened = true;
    run.phase = "resting";
    run.endedAt = Date.parse(task.status.timestamp) || Date.now();
    run.take(task);
    conversation.runs.push(run);
    if (!isOver(task.status.state) && task.status.state !== "INPUT_REQUIRED") void run.watch();
  }
  conversations.push(conversation);
  batch(() => {
    current.value = conversation;
    selectedRun.value = conversation.runs.find((run) => run.taskId === id) ?? null;
    skillId.value = selectedRun.value?.skillId ?? "";
    wantedTask.value = "";
  });
}

// The task of a run is in the address bar, so that a reload opens it again.
listenToRuns((run) => {
  if (!run.taskId || run.isOpened || selectedRun.value !== run) return;
  const hash = `#/task/${encodeURIComponent(run.taskId)}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
});

// ---- navigation -----------------------------------------------------------------------------------------------------

export type Pane = "left" | "centre" | "right";
export const pane = signal<Pane>("centre"); // the pane to show where there is room for only one
export type Tab = "timeline" | "wire" | "card" | "code" | "webhooks" | "health";
export const tab = signal<Tab>("timeline");
export const search = signal("");

export function go(hash: string): void {
  if (location.hash === hash) applyAddress();
  else location.hash = hash;
}
export const toSkill = (id: string): void => go(`#/skill/${encodeURIComponent(id)}`);
export const toTask = (id: string): void => go(`#/task/${encodeURIComponent(id)}`);

export function applyAddress(): void {
  const [, kind, name] = /^#\/(skill|task)\/(.+)$/.exec(location.hash) ?? [];
  let wanted = "";
  try {
    wanted = decodeURIComponent(name ?? "");
  } catch {
    // not an address that this page writes
  }
  pane.value = "centre";
  if (kind === "skill") skillId.value = wanted;
  else if (kind === "task") void openTask(wanted);
  else {
    skillId.value = "";
    startConversation();
  }
}

// A skill that appears later (from an extended card) gets its form then.
effect(() => {
  const chosen = skill.value;
  const known = drafts.get(skillId.value);
  draft.value = known ?? emptyDraft(chosen);
});
