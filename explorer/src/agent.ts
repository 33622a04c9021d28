// The agent of this page: its address, its card, the calls to it, and whether it is available.
import { computed, effect, signal, untracked } from "@preact/signals";
import { AgentError, decodeError, decodeEvent, GoneError, METHODS, type Event, type Operation, type Version } from "./a2a";
import { readCard, spokenVersions, type Card, type Skill } from "./card";
import { uuid } from "./format";
import { isObject, parse, record } from "./json";
import { readEvents, readText, start, type WireRequest } from "./wire";

export const meta = (name: string): string => document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";

/** The address for requests: relative to the page, so that proxies and mounts do not matter. */
export const ROOT = new URL(meta("a2a-root") || "../", location.origin + location.pathname).href;
/** The address for other callers. It differs if the page reaches the agent through a proxy. */
export const ADDRESS = meta("a2a-agent") || ROOT;
const TRACE_URL = meta("a2a-trace-url");
export const OPTIONS = new Set(meta("a2a-options").split(" ").filter(Boolean));
const CARD_URL = new URL(".well-known/agent-card.json", ROOT).href;

export type Connection = "connecting" | "online" | "gone" | "back";
export interface Credentials {
  kind: "bearer" | "basic" | "key";
  header: string;
  value: string;
}

/** What stands before the secret in its header. */
export const PREFIXES: Record<Credentials["kind"], string> = { bearer: "Bearer ", basic: "Basic ", key: "" };

export const connection = signal<Connection>("connecting");
export const publicCard = signal<Card | null>(null);
export const extendedCard = signal<Card | null>(null);
export const cardFailure = signal("");
export const version = signal<Version>("1.0");
export const versions = computed<Version[]>(() => (publicCard.value ? spokenVersions(publicCard.value) : ["1.0", "0.3"]));
export const speaksJsonRpc = computed(() => publicCard.value?.interfaces.some((item) => item.binding === "JSONRPC") === true);
export const credentials = signal<Credentials | null>(null); // in memory only: a reload discards it
export const credentialsNeeded = signal("");
export const card = computed(() => extendedCard.value ?? publicCard.value);
export const skills = computed<Skill[]>(() => card.value?.skills ?? []);
export const goneSince = signal(0);

const comebacks = new Set<() => void>();

// ---- calls ----------------------------------------------------------------------------------------------------------

export function headers(): Record<string, string> {
  const found: Record<string, string> = { "A2A-Version": version.value };
  const required = (card.value?.extensions ?? []).filter((extension) => extension.required);
  if (required.length) found["A2A-Extensions"] = required.map((extension) => extension.uri).join(", ");
  const shown = credentials.value;
  if (shown?.value) found[shown.header] = PREFIXES[shown.kind] + shown.value;
  return found;
}

/** The id of a new trace, or "" if the server links to no traces. */
export const newTrace = (): string => (TRACE_URL ? randomHex(16) : "");
export const traceUrl = (trace: string): string => TRACE_URL.replace("{trace_id}", trace);

/** The headers that make a request a part of a trace, which the server records. */
export function traceHeaders(trace: string): Record<string, string> {
  return trace ? { traceparent: `00-${trace}-${randomHex(8)}-01` } : {};
}

function randomHex(size: number): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(size)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export interface CallOptions {
  quiet?: boolean;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

export function rpcRequest(operation: Operation, params: unknown, options: CallOptions = {}): WireRequest {
  const method = METHODS[version.value][operation];
  return {
    label: method,
    method: "POST",
    url: ROOT,
    headers: { "Content-Type": "application/json", ...headers(), ...options.headers },
    body: JSON.stringify({ jsonrpc: "2.0", id: uuid(), method, params }),
    quiet: options.quiet === true,
  };
}

export async function call(operation: Operation, params: unknown, options: CallOptions = {}): Promise<any> {
  const answer = await start(rpcRequest(operation, params, options), options.signal);
  return readResult(await readText(answer), answer.response.status);
}

/** A plain GET below the agent's address: health, metrics, and the extensions of this server. */
export async function get(path: string, options: CallOptions & { method?: string; body?: unknown } = {}): Promise<any> {
  // Concatenated, not resolved: "webhooks:redeliver" would be parsed as a URL with its own scheme.
  const url = path.startsWith(location.origin) ? path : ROOT + path;
  const method = options.method ?? "GET";
  const accept = { Accept: "application/json", ...headers(), ...options.headers };
  const request: WireRequest = { label: `${method} ${new URL(url).pathname}`, method, url, headers: accept, quiet: options.quiet === true };
  if (options.body !== undefined) {
    request.body = JSON.stringify(options.body);
    request.headers["Content-Type"] = "application/json";
  }
  const answer = await start(request);
  const body = await readText(answer);
  noteAnswer(answer.response.status);
  const value = parseOr(body, null);
  if (!answer.response.ok) throw Object.assign(errorOf(value, answer.response.status), { body: value });
  return value;
}

function readResult(body: string, status: number): any {
  const value = record(parseOr(body, null));
  if ("result" in value) {
    noteAnswer(status);
    return value["result"];
  }
  throw errorOf(value, status);
}

function errorOf(value: unknown, status: number): Error {
  const error = record(value)["error"];
  if (!isObject(error) && [502, 503, 504].includes(status)) {
    noteGone();
    return new GoneError("The server does not answer");
  }
  noteAnswer(status);
  if (status === 401 || status === 403) credentialsNeeded.value = "The agent requires credentials.";
  return decodeError(error, status);
}

function parseOr(body: string, otherwise: unknown): unknown {
  try {
    return parse(body);
  } catch {
    return otherwise;
  }
}

/** The events of a stream. A single result instead of a stream becomes one event. */
export async function* stream(
  operation: Operation,
  params: unknown,
  options: CallOptions & { lastEventId?: string },
): AsyncGenerator<{ id: string; event: Event | null }> {
  const spoken = version.value;
  const more: Record<string, string> = { Accept: "text/event-stream, application/json" };
  if (options.lastEventId) more["Last-Event-ID"] = options.lastEventId;
  const answer = await start(rpcRequest(operation, params, { ...options, headers: { ...more, ...options.headers } }), options.signal);
  const type = answer.response.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream") || !answer.response.body) {
    const result = readResult(await readText(answer), answer.response.status);
    yield { id: "", event: decodeEvent(spoken, result) };
    return;
  }
  noteAnswer(answer.response.status);
  let hasKeepAlives = card.value?.isOurs === true; // they are sent every 15 s, so silence means a broken connection
  for await (const { id, data } of readEvents(answer, () => (hasKeepAlives ? 45_000 : Infinity))) {
    if (!data) {
      hasKeepAlives = true;
      continue;
    }
    const value = record(parseOr(data, null));
    if ("error" in value) throw errorOf(value, answer.response.status);
    yield { id, event: decodeEvent(spoken, "result" in value ? value["result"] : value) };
  }
}

// ---- the card -------------------------------------------------------------------------------------------------------

let etag = "";

export async function loadCard(options: { quiet?: boolean } = {}): Promise<void> {
  const more: Record<string, string> = { Accept: "application/json", ...headers() };
  more["A2A-Version"] = "1.0"; // the newest form of the card is requested
  if (etag && publicCard.value) more["If-None-Match"] = etag;
  try {
    const answer = await start({ label: "agent card", method: "GET", url: CARD_URL, headers: more, quiet: options.quiet === true });
    const status = answer.response.status;
    if (status === 304) {
      await readText(answer);
      noteAnswer(status);
      return;
    }
    const body = await readText(answer);
    const value = parseOr(body, null);
    if (!answer.response.ok) throw errorOf(value, status);
    if (!isObject(value)) throw new AgentError("The response at the card's address is not a JSON object", 0, status);
    noteAnswer(status);
    etag = answer.response.headers.get("etag") ?? "";
    cardFailure.value = "";
    const isFirst = publicCard.value === null;
    publicCard.value = readCard(value);
    if (isFirst || !versions.value.includes(version.value)) version.value = versions.value[0]!;
    document.title = `${publicCard.value.name} · Explorer`;
    if (extendedCard.value) await loadExtendedCard();
  } catch (error) {
    if (error instanceof GoneError) noteGone();
    if (!publicCard.value) cardFailure.value = error instanceof Error ? error.message : String(error);
  }
}

export const extendedFailure = signal("");

export async function loadExtendedCard(): Promise<void> {
  extendedFailure.value = "";
  try {
    extendedCard.value = readCard(record(await call("extended", {}, { quiet: true })));
    credentialsNeeded.value = "";
  } catch (error) {
    extendedCard.value = null;
    extendedFailure.value = error instanceof Error ? error.message : String(error);
  }
}

// With credentials, the agent may list more, such as gated skills.
effect(() => {
  const shown = credentials.value;
  // Untracked: the call reads the card and its result changes the card, so tracking would repeat it forever.
  if (shown?.value && publicCard.value?.extended) untracked(() => void loadExtendedCard());
  if (!shown?.value) extendedCard.value = null;
});

// ---- availability ---------------------------------------------------------------------------------------------------

function noteAnswer(status: number): void {
  if ([502, 504].includes(status)) return noteGone();
  const before = connection.value;
  if (before === "gone") {
    connection.value = "back";
    for (const wake of [...comebacks]) wake();
    setTimeout(() => {
      if (connection.value === "back") connection.value = "online";
    }, 4000);
  } else if (before === "connecting") connection.value = "online";
}

export function noteGone(): void {
  if (connection.value === "gone") return;
  connection.value = "gone";
  goneSince.value = Date.now();
}

/** Wait for this time, or until the server is back. */
export function waitForComeback(ms: number, signalOfAbort: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      comebacks.delete(done);
      signalOfAbort.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    comebacks.add(done);
    signalOfAbort.addEventListener("abort", done);
  });
}

const WATCHED_EVERY = 10_000;
const MISSED_EVERY = 1_500;

export async function watchAgent(): Promise<never> {
  for (;;) {
    await loadCard({ quiet: publicCard.value !== null });
    const wait = connection.value === "online" || connection.value === "back" ? WATCHED_EVERY : MISSED_EVERY;
    await waitOrKick(wait);
  }
}

let kick: (() => void) | null = null;

function waitOrKick(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done(): void {
      clearTimeout(timer);
      kick = null;
      resolve();
    }
    kick = done;
  });
}

// A request noticed that the server is down: poll again soon, not in ten seconds.
effect(() => {
  if (connection.value === "gone") setTimeout(() => kick?.(), MISSED_EVERY);
});
