// JSON that keeps integers exact. JavaScript has no integers beyond 2^53; where the browser hands out the digits as they
// came, those are kept beside the number, shown, and sent as they were.

export class Exact {
  constructor(readonly source: string) {}
  toJSON(): unknown {
    const raw = (JSON as unknown as { rawJSON?: (text: string) => unknown }).rawJSON;
    return raw ? raw(this.source) : Number(this.source);
  }
}

const LONG_NUMBER = /[0-9]{16}/;
const INTEGER = /^-?[0-9]+$/;

export function parse(text: string): any {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text);
  const revive = (_key: string, value: unknown, context?: { source?: string }): unknown => {
    const source = context?.source;
    if (typeof value !== "number" || !source || !INTEGER.test(source)) return value;
    return Number.isSafeInteger(value) ? value : new Exact(source);
  };
  return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
}

export const pretty = (value: unknown): string => JSON.stringify(value, null, 2) ?? "undefined";

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Exact);
}

/** What somebody else's document says under a name, if it is a text; they may say anything. */
export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const list = (value: unknown): any[] => (Array.isArray(value) ? value : []);
export const record = (value: unknown): Record<string, any> => (isObject(value) ? (value as Record<string, any>) : {});
