// Markdown as nodes, never as HTML: an agent's text can be bold or a list, but cannot contain elements. Every piece of
// text is scanned a bounded number of times, so no text can block the page.
import type { ComponentChild, ComponentChildren } from "preact";
import { Component } from "preact";
import { safeLink } from "./format";

const MAX_SHOWN = 200_000; // characters; longer text is offered as a file
const MAX_NESTING = 6;

export function Markdown({ source }: { source: string }): ComponentChild {
  const cut = source.length > MAX_SHOWN;
  const blocks = splitBlocks(cut ? source.slice(0, MAX_SHOWN) : source);
  return (
    <div class="markdown">
      {blocks.map((block, index) => (
        <Block key={index} source={block} />
      ))}
      {cut && <p class="dim">… {(source.length - MAX_SHOWN).toLocaleString("en")} characters more; copy or download to see them all.</p>}
    </div>
  );
}

/** Rendered again only if its own text changes: in growing text, that is the last block. */
class Block extends Component<{ source: string }> {
  override shouldComponentUpdate(next: { source: string }): boolean {
    return next.source !== this.props.source;
  }
  override render(): ComponentChild {
    return <>{renderBlocks(this.props.source.split("\n"), 0)}</>;
  }
}

/** Split text at empty lines. A fenced block keeps its empty lines. */
function splitBlocks(source: string): string[] {
  const blocks: string[] = [];
  let lines: string[] = [];
  let fence = "";
  for (const line of source.split("\n")) {
    const mark = /^\s{0,3}(```+|~~~+)/.exec(line)?.[1] ?? "";
    if (fence) {
      if (mark && mark.startsWith(fence)) fence = "";
    } else if (mark) fence = mark;
    if (!fence && !line.trim() && !mark) {
      if (lines.length) blocks.push(lines.join("\n"));
      lines = [];
    } else lines.push(line);
  }
  if (lines.length) blocks.push(lines.join("\n"));
  return blocks;
}

const BULLET = /^(\s{0,8})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;

function renderBlocks(lines: string[], depth: number): ComponentChild[] {
  const out: ComponentChild[] = [];
  let index = 0;
  let words: string[] = [];
  const flush = (): void => {
    if (words.length) out.push(<p>{withBreaks(words)}</p>);
    words = [];
  };
  while (index < lines.length) {
    const line = lines[index]!;
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (heading) {
      flush();
      const Tag = `h${Math.min(6, heading[1]!.length + 2)}` as "h3";
      out.push(<Tag>{inline(heading[2]!.replace(/\s#+\s*$/, ""))}</Tag>);
      index++;
    } else if (fence) {
      flush();
      let end = index + 1;
      while (end < lines.length && !lines[end]!.trim().startsWith(fence[1]!)) end++;
      out.push(<pre class="code" tabIndex={0}>{lines.slice(index + 1, end).join("\n")}</pre>);
      index = end + 1;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push(<hr />);
      index++;
    } else if (line.startsWith(">") && depth < MAX_NESTING) {
      flush();
      let end = index;
      while (end < lines.length && lines[end]!.startsWith(">")) end++;
      out.push(<blockquote>{renderBlocks(lines.slice(index, end).map((each) => each.replace(/^>\s?/, "")), depth + 1)}</blockquote>);
      index = end;
    } else if (BULLET.test(line) && depth < MAX_NESTING) {
      flush();
      index = takeList(lines, index, depth, out);
    } else if (line.includes("|") && TABLE_RULE.test(lines[index + 1] ?? "")) {
      flush();
      index = takeTable(lines, index, out);
    } else {
      words.push(line);
      index++;
    }
  }
  flush();
  return out;
}

function takeList(lines: string[], start: number, depth: number, out: ComponentChild[]): number {
  const first = BULLET.exec(lines[start]!)!;
  const indent = first[1]!.length;
  const isOrdered = /\d/.test(first[2]!);
  const items: string[][] = [];
  let index = start;
  while (index < lines.length) {
    const bullet = BULLET.exec(lines[index]!);
    if (bullet && bullet[1]!.length <= indent + 1 && /\d/.test(bullet[2]!) === isOrdered) items.push([bullet[3]!]);
    else if (items.length && /^\s{2,}/.test(lines[index]!)) items.at(-1)!.push(lines[index]!.slice(Math.min(indent + 2, 4)));
    else if (items.length && !bullet && lines[index]!.trim()) items.at(-1)!.push(lines[index]!);
    else break;
    index++;
  }
  const content = items.map((item) => <li>{item.length === 1 ? inline(item[0]!) : renderItem(item, depth)}</li>);
  out.push(isOrdered ? <ol start={Number.parseInt(first[2]!, 10)}>{content}</ol> : <ul>{content}</ul>);
  return index;
}

const renderItem = (item: string[], depth: number): ComponentChildren => [inline(item[0]!), ...renderBlocks(item.slice(1), depth + 1)];

function takeTable(lines: string[], start: number, out: ComponentChild[]): number {
  const cells = (line: string): string[] => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = cells(lines[start]!);
  const rows: string[][] = [];
  let index = start + 2;
  while (index < lines.length && lines[index]!.includes("|")) rows.push(cells(lines[index++]!));
  out.push(
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{head.map((cell) => <th>{inline(cell)}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>{head.map((_, column) => <td>{inline(row[column] ?? "")}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>,
  );
  return index;
}

function withBreaks(lines: string[]): ComponentChildren {
  const out: ComponentChild[] = [];
  lines.forEach((line, index) => {
    if (index) out.push(<br />);
    out.push(...inline(line.trimEnd()));
  });
  return out;
}

// Inline marks, longer ones first.
const MARKS: [string, (content: ComponentChild[]) => ComponentChild][] = [
  ["**", (content) => <strong>{content}</strong>],
  ["__", (content) => <strong>{content}</strong>],
  ["~~", (content) => <del>{content}</del>],
  ["*", (content) => <em>{content}</em>],
  ["_", (content) => <em>{content}</em>],
];
const SPECIAL = /[`*_~[!\\<h]/g;

export function inline(source: string, depth = 0): ComponentChild[] {
  const out: ComponentChild[] = [];
  let plain = 0;
  let index = 0;
  let misses = 0; // unclosed opening marks: each costs one search to the end of the line
  const put = (from: number, node: ComponentChild, next: number): void => {
    if (from > plain) out.push(source.slice(plain, from));
    out.push(node);
    plain = index = next;
  };
  while (index < source.length) {
    SPECIAL.lastIndex = index;
    const found = SPECIAL.exec(source);
    if (!found || misses > 100) break;
    index = found.index;
    const taken = takeInline(source, index, depth);
    if (taken) put(index, taken.node, taken.next);
    else {
      misses++;
      if (source[index] === "h") misses--;
      index++;
    }
  }
  if (plain < source.length) out.push(source.slice(plain));
  return out;
}

function takeInline(source: string, index: number, depth: number): { node: ComponentChild; next: number } | null {
  switch (source[index]) {
    case "\\":
      return /[\\`*_{}[\]()#+\-.!~|>]/.test(source[index + 1] ?? "") ? { node: source[index + 1]!, next: index + 2 } : null;
    case "`":
      return takeCode(source, index);
    case "!":
      return source[index + 1] === "[" ? takeLink(source, index + 1, depth) : null; // external pictures become links
    case "[":
      return takeLink(source, index, depth);
    case "<":
    case "h":
      return takeAddress(source, index);
  }
  if (depth >= MAX_NESTING) return null;
  for (const [mark, wrap] of MARKS) {
    if (!source.startsWith(mark, index)) continue;
    if (mark.startsWith("_") && /\w/.test(source[index - 1] ?? "")) return null; // snake_case is not emphasis
    const from = index + mark.length;
    const end = source.indexOf(mark, from + 1);
    if (end < 0 || /\s/.test(source[from] ?? " ")) continue;
    return { node: wrap(inline(source.slice(from, end), depth + 1)), next: end + mark.length };
  }
  return null;
}

function takeCode(source: string, index: number): { node: ComponentChild; next: number } | null {
  const ticks = /^`+/.exec(source.slice(index, index + 8))![0];
  const end = source.indexOf(ticks, index + ticks.length);
  if (end < 0) return null;
  return { node: <code>{source.slice(index + ticks.length, end).trim()}</code>, next: end + ticks.length };
}

function takeLink(source: string, index: number, depth: number): { node: ComponentChild; next: number } | null {
  const middle = source.indexOf("](", index);
  const end = middle < 0 ? -1 : source.indexOf(")", middle);
  if (end < 0 || depth >= MAX_NESTING) return null;
  const label = source.slice(index + 1, middle);
  const address = source.slice(middle + 2, end).trim().split(/\s/)[0] ?? "";
  const href = safeLink(address);
  const content = label.includes("](") ? label : inline(label || address, depth + 1);
  if (!href) return { node: <span>{content}</span>, next: end + 1 };
  return { node: <Link href={href}>{content}</Link>, next: end + 1 };
}

function takeAddress(source: string, index: number): { node: ComponentChild; next: number } | null {
  const isQuoted = source[index] === "<";
  const from = isQuoted ? index + 1 : index;
  if (!source.startsWith("http://", from) && !source.startsWith("https://", from)) return null;
  const address = /^https?:\/\/[^\s<>"'`]{1,2000}/.exec(source.slice(from, from + 2010))?.[0].replace(/[.,;:!?)\]]+$/, "") ?? "";
  const href = safeLink(address);
  if (!href) return null;
  const next = from + address.length;
  return { node: <Link href={href}>{address}</Link>, next: isQuoted && source[next] === ">" ? next + 1 : next };
}

export function Link({ href, children }: { href: string; children?: ComponentChildren }): ComponentChild {
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
