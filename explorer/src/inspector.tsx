// The right pane: the timeline of a run, the wire, the card, the call as code, webhooks, health.
import type { ComponentChild } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { encodeSend, LABELS, type Operation } from "./a2a";
import * as agent from "./agent";
import * as app from "./app";
import { checkCard, type Card } from "./card";
import { LANGUAGES, write, type Language } from "./code";
import { CopyButton, download, Tree } from "./content";
import { bytes, clock, duration, plural, safeLink, shortId } from "./format";
import { HealthTab } from "./health";
import { Icon } from "./icons";
import { parse, pretty, record, text } from "./json";
import { Link } from "./markdown";
import { useNow } from "./now";
import type { Run } from "./run";
import { VirtualList } from "./virtual";
import { WebhooksTab } from "./webhooks";
import { exchanges, forgetWire, readText, start, wireTick, type Exchange, type Frame } from "./wire";

const TABS: [app.Tab, string][] = [
  ["timeline", "Timeline"],
  ["wire", "Wire"],
  ["card", "Card"],
  ["code", "Code"],
  ["webhooks", "Webhooks"],
  ["health", "Health"],
];

export function Inspector(): ComponentChild {
  const tab = app.tab.value;
  const move = (event: KeyboardEvent): void => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = TABS.findIndex(([name]) => name === tab);
    app.tab.value = TABS[(at + by + TABS.length) % TABS.length]![0];
    document.getElementById(`tab-${app.tab.value}`)?.focus();
  };
  return (
    <aside class={`pane right ${app.pane.value === "right" ? "shown" : ""}`} aria-label="Inspector">
      <div class="tabs" role="tablist" aria-label="Inspector" onKeyDown={move}>
        {TABS.map(([name, title]) => (
          <button
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={tab === name}
            aria-controls="tab-panel"
            tabIndex={tab === name ? 0 : -1}
            onClick={() => void (app.tab.value = name)}
          >
            {title}
          </button>
        ))}
      </div>
      <div class={`tab-panel for-${tab}`} role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {tab === "timeline" && <Timeline />}
        {tab === "wire" && <Wire />}
        {tab === "card" && <CardTab />}
        {tab === "code" && <Code />}
        {tab === "webhooks" && <WebhooksTab />}
        {tab === "health" && <HealthTab />}
      </div>
    </aside>
  );
}

// ---- timeline -------------------------------------------------------------------------------------------------------

function Timeline(): ComponentChild {
  const run = app.selectedRun.value;
  if (!run) return <p class="empty">Send a message, or open a task, to see its timeline.</p>;
  return <RunTimeline key={run.number} run={run} />;
}

interface Lane {
  name: string;
  detail: string;
  from: number;
  to: number;
  kind: string;
  isOpen: boolean;
}

function RunTimeline({ run }: { run: Run }): ComponentChild {
  void run.tick.value;
  const now = useNow(100, run.isLive);
  const start_ = Math.min(run.startedAt, ...run.spans.map((span) => span.from));
  const lastKnown = Math.max(start_, ...run.spans.map((span) => span.to ?? span.from), ...[...run.artifactSpans.values(), ...run.tools.values()].map((span) => span.to ?? span.from));
  const end = run.isLive ? Math.max(now, lastKnown) : Math.max(lastKnown, run.isOpened ? 0 : (run.endedAt ?? 0));
  const all = Math.max(1, end - start_);
  const lanes: Lane[] = [];
  const first = run.spans[0];
  if (!run.isOpened) lanes.push({ name: "connecting", detail: "", from: run.startedAt, to: first?.from ?? end, kind: "connecting", isOpen: !first });
  for (const span of run.spans) {
    lanes.push({ name: LABELS[span.state], detail: "", from: span.from, to: span.to ?? end, kind: `s-${span.state}`, isOpen: span.to === null && run.isLive });
  }
  for (const tool of run.tools.values()) {
    const args = tool.args === undefined ? "" : JSON.stringify(tool.args);
    lanes.push({ name: tool.name, detail: args.length > 60 ? `${args.slice(0, 59)}…` : args, from: tool.from, to: tool.to ?? end, kind: "tool", isOpen: tool.to === null && run.isLive });
  }
  for (const span of run.artifactSpans.values()) {
    const size = span.size ? `, ${bytes(span.size)}` : "";
    lanes.push({ name: span.name, detail: `${plural(span.chunks, "chunk")}${size}`, from: span.from, to: span.to, kind: "chunks", isOpen: run.isLive && !span.isDone });
  }
  return (
    <div class="timeline">
      <dl class="facts-list">
        <div>
          <dt>Message</dt>
          <dd>
            <span class="words" title={run.title}>
              {run.title || "—"}
            </span>
          </dd>
        </div>
        <div>
          <dt>Task</dt>
          <dd>
            {run.taskId ? (
              <>
                <code title={run.taskId}>{shortId(run.taskId)}</code> <CopyButton text={() => run.taskId} label="Copy id" />
              </>
            ) : (
              "none"
            )}
          </dd>
        </div>
        {run.trace && !run.isOpened && (
          <div>
            <dt>Trace</dt>
            <dd>
              <a href={agent.traceUrl(run.trace)} target="_blank" rel="noreferrer">
                <code>{run.trace}</code>
              </a>
            </dd>
          </div>
        )}
        <div>
          <dt>State</dt>
          <dd>
            <span class={`state-name s-${run.state}`}>{run.phase === "refused" ? "refused" : LABELS[run.state]}</span>
          </dd>
        </div>
        <div>
          <dt>Events</dt>
          <dd>
            {run.events.toLocaleString("en")}
            {run.lastEventId && <span class="dim"> · last id {run.lastEventId}</span>}
          </dd>
        </div>
        <div>
          <dt>Took</dt>
          <dd>{duration(all)}</dd>
        </div>
        {usageOf(run) && (
          <div>
            <dt>Model</dt>
            <dd>{usageOf(run)}</dd>
          </div>
        )}
      </dl>
      <ol class="lanes">
        {lanes.map((lane) => (
          <li class="lane">
            <span class="lane-name">
              {lane.name} {lane.detail && <span class="dim">{lane.detail}</span>}
            </span>
            <span class="lane-time">
              +{duration(Math.max(0, lane.from - start_))}
              {lane.to > lane.from ? <span class="dim"> for {duration(lane.to - lane.from)}</span> : ""}
            </span>
            <span class="track" aria-hidden="true">
              <span
                class={`bar-of ${lane.kind} ${lane.isOpen ? "open" : ""}`}
                style={{ left: `${Math.min(99.2, ((lane.from - start_) / all) * 100)}%`, width: `${Math.max(0.6, ((lane.to - lane.from) / all) * 100)}%` }}
              />
            </span>
          </li>
        ))}
      </ol>
      {run.resumed && <p class="resumed">{run.resumed}.</p>}
    </div>
  );
}

/** The use of models, if the agent reports it in the metadata of the task. */
function usageOf(run: Run): string {
  const usage = record(run.metadata["apcore.usage"]);
  const names: Record<string, string> = { requests: "requests", inputTokens: "tokens in", outputTokens: "tokens out" };
  const found = Object.entries(names).filter(([name]) => typeof usage[name] === "number");
  return found.map(([name, label]) => `${Number(usage[name]).toLocaleString("en")} ${label}`).join(", ");
}

// ---- wire -----------------------------------------------------------------------------------------------------------

interface WireRow {
  key: string;
  exchange: Exchange;
  frame: Frame | null;
}

function Wire(): ComponentChild {
  void wireTick.value;
  const [shows, setShows] = useState({ polls: false });
  const [chosen, setChosen] = useState<string>("");
  const [words, setWords] = useState("");
  const rows: WireRow[] = [];
  const wanted = words.trim().toLowerCase();
  for (const exchange of exchanges) {
    if (exchange.quiet && !shows.polls) continue;
    const isFound = !wanted || contentOf(exchange).includes(wanted);
    const frames = exchange.frames.map((frame, index) => ({ key: `${exchange.number}.${index}`, exchange, frame }));
    const found = frames.filter((row) => !wanted || row.frame.data.toLowerCase().includes(wanted));
    if (isFound || found.length) rows.push({ key: `${exchange.number}`, exchange, frame: null });
    rows.push(...found);
  }
  const selected = rows.find((row) => row.key === chosen);
  return (
    <div class="wire">
      <div class="wire-tools">
        <span class="dim">{plural(rows.length, "entry").replace("entrys", "entries")}</span>
        <label class="check">
          <input type="checkbox" checked={shows.polls} onChange={(event) => setShows({ polls: event.currentTarget.checked })} /> show the page's own polling
        </label>
        <span class="grow" />
        <button type="button" class="link" onClick={() => download(pretty(exchanges), "wire.json")}>
          Export
        </button>
        <button type="button" class="link" onClick={forgetWire}>
          Clear
        </button>
        <input type="search" placeholder="Search headers and bodies" aria-label="Search the wire" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
      </div>
      {!rows.length && <p class="empty">{wanted ? "No entry contains that." : "Nothing was sent yet."}</p>}
      <VirtualList items={rows} rowHeight={28} label="Requests, answers and frames" keyOf={(row) => row.key} sticks={!chosen} shown={selected ? rows.indexOf(selected) : -1} class="wire-list">
        {(row) => <WireRowView row={row} isChosen={row.key === chosen} onChoose={() => setChosen(row.key)} />}
      </VirtualList>
      {selected && <WireDetail key={selected.key} row={selected} onClose={() => setChosen("")} />}
    </div>
  );
}

function contentOf(exchange: Exchange): string {
  const headers = [...exchange.requestHeaders, ...exchange.responseHeaders].map((pair) => pair.join(": "));
  return [exchange.label, exchange.url, exchange.requestBody, exchange.responseBody, ...headers].join("\n").toLowerCase();
}

function WireRowView({ row, isChosen, onChoose }: { row: WireRow; isChosen: boolean; onChoose: () => void }): ComponentChild {
  const { exchange, frame } = row;
  if (frame) {
    return (
      <button type="button" class="wire-row frame" aria-pressed={isChosen} onClick={onChoose}>
        <span class="dim wire-id" title={`event ${frame.id}`}>
          event {frame.id}
        </span>
        <span class="wire-what">{kindOf(frame.data)}</span>
        <span class="dim">{bytes(frame.size)}</span>
        <span class="dim">+{duration(frame.at)}</span>
      </button>
    );
  }
  const isBad = exchange.failure !== "" || exchange.status >= 400;
  return (
    <button type="button" class="wire-row" aria-pressed={isChosen} onClick={onChoose}>
      <span class={isBad ? "bad" : "good"}>{exchange.status || (exchange.failure ? "✕" : "…")}</span>
      <span class="wire-what">{exchange.label}</span>
      <span class="dim">{bytes(exchange.size)}</span>
      <span class="dim">{exchange.ms === null ? "open" : duration(exchange.ms)}</span>
    </button>
  );
}

const KINDS: [RegExp, string][] = [
  [/"error"\s*:/, "error"],
  [/"artifactUpdate"|"artifact-update"/, "artifact"],
  [/"statusUpdate"|"status-update"/, "status"],
  [/"task"\s*:|"kind":"task"/, "task"],
  [/"message"/, "message"],
];

function kindOf(data: string): string {
  const head = data.slice(0, 400);
  const kind = KINDS.find(([pattern]) => pattern.test(head))?.[1] ?? KINDS.find(([pattern]) => pattern.test(data.slice(-200)))?.[1] ?? "event";
  const state = /"state":"(?:TASK_STATE_)?([\w-]+)"/.exec(data)?.[1];
  return kind === "status" && state ? `status ${state.toLowerCase().replaceAll("_", "-")}` : kind;
}

function WireDetail({ row, onClose }: { row: WireRow; onClose: () => void }): ComponentChild {
  const { exchange, frame } = row;
  const [answer, setAnswer] = useState("");
  const replay = async (): Promise<void> => {
    setAnswer("sending…");
    try {
      const given: Record<string, string> = { ...agent.headers() };
      for (const [name, value] of exchange.requestHeaders) if (!value.includes("•")) given[name] = value;
      const body = exchange.requestBody;
      const sent = await start({ label: `${exchange.label} (replay)`, method: exchange.method, url: exchange.url, headers: given, ...(body ? { body } : {}) });
      setAnswer(`HTTP ${sent.response.status}, ${bytes((await readText(sent)).length)}: see the last entry of the list`);
    } catch (error) {
      setAnswer(error instanceof Error ? error.message : "failed");
    }
  };
  const close = (
    <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
      <Icon name="close" />
    </button>
  );
  if (frame) {
    return (
      <section class="wire-detail" aria-label="Event">
        <div class="row">
          <strong>Event {frame.id}</strong>
          <CopyButton text={() => frame.data} />
          <span class="grow" />
          {close}
        </div>
        <Body source={frame.data} />
      </section>
    );
  }
  return (
    <section class="wire-detail" aria-label="Request and answer">
      <div class="row">
        <strong>
          {exchange.method} <code>{new URL(exchange.url).pathname}</code>
        </strong>
        <span class="dim">{clock(exchange.at)}</span>
        <span class="grow" />
        {exchange.isWhole && (
          <button type="button" class="small" onClick={() => void replay()}>
            Replay
          </button>
        )}
        {close}
      </div>
      {answer && <p class="dim">{answer}</p>}
      <h4>Request</h4>
      <Headers pairs={exchange.requestHeaders} />
      {exchange.requestBody && <Body source={exchange.requestBody} />}
      <h4>Answer {exchange.status || ""}</h4>
      {exchange.failure && <p class="complaint">{exchange.failure}</p>}
      <Headers pairs={exchange.responseHeaders} />
      {exchange.responseBody && <Body source={exchange.responseBody} />}
      {exchange.frames.length > 0 && <p class="dim">{plural(exchange.frames.length, "event")} followed.</p>}
    </section>
  );
}

function Headers({ pairs }: { pairs: [string, string][] }): ComponentChild {
  if (!pairs.length) return null;
  return (
    <dl class="headers">
      {pairs.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Body({ source }: { source: string }): ComponentChild {
  const shown = useMemo(() => {
    try {
      return pretty(parse(source));
    } catch {
      return source;
    }
  }, [source]);
  return <pre class="code" tabIndex={0}>{shown.length > 100_000 ? `${shown.slice(0, 100_000)}…` : shown}</pre>;
}

// ---- card -----------------------------------------------------------------------------------------------------------

function CardTab(): ComponentChild {
  const open = agent.publicCard.value;
  const extended = agent.extendedCard.value;
  const [view, setView] = useState<"rendered" | "raw">("rendered");
  if (!open) return <p class="empty">{agent.cardFailure.value || "The card is not loaded yet."}</p>;
  return (
    <div class="card-tab">
      <div class="row">
        <div class="switch" role="group" aria-label="How to show the card">
          <button type="button" aria-pressed={view === "rendered"} onClick={() => setView("rendered")}>
            Rendered
          </button>
          <button type="button" aria-pressed={view === "raw"} onClick={() => setView("raw")}>
            Raw
          </button>
        </div>
        <span class="grow" />
        <CopyButton text={() => pretty((extended ?? open).raw)} />
      </div>
      <Findings card={open} />
      {view === "raw" ? (
        <div class={extended ? "two" : ""}>
          <section aria-label="Public card">
            {extended && <h4>Public</h4>}
            <pre class="code" tabIndex={0}>{pretty(open.raw).slice(0, 300_000)}</pre>
          </section>
          {extended && (
            <section aria-label="Extended card">
              <h4>Extended</h4>
              <pre class="code" tabIndex={0}>{pretty(extended.raw).slice(0, 300_000)}</pre>
            </section>
          )}
        </div>
      ) : (
        <RenderedCard card={open} extended={extended} />
      )}
    </div>
  );
}

function Findings({ card }: { card: Card }): ComponentChild {
  const findings = useMemo(() => checkCard(card.raw), [card]);
  if (!findings.length) {
    return (
      <p class="banner good">
        <Icon name="check" /> The card meets the requirements of the specification.
      </p>
    );
  }
  return (
    <ul class="findings" aria-label="Problems of the card">
      {findings.map((finding) => (
        <li class={finding.level}>
          <code>{finding.pointer || "/"}</code> {finding.message}
        </li>
      ))}
    </ul>
  );
}

function RenderedCard({ card, extended }: { card: Card; extended: Card | null }): ComponentChild {
  const known = new Set(card.skills.map((skill) => skill.id));
  const gated = (extended?.skills ?? []).filter((skill) => !known.has(skill.id));
  const href = safeLink(card.documentation);
  return (
    <>
      <dl class="facts-list">
        <Fact name="Name">{card.name}</Fact>
        <Fact name="Version">{card.version}</Fact>
        <Fact name="Description">{card.description}</Fact>
        {card.provider && <Fact name="Provider">{card.provider}</Fact>}
        {href && (
          <Fact name="Documentation">
            <Link href={href}>{card.documentation}</Link>
          </Fact>
        )}
        <Fact name="Streaming">{card.streaming ? "yes" : "no"}</Fact>
        <Fact name="Webhooks">{card.push ? "yes" : "no"}</Fact>
        <Fact name="Extended card">
          {card.extended ? (extended ? `shown: ${plural(extended.skills.length, "skill")}` : agent.extendedFailure.value || "available with credentials") : "none"}
        </Fact>
        <Fact name="Security">{card.schemes.map((scheme) => `${scheme.name}: ${scheme.kind}`).join(", ") || "no authentication"}</Fact>
        <Fact name="Signature">
          <Signatures card={extended ?? card} />
        </Fact>
      </dl>
      <h4>Interfaces</h4>
      <ul class="plain">
        {card.interfaces.map((item) => (
          <li>
            <span class="tag">{item.binding}</span> <span class="tag">{item.version}</span> <code>{item.url}</code>
          </li>
        ))}
      </ul>
      <h4>{plural(card.skills.length, "skill")}</h4>
      <ul class="plain">
        {card.skills.map((skill) => (
          <li>
            <code>{skill.id}</code> {skill.description}
          </li>
        ))}
        {gated.map((skill) => (
          <li>
            <code>{skill.id}</code> <span class="badge approval">extended only</span> {skill.description}
          </li>
        ))}
      </ul>
      {card.extensions.length > 0 && <h4>Extensions</h4>}
      <ul class="plain">
        {card.extensions.map((extension) => (
          <li>
            <code>{extension.uri}</code> {extension.required && <span class="badge">required</span>} {extension.description}
          </li>
        ))}
      </ul>
      {extended && (
        <details>
          <summary>Extended card as a tree</summary>
          <Tree value={extended.raw} />
        </details>
      )}
    </>
  );
}

function Fact({ name, children }: { name: string; children?: ComponentChild | ComponentChild[] }): ComponentChild {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Signatures({ card }: { card: Card }): ComponentChild {
  if (!card.signatures.length) return <>not signed</>;
  return (
    <>
      {card.signatures.map((signature) => {
        let head: Record<string, unknown> = {};
        try {
          head = JSON.parse(atob(text(signature["protected"]).replaceAll("-", "+").replaceAll("_", "/")));
        } catch {
          // shown as unreadable below
        }
        return (
          <p>
            {text(head["alg"]) || "unreadable"} {head["kid"] ? `by key ${String(head["kid"])}` : ""}
          </p>
        );
      })}
      <p class="dim">
        Not verified here: a page has no keys that it could trust. <code>apcore-a2a card {agent.ADDRESS} --keys FILE</code> does it.
      </p>
    </>
  );
}

// ---- code -----------------------------------------------------------------------------------------------------------

function Code(): ComponentChild {
  const [language, setLanguage] = useState<Language>("curl");
  const run = app.selectedRun.value;
  void run?.tick.value;
  const [which, setWhich] = useState<"draft" | "run">(run ? "run" : "draft");
  useEffect(() => setWhich(run ? "run" : "draft"), [run]);
  const call = which === "run" && run?.request ? run.request : which === "run" && run?.taskId ? { operation: "get" as Operation, params: { id: run.taskId } } : draftCall();
  if (!call) return <p class="empty">Choose a skill, and its call is shown here as code.</p>;
  const source = write(language, { address: agent.ADDRESS, version: agent.version.value, credentials: agent.credentials.value, ...call });
  return (
    <div class="code-tab">
      <div class="row">
        <div class="switch" role="group" aria-label="Language">
          {LANGUAGES.map((each) => (
            <button type="button" aria-pressed={each === language} onClick={() => setLanguage(each)}>
              {each}
            </button>
          ))}
        </div>
      </div>
      <div class="row">
        {run && (
          <label class="check">
            <input type="checkbox" checked={which === "run"} onChange={(event) => setWhich(event.currentTarget.checked ? "run" : "draft")} /> show the selected run instead of the draft
          </label>
        )}
        <span class="grow" />
        <CopyButton text={() => source} label="Copy code" class="small" />
      </div>
      <pre class="code source" tabIndex={0} aria-label={`The call in ${language}`}>
        {source.length > 20_000 ? `${source.slice(0, 20_000)}…` : source}
      </pre>
      {agent.credentials.value && (
        <p class="dim">
          Put the {agent.credentials.value.kind === "basic" ? "name and password" : "token"} into the environment first: <code>export A2A_TOKEN=…</code>
        </p>
      )}
    </div>
  );
}

function draftCall(): { operation: Operation; params: unknown } | null {
  const draft = app.draft.value;
  if (!app.skill.value && !draft.text) return null;
  let parts = [];
  if (draft.editor === "text") parts = [{ text: draft.text }];
  else {
    let value = draft.value;
    if (draft.editor === "json") {
      try {
        value = parse(draft.json);
      } catch {
        return null;
      }
    }
    parts = [{ data: value }];
  }
  const operation: Operation = agent.card.value?.streaming === false ? "send" : "stream";
  return { operation, params: encodeSend(agent.version.value, { message: app.composeMessage(parts, null) }) };
}

