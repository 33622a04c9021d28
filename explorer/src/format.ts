// Formats numbers, times and ids, and replaces browser functions that exist only on https.

export function uuid(): string {
  // Not crypto.randomUUID: browsers provide it only on https and localhost.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

export function duration(ms: number): string {
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${String(Math.floor(seconds % 60)).padStart(2, "0")}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}h ${String(minutes % 60).padStart(2, "0")}m`;
  return `${Math.floor(hours / 24)} days`;
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} kB`;
  return `${(count / 1024 / 1024).toFixed(1)} MB`;
}

export function ago(timestamp: string, now: number): string {
  const then = Date.parse(timestamp);
  if (Number.isNaN(then)) return "";
  const seconds = Math.max(0, (now - then) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export const clock = (at: number): string => new Date(at).toLocaleTimeString([], { hour12: false });

export const shortId = (id: string): string => (id.length > 12 ? id.slice(0, 8) : id);

export function plural(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

export function toBase64(content: Uint8Array): string {
  let binary = "";
  for (let start = 0; start < content.length; start += 0x8000) {
    binary += String.fromCharCode(...content.subarray(start, start + 0x8000));
  }
  return btoa(binary);
}

export const utf8ToBase64 = (text: string): string => toBase64(new TextEncoder().encode(text));

export function fromBase64(text: string): Uint8Array<ArrayBuffer> | null {
  try {
    // ProtoJSON allows the URL alphabet and missing padding.
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/").replace(/=+$/, ""));
    const content = new Uint8Array(binary.length);
    for (let index = 0; index < binary.length; index++) content[index] = binary.charCodeAt(index);
    return content;
  } catch {
    return null;
  }
}

/** Copy text. On http, where browsers have no clipboard object, use the old command on a hidden text area. */
export async function copy(text: string): Promise<boolean> {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed: try the old command
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  const host = document.querySelector("dialog[open]") ?? document.body;
  const focused = document.activeElement as HTMLElement | null;
  host.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus();
  }
}

/** Return an address that is safe in a link, or nothing: only schemes that a browser merely opens. */
export function safeLink(address: string): string | null {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
