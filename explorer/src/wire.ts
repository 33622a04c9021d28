// Sends all requests of the page and records them for the Wire tab: requests, responses, and each frame of a stream.
// Secrets are masked before recording, and the size of the record is bounded.
import { signal } from "@preact/signals";
import { GoneError } from "./a2a";
import { onNextFrame } from "./frames";

const MAX_EXCHANGES = 500;
const MAX_BODY = 256 * 1024; // maximum recorded length of one body, in characters
const MAX_KEPT = 24 * 1024 * 1024; // of all bodies together
const SECRET_HEADERS = /^(authorization|cookie|set-cookie|proxy-authorization|x-api-key|.*(token|secret|api-?key).*)$/i;
const SECRET_FIELDS = /("(?:token|credentials|password|secret|signingSecret|access_token|api_?key|clientSecret)"\s*:\s*")(?:[^"\\]|\\.)*"?/gi; // a body that was cut may lack the last quote
const HIDDEN = "•••";

export interface Frame {
  at: number;
  id: string;
  data: string;
  size: number;
}
export interface Exchange {
  number: number;
  label: string;
  quiet: boolean; // repeated by the page itself
  at: number;
  method: string;
  url: string;
  requestHeaders: [string, string][];
  requestBody: string;
  isWhole: boolean; // whether the body was recorded unchanged; otherwise it cannot be replayed
  status: number;
  responseHeaders: [string, string][];
  responseBody: string;
  size: number;
  ms: number | null; // null while it is in progress
  failure: string;
  frames: Frame[];
}
export interface WireRequest {
  label: string;
  method: string;
  url: string;
  headers: Record<string, string>;
  body?: string;
  quiet?: boolean;
}

export const exchanges: Exchange[] = [];
export const wireTick = signal(0);
let kept = 0;
let count = 0;

const changed = (): void => onNextFrame("wire", () => void wireTick.value++);

function shown(body: string): string {
  const cut = body.length > MAX_BODY ? `${body.slice(0, MAX_BODY)}… (${body.length.toLocaleString("en")} characters)` : body;
  return cut.replace(SECRET_FIELDS, `$1${HIDDEN}"`);
}

export function hideHeader(name: string, value: string): string {
  if (!SECRET_HEADERS.test(name)) return value;
  const scheme = /^(\w+)\s+\S/.exec(value);
  return scheme ? `${scheme[1]} ${HIDDEN}` : HIDDEN;
}

function open(request: WireRequest): Exchange {
  const body = request.body ?? "";
  const requestBody = shown(body);
  const exchange: Exchange = {
    number: ++count,
    label: request.label,
    quiet: request.quiet === true,
    at: Date.now(),
    method: request.method,
    url: request.url,
    requestHeaders: Object.entries(request.headers).map(([name, value]) => [name, hideHeader(name, value)]),
    requestBody,
    isWhole: requestBody === body,
    status: 0,
    responseHeaders: [],
    responseBody: "",
    size: 0,
    ms: null,
    failure: "",
    frames: [],
  };
  exchanges.push(exchange);
  keep(exchange.requestBody.length);
  changed();
  return exchange;
}

/** Count the recorded size, and remove the oldest exchanges above the limit. */
function keep(size: number): void {
  kept += size;
  while (exchanges.length > MAX_EXCHANGES || (kept > MAX_KEPT && exchanges.length > 1)) {
    const oldest = exchanges.shift()!;
    kept -= oldest.requestBody.length + oldest.responseBody.length;
    for (const frame of oldest.frames) kept -= frame.data.length;
  }
}

export function forgetWire(): void {
  exchanges.length = 0;
  kept = 0;
  changed();
}

export interface Answer {
  response: Response;
  exchange: Exchange;
  started: number;
}

export async function start(request: WireRequest, signalOfAbort?: AbortSignal): Promise<Answer> {
  const exchange = open(request);
  const started = performance.now();
  try {
    const init: RequestInit = {
      method: request.method,
      headers: request.headers,
      credentials: "omit", // no cookies, and no dialog of the browser for a name and a password
      cache: "no-store",
      redirect: "error",
    };
    if (request.body !== undefined) init.body = request.body;
    if (signalOfAbort) init.signal = signalOfAbort;
    const response = await fetch(request.url, init);
    exchange.status = response.status;
    exchange.responseHeaders = [...response.headers].map(([name, value]) => [name, hideHeader(name, value)]);
    changed();
    return { response, exchange, started };
  } catch (error) {
    throw end(exchange, started, error);
  }
}

/** Record the end of an exchange that failed. */
export function end(exchange: Exchange, started: number, error?: unknown): Error {
  exchange.ms = performance.now() - started;
  changed();
  if (error === undefined) return new GoneError("ended");
  if (error instanceof DOMException && error.name === "AbortError") {
    exchange.failure = "stopped by the page";
    return error;
  }
  exchange.failure = "no response: the server is down, or the connection broke";
  return new GoneError("The server does not answer");
}

export async function readText({ response, exchange, started }: Answer): Promise<string> {
  try {
    const body = await response.text();
    exchange.size = body.length;
    exchange.responseBody = shown(body);
    keep(exchange.responseBody.length);
    end(exchange, started);
    return body;
  } catch (error) {
    throw end(exchange, started, error);
  }
}

/** Yield the events of a stream. Comments (keep-alives) become events without data. */
export async function* readEvents(answer: Answer, idle: () => number): AsyncGenerator<{ id: string; data: string }> {
  const { exchange, started, response } = answer;
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  const decoder = new EventDecoder();
  try {
    while (true) {
      const read = await withLimit(reader.read(), idle());
      if (read.done) break;
      exchange.size += read.value.length;
      for (const event of decoder.feed(read.value)) {
        if (event.data) {
          const frame = { at: performance.now() - started, id: event.id, data: shown(event.data), size: event.data.length };
          exchange.frames.push(frame);
          keep(frame.data.length);
        }
        yield event;
      }
      exchange.ms = null;
      changed();
    }
    end(exchange, started);
  } catch (error) {
    throw end(exchange, started, error);
  } finally {
    void reader.cancel().catch(() => undefined);
    if (exchange.ms === null) end(exchange, started);
  }
}

function withLimit<T>(promise: Promise<T>, limit: number): Promise<T> {
  if (!Number.isFinite(limit)) return promise;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new GoneError("The stream sent nothing within the idle timeout")), limit);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

const MAX_EVENT = 32 * 1024 * 1024;

/** Parses server-sent events from chunks that are split at any point. */
export class EventDecoder {
  private rest = "";
  private data: string[] = [];
  private id = "";

  *feed(piece: string): Generator<{ id: string; data: string }> {
    this.rest += piece;
    if (this.rest.length > MAX_EVENT) throw new Error("An event is too large");
    let from = 0;
    while (true) {
      const found = this.findEnd(from);
      if (found === null) break;
      const line = this.rest.slice(from, found.end);
      from = found.next;
      const event = this.take(line);
      if (event) yield event;
    }
    this.rest = this.rest.slice(from);
  }

  private findEnd(from: number): { end: number; next: number } | null {
    const newline = this.rest.indexOf("\n", from);
    const carriage = this.rest.indexOf("\r", from);
    if (carriage >= 0 && (newline < 0 || carriage < newline)) {
      if (carriage + 1 === this.rest.length) return null; // perhaps the first half of "\r\n"
      return { end: carriage, next: this.rest[carriage + 1] === "\n" ? carriage + 2 : carriage + 1 };
    }
    return newline < 0 ? null : { end: newline, next: newline + 1 };
  }

  private take(line: string): { id: string; data: string } | null {
    if (line === "") {
      if (!this.data.length) return null;
      const data = this.data.join("\n");
      this.data = [];
      return { id: this.id, data };
    }
    if (line.startsWith(":")) return { id: this.id, data: "" };
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "id" && !value.includes("\0")) this.id = value;
    return null;
  }
}
