// JSON with exact integers. JavaScript numbers are exact only up to 2^53. If the browser provides the original digits,
// they are kept beside the number, shown, and sent unchanged.

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

/** Return a field of an untrusted document if it is a string. */
export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const list = (value: unknown): any[] => (Array.isArray(value) ? value : []);
export const record = (value: unknown): Record<string, any> => (isObject(value) ? (value as Record<string, any>) : {});
