// Renders content of agents and users: text, data, pictures, sound, files. Content is text unless it is known to be
// safe.
import type { ComponentChild } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Part } from "./a2a";
import { bytes, copy, fromBase64, safeLink } from "./format";
import { Exact, isObject, pretty } from "./json";
import { Link, Markdown } from "./markdown";
import { isRepeated } from "./questions";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const SOUNDS = new Set(["audio/mpeg", "audio/mp3", "audio/wav", "audio/x-wav", "audio/ogg", "audio/webm", "audio/aac", "audio/mp4", "audio/flac"]);
const ROWS_AT_ONCE = 100;

export function Parts({ parts, isLive = false }: { parts: Part[]; isLive?: boolean }): ComponentChild {
  // Data that only repeats the text is for programs.
  const shown = parts.some((part) => part.text) ? parts.filter((part) => !isRepeated(part)) : parts;
  return (
    <>
      {shown.map((part, index) => (
        <PartView key={index} part={part} isLive={isLive} />
      ))}
    </>
  );
}

function PartView({ part, isLive }: { part: Part; isLive: boolean }): ComponentChild {
  if (part.text !== undefined) return <TextPart part={part} />;
  if (part.raw !== undefined) return <FilePart part={part} />;
  if (part.url !== undefined) return <LinkedFile part={part} />;
  return <DataView value={part.data} isLive={isLive} />;
}

function TextPart({ part }: { part: Part }): ComponentChild {
  const type = part.mediaType ?? "";
  if (type === "application/json" || type.endsWith("+json")) {
    try {
      return <DataView value={JSON.parse(part.text!)} isLive={false} />;
    } catch {
      // not JSON: shown as text
    }
  }
  if (type && type !== "text/plain" && type !== "text/markdown") return <pre class="code" tabIndex={0}>{part.text}</pre>;
  return <Markdown source={part.text!} />;
}

// ---- files ----------------------------------------------------------------------------------------------------------

function FilePart({ part }: { part: Part }): ComponentChild {
  const content = useMemo(() => fromBase64(part.raw!), [part.raw]);
  const type = (part.mediaType ?? "").split(";")[0]!.trim().toLowerCase();
  const name = part.filename || "file";
  const url = useBlob(content, PICTURES.has(type) || SOUNDS.has(type) ? type : "");
  if (!content) return <p class="complaint">The file {name} is not readable: its bytes are not base64.</p>;
  return (
    <figure class="file">
      {url && PICTURES.has(type) && <img src={url} alt={name} />}
      {url && SOUNDS.has(type) && <audio controls src={url} aria-label={name} />}
      <figcaption>
        <span class="filename">{name}</span>
        <span class="dim">
          {type || "unknown type"} · {bytes(content.length)}
        </span>
        <button type="button" class="small" onClick={() => download(content, name)}>
          Download
        </button>
      </figcaption>
    </figure>
  );
}

function useBlob(content: Uint8Array<ArrayBuffer> | null, type: string): string {
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!content || !type) return;
    const made = URL.createObjectURL(new Blob([content], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [content, type]);
  return url;
}

export function download(content: Uint8Array<ArrayBuffer> | string, name: string): void {
  // As bytes without a media type: the browser saves the file, and never executes it here.
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.\- ()]+/g, "_").slice(0, 120) || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function LinkedFile({ part }: { part: Part }): ComponentChild {
  const href = safeLink(part.url!);
  return (
    <figure class="file">
      <figcaption>
        <span class="filename">{part.filename || "File elsewhere"}</span>
        <span class="dim">{part.mediaType}</span>
        {href ? <Link href={href}>{part.url}</Link> : <code>{part.url!.slice(0, 300)}</code>}
      </figcaption>
    </figure>
  );
}

// ---- data -----------------------------------------------------------------------------------------------------------

type View = "nice" | "json";

export function DataView({ value, isLive }: { value: unknown; isLive: boolean }): ComponentChild {
  const [view, setView] = useState<View>("nice");
  const isComposite = isObject(value) || Array.isArray(value);
  return (
    <div class="data">
      {view === "nice" ? <Nice value={value} isLive={isLive} /> : <pre class="code" tabIndex={0}>{pretty(value).slice(0, 200_000)}</pre>}
      {isComposite && (
        <div class="data-tools">
          <button type="button" class="link" aria-pressed={view === "json"} onClick={() => setView(view === "json" ? "nice" : "json")}>
            {view === "json" ? "Rendered" : "JSON"}
          </button>
          <CopyButton text={() => pretty(value)} label="Copy" />
        </div>
      )}
    </div>
  );
}

function Nice({ value, isLive }: { value: unknown; isLive: boolean }): ComponentChild {
  const progress = isObject(value) ? progressOf(value) : null;
  if (isTable(value)) return <Table rows={value} />;
  if (isObject(value)) {
    const entries = Object.entries(value);
    const [only] = entries;
    if (entries.length === 1 && only && typeof only[1] === "string") {
      return (
        <div>
          <span class="key">{only[0]}</span>
          <Markdown source={only[1]} />
        </div>
      );
    }
    return (
      <>
        {progress !== null && <Progress value={progress} isLive={isLive} />}
        {entries.length <= 30 && entries.every(([, each]) => isShort(each)) ? (
          <dl class="record">
            {entries.map(([name, each]) => (
              <div>
                <dt>{name}</dt>
                <dd>
                  {Array.isArray(each) ? each.map(String).join(", ") || "—" : <Leaf value={each} />}
                </dd>
              </div>
            ))}
          </dl>
        ) : (
          <Tree value={value} />
        )}
      </>
    );
  }
  return <Tree value={value} />;
}

/** Whether a value fits on one line of a record: not nested, except for a few numbers or words. */
function isShort(value: unknown): boolean {
  if (!Array.isArray(value)) return !isObject(value);
  return value.length <= 40 && value.every((item) => !isObject(item) && !Array.isArray(item)) && JSON.stringify(value).length < 300;
}

/** The progress from 0 to 1, if a record contains it in a common form. */
export function progressOf(value: Record<string, unknown>): number | null {
  const number = (name: string): number | null => (typeof value[name] === "number" ? (value[name] as number) : null);
  const percent = number("percent") ?? number("percentage");
  if (percent !== null) return clamp(percent / 100);
  const progress = number("progress");
  if (progress !== null) return clamp(progress > 1 ? progress / 100 : progress);
  const done = number("step") ?? number("current") ?? number("done");
  const all = number("steps") ?? number("total");
  return done !== null && all ? clamp(done / all) : null;
}
const clamp = (share: number): number => Math.min(1, Math.max(0, share));

export function Progress({ value, isLive }: { value: number; isLive: boolean }): ComponentChild {
  const percent = Math.round(value * 100);
  return (
    <div class={`progress ${isLive && value < 1 ? "moving" : ""}`}>
      <progress max={100} value={percent} aria-label="Progress" />
      <span>{percent} %</span>
    </div>
  );
}

function isTable(value: unknown): value is Record<string, unknown>[] {
  if (!Array.isArray(value) || value.length < 2 || !value.every(isObject)) return false;
  const names = Object.keys(value[0]!);
  if (!names.length || names.length > 20) return false;
  return value.slice(0, 50).every((row) => Object.keys(row).every((name) => names.includes(name)));
}

function Table({ rows }: { rows: Record<string, unknown>[] }): ComponentChild {
  const [shown, setShown] = useState(ROWS_AT_ONCE);
  const names = Object.keys(rows[0]!);
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{names.map((name) => <th>{name}</th>)}</tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => (
            <tr>
              {names.map((name) => (
                <td>{isObject(row[name]) || Array.isArray(row[name]) ? <code>{JSON.stringify(row[name])}</code> : <Leaf value={row[name]} />}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <button type="button" class="link" onClick={() => setShown(shown + 10 * ROWS_AT_ONCE)}>
          {rows.length - shown} rows more
        </button>
      )}
    </div>
  );
}

export function Tree({ value, name, depth = 0 }: { value: unknown; name?: string; depth?: number }): ComponentChild {
  const [isOpen, setOpen] = useState(depth < 2);
  const [shown, setShown] = useState(ROWS_AT_ONCE);
  const label = name !== undefined && <span class="key">{name}</span>;
  if (!isObject(value) && !Array.isArray(value)) {
    return (
      <div class="leaf">
        {label}
        <Leaf value={value} />
      </div>
    );
  }
  const entries = Array.isArray(value) ? value.map((item, index): [string, unknown] => [String(index), item]) : Object.entries(value);
  const summary = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return (
    <div class="tree">
      <button type="button" class="twist" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {label}
        <span class="dim">{summary}</span>
      </button>
      {isOpen && (
        <div class="branch">
          {entries.slice(0, shown).map(([key, item]) => (
            <Tree key={key} name={key} value={item} depth={depth + 1} />
          ))}
          {entries.length > shown && (
            <button type="button" class="link" onClick={() => setShown(shown + 10 * ROWS_AT_ONCE)}>
              {entries.length - shown} more
            </button>
          )}
        </div>
      )}
    </div>
  );
}

export function Leaf({ value }: { value: unknown }): ComponentChild {
  if (value instanceof Exact) return <span class="v-number">{value.source}</span>;
  switch (typeof value) {
    case "string":
      return <span class="v-string">{value.length > 20_000 ? `${value.slice(0, 20_000)}…` : value}</span>;
    case "number":
      return <span class="v-number">{String(value)}</span>;
    case "boolean":
      return <span class="v-boolean">{String(value)}</span>;
  }
  return <span class="dim">{value === null ? "null" : value === undefined ? "" : String(value)}</span>;
}

export function CopyButton({ text, label = "Copy", class: name = "link" }: { text: () => string; label?: string; class?: string }): ComponentChild {
  const [said, setSaid] = useState("");
  const onClick = async (): Promise<void> => {
    setSaid((await copy(text())) ? "Copied" : "Not allowed");
    setTimeout(() => setSaid(""), 1500);
  };
  return (
    <button type="button" class={name} onClick={() => void onClick()}>
      {said || label}
    </button>
  );
}
