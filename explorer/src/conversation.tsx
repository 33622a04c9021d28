// The middle pane: the conversation, and the composer for the next message.
import type { ComponentChild } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isOver, LABELS, type Message } from "./a2a";
import * as agent from "./agent";
import * as app from "./app";
import { Ask } from "./ask";
import type { Skill } from "./card";
import { Composer } from "./composer";
import { CopyButton, DataView, download, Parts, Progress } from "./content";
import { copy, duration, plural, shortId } from "./format";
import * as exporting from "./export";
import { ConnectionBanner } from "./header";
import { Icon } from "./icons";
import { Markdown } from "./markdown";
import { useNow } from "./now";
import { answersIn, questionsOf } from "./questions";
import { textOf, type Run, type ShownArtifact } from "./run";
import { StateDot } from "./sidebar";

export function Conversation(): ComponentChild {
  const { runs, key } = app.current.value;
  const scroller = useRef<HTMLDivElement>(null);
  const [isOver_, setOver] = useState(false);
  useStickToEnd(scroller, key);
  const onDrop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer?.files.length) void app.attach(event.dataTransfer.files);
  };
  const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") === true;
  return (
    <main
      class={`pane centre ${app.pane.value === "centre" ? "shown" : ""} ${isOver_ ? "dropping" : ""}`}
      onDragOver={(event) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget as Node | null)) setOver(false);
      }}
      onDrop={onDrop}
    >
      <ConnectionBanner />
      {agent.card.value && !agent.speaksJsonRpc.value && (
        <p class="banner warn">
          The card names no JSON-RPC interface, and this page supports no other. It sends JSON-RPC to the agent's address.
        </p>
      )}
      <ConversationHead />
      <div class="talk" ref={scroller} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
        <div class="talk-inner">
          <Opening />
          {runs.map((run) => (
            <RunView key={run.number} run={run} />
          ))}
        </div>
      </div>
      <Composer />
      {isOver_ && <div class="drop-hint">Drop to attach</div>}
    </main>
  );
}

/** Scroll to new content, unless the user has scrolled up. */
function useStickToEnd(scroller: { current: HTMLDivElement | null }, key: string): void {
  const sticks = useRef(true);
  const { runs } = app.current.value;
  useLayoutEffect(() => {
    sticks.current = true;
  }, [key, runs.length]);
  useEffect(() => {
    const element = scroller.current!;
    const follow = (): void => {
      if (sticks.current && app.current.value.runs.length) element.scrollTop = element.scrollHeight;
    };
    let last = element.scrollTop;
    const onScroll = (): void => {
      // Only the user scrolls up. If the end moves because content grows, keep following it.
      const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
      if (isAtEnd) sticks.current = true;
      else if (element.scrollTop < last) sticks.current = false;
      last = element.scrollTop;
    };
    // Text grows, pictures load, the composer changes its height: each changes the size of one of the two.
    const observer = new ResizeObserver(follow);
    observer.observe(element);
    observer.observe(element.firstElementChild!);
    element.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", onScroll);
    };
  }, []);
}

function ConversationHead(): ComponentChild {
  const context = app.currentContext.value;
  const { runs } = app.current.value;
  const title = app.currentTitle.value;
  if (!runs.length && !app.skill.value) return null;
  return (
    <div class="talk-head">
      {context ? (
        <>
          <span class="talk-title" title={title || context}>
            {title || `Conversation ${shortId(context)}`}
          </span>
        </>
      ) : (
        <span class="dim">New conversation</span>
      )}
      <span class="grow" />
      {runs.length > 0 && <ConversationMenu context={context} />}
      {runs.length > 0 && (
        <button
          type="button"
          class="small"
          onClick={() => {
            app.startConversation();
            app.go(app.skillId.value ? `#/skill/${encodeURIComponent(app.skillId.value)}` : "#/");
          }}
        >
          <Icon name="plus" /> New
        </button>
      )}
    </div>
  );
}

/** What can be done with the whole conversation. */
function ConversationMenu({ context }: { context: string }): ComponentChild {
  const { runs } = app.current.value;
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const close = (event: Event): void => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("mousedown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("mousedown", close);
      document.removeEventListener("keydown", close);
    };
  }, [isOpen]);
  const name = `conversation-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}`;
  const entries: [string, () => void][] = [
    ["Export as Markdown", () => download(exporting.toMarkdown(runs), `${name}.md`)],
    ["Export as JSON", () => download(exporting.toJson(runs), `${name}.json`)],
  ];
  if (context) {
    entries.push(["Show its tasks", () => { app.contextFilter.value = context; app.pane.value = "left"; }]);
    entries.push(["Copy the conversation's id", () => void copy(context)]);
  }
  return (
    <div class="menu" ref={box}>
      <button type="button" class="quiet" aria-label="Conversation menu" aria-haspopup="menu" aria-expanded={isOpen} title="Export, tasks, id" onClick={() => setOpen(!isOpen)}>
        <Icon name="more" />
      </button>
      {isOpen && (
        <div class="popover" role="menu">
          {entries.map(([title, run]) => (
            <button
              type="button"
              role="menuitem"
              class="quiet"
              onClick={() => {
                setOpen(false);
                run();
              }}
            >
              {title}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

// ---- before the first message ---------------------------------------------------------------------------------------

function Opening(): ComponentChild {
  const { runs } = app.current.value;
  if (app.openFailure.value) {
    return (
      <div class="banner bad" role="alert">
        <Icon name="alert" /> The task cannot be shown: {app.openFailure.value}
      </div>
    );
  }
  if (app.wantedTask.value) return <p class="empty">Opening task {shortId(app.wantedTask.value)}…</p>;
  if (runs.length) return null;
  if (agent.cardFailure.value) {
    return (
      <div class="welcome">
        <h2>No card</h2>
        <p>
          There is no agent card below <code>{agent.ADDRESS}</code>: {agent.cardFailure.value}
        </p>
        <button type="button" onClick={() => void agent.loadCard()}>
          Retry
        </button>
      </div>
    );
  }
  if (!agent.card.value) return <Connecting />;
  return app.skill.value ? <SkillIntro skill={app.skill.value} /> : <Welcome />;
}

function Connecting(): ComponentChild {
  return (
    <div class="welcome" role="status">
      <h2>
        <span class="spinner" aria-hidden="true" /> Connecting
      </h2>
      <p>
        Reading the agent card at <code>{agent.ADDRESS}</code>
      </p>
    </div>
  );
}

function Welcome(): ComponentChild {
  const card = agent.card.value!;
  const picks = pickExamples(agent.skills.value);
  return (
    <div class="welcome">
      <h2>{card.name}</h2>
      {card.description && <p class="lead">{card.description}</p>}
      <p class="facts">
        {plural(card.skills.length, "skill")} · A2A {agent.versions.value.join(" and ")} · {card.streaming ? "streams" : "does not stream"}
        {card.schemes.length ? ` · ${card.schemes.map((scheme) => scheme.kind).join(", ")}` : " · no authentication"}
      </p>
      {picks.length > 0 && <h3>Try one</h3>}
      <div class="picks">
        {picks.map(({ skill, index, why }) => (
          <button
            type="button"
            class="pick-card"
            key={skill.id}
            onClick={() => {
              app.toSkill(skill.id);
              // The address changes first, and with it the form. Then the example is filled in.
              setTimeout(() => index >= 0 && app.useSample(skill.examples[index]!), 0);
            }}
          >
            <span class="why">{why}</span>
            <strong>{skill.name}</strong>
            <span>{skill.description}</span>
            {index >= 0 && <code>{preview(skill.examples[index]!.input)}</code>}
          </button>
        ))}
      </div>
      <p class="dim">
        Choose a skill, press <kbd>/</kbd> to search, or <kbd>?</kbd> for all keys.
      </p>
    </div>
  );
}

const preview = (input: unknown): string => {
  const shown = typeof input === "string" ? input : JSON.stringify(input);
  return shown.length > 70 ? `${shown.slice(0, 67)}…` : shown;
};

/** Three skills as examples: one that streams, one that asks for approval, and a plain one. */
function pickExamples(skills: Skill[]): { skill: Skill; index: number; why: string }[] {
  const ready = [...skills.filter((skill) => skill.examples.length), ...skills.filter((skill) => !skill.examples.length)];
  const found: { skill: Skill; index: number; why: string }[] = [];
  const take = (why: string, fits: (skill: Skill) => boolean): void => {
    const skill = ready.find((each) => fits(each) && !found.some((other) => other.skill === each));
    if (skill && found.length < 3) found.push({ skill, index: skill.examples.length ? 0 : -1, why });
  };
  take("Watch it stream", (skill) => skill.badges.includes("streaming") && skill.outputModes.includes("text/plain"));
  if (!found.length) take("Watch it stream", (skill) => skill.badges.includes("streaming"));
  take("Approve before it runs", (skill) => skill.badges.includes("approval"));
  take("Get an answer", (skill) => !skill.badges.includes("streaming") && !skill.badges.includes("approval"));
  while (found.length < 3 && found.length < skills.length) take("Try it", () => true);
  return found;
}

export function SkillIntro({ skill }: { skill: Skill }): ComponentChild {
  return (
    <article class="skill-intro">
      <h2>{skill.name}</h2>
      <p class="skill-id">
        <code>{skill.id}</code>
        {skill.badges.map((badge) => (
          <span class={`badge ${badge}`}>{badge}</span>
        ))}
      </p>
      <Markdown source={skill.description} />
      <dl class="meta">
        {skill.tags.length > 0 && (
          <div>
            <dt>Tags</dt>
            <dd>{skill.tags.map((tag) => <span class="tag">{tag}</span>)}</dd>
          </div>
        )}
        <div>
          <dt>Input types</dt>
          <dd>{skill.inputModes.join(", ") || "not specified"}</dd>
        </div>
        <div>
          <dt>Output types</dt>
          <dd>{skill.outputModes.join(", ") || "not specified"}</dd>
        </div>
      </dl>
      {skill.outputSchema && (
        <details>
          <summary>Schema of the answer</summary>
          <DataView value={skill.outputSchema} isLive={false} />
        </details>
      )}
    </article>
  );
}

// ---- one run --------------------------------------------------------------------------------------------------------

const SHOWN_MESSAGES = 50;

function RunView({ run }: { run: Run }): ComponentChild {
  void run.tick.value;
  const [all, setAll] = useState(false);
  const isSelected = app.selectedRun.value === run;
  const hidden = all ? 0 : Math.max(0, run.messages.length - SHOWN_MESSAGES);
  const isQuestion = run.isAsking;
  const asked = run.status.message;
  const isSaid = asked && run.messages.some((message) => message.messageId === asked.messageId);
  return (
    <article
      class={`run ${isSelected ? "selected" : ""}`}
      data-run={run.number}
      data-task={run.taskId}
      data-phase={run.phase}
      aria-label={`${run.skillId || "message"}, ${run.phase === "refused" ? "refused" : LABELS[run.state]}`}
      onClick={() => void (app.selectedRun.value = run)}
    >
      {hidden > 0 && (
        <button type="button" class="link" onClick={() => setAll(true)}>
          {plural(hidden, "earlier message")}
        </button>
      )}
      {run.messages.slice(hidden).map((message) => (
        <MessageView key={message.messageId} message={message} skillId={run.skillId} />
      ))}
      <div class="said agent">
        <RunHead run={run} />
        <Notes run={run} />
        {run.answer && <Parts parts={run.answer.parts} />}
        {[...run.artifacts.values()].map((artifact) => (
          <ArtifactView key={artifact.artifactId} artifact={artifact} isLive={run.isLive} isOnly={run.artifacts.size === 1} />
        ))}
        {run.saidAnswer && <Markdown source={run.saidAnswer} />}
        {asked && !isSaid && !isQuestion && !run.failure && run.state !== "WORKING" && <Parts parts={asked.parts} />}
        {isSilent(run) && <p class="dim">The agent returned nothing.</p>}
        <Failure run={run} />
        {isQuestion && <Ask run={run} />}
        {run.resumed && <p class="resumed">{run.resumed}.</p>}
      </div>
    </article>
  );
}

/** Whether it succeeded without visible output. */
function isSilent(run: Run): boolean {
  if (run.phase !== "resting" || run.state !== "COMPLETED" || textOf(run.status.message) || run.answer || run.saidAnswer) return false;
  return ![...run.artifacts.values()].some((artifact) => artifact.parts.some((part) => part.text !== ""));
}

function MessageView({ message, skillId }: { message: Message; skillId: string }): ComponentChild {
  if (message.role === "agent") {
    // Of questions that were answered, only the questions: how to answer them does not matter any more.
    const asked = questionsOf(message).map((question) => question.text).filter(Boolean);
    return (
      <div class="said agent earlier">
        {asked.length ? asked.map((question) => <Markdown source={question} />) : <Parts parts={message.parts} />}
      </div>
    );
  }
  return (
    <div class="said user">
      {skillId && <span class="to">{skillId}</span>}
      <Parts parts={message.parts.map((part) => (answersIn(part) ? { data: answersIn(part) } : part))} />
    </div>
  );
}

function RunHead({ run }: { run: Run }): ComponentChild {
  void run.tick.value; // a run changes in place, so the component subscribes to its tick
  const now = useNow(200, run.isLive);
  const took = (run.endedAt ?? now) - run.startedAt;
  const phrase = headline(run);
  return (
    <div class="run-head">
      {run.isLive ? <span class="spinner" aria-hidden="true" /> : <StateDot state={run.phase === "refused" || run.phase === "lost" ? "FAILED" : run.state} />}
      <strong role="status">{phrase}</strong>
      {!run.isOpened && <span class="dim elapsed">{duration(Math.max(0, took))}</span>}
      {run.taskId && (
        <a class="task-link" href={`#/task/${encodeURIComponent(run.taskId)}`} title={run.taskId}>
          {shortId(run.taskId)}
        </a>
      )}
      <span class="grow" />
      {(run.isLive || (run.phase === "resting" && !isOver(run.state) && run.taskId)) && (
        <button type="button" class="small" disabled={run.isStopping} onClick={() => void run.cancel()}>
          {run.isStopping ? "Canceling…" : "Cancel"}
        </button>
      )}
      {run.mode === "background" && run.isLive && (
        <span class="badge">in background</span>
      )}
      {run.phase === "lost" && run.taskId && (
        <button type="button" class="small" onClick={() => void run.watch()}>
          Retry
        </button>
      )}
      {!run.isLive && run.messages.length > 0 && (isOver(run.state) || run.phase === "refused") && (
        <button type="button" class="link" onClick={() => app.again(run)}>
          Run again
        </button>
      )}
    </div>
  );
}

function headline(run: Run): string {
  switch (run.phase) {
    case "connecting":
      return "Connecting";
    case "reconnecting":
      return `Reconnecting${run.lastEventId ? ` after event ${run.lastEventId}` : ""}${run.attempt > 1 ? `, attempt ${run.attempt}` : ""}`;
    case "refused":
      return "Refused";
    case "lost":
      return "Lost";
  }
  if (run.answer) return "Answered";
  const label = LABELS[run.state];
  return label[0]!.toUpperCase() + label.slice(1);
}

function Notes({ run }: { run: Run }): ComponentChild {
  void run.tick.value;
  // What is shown as the answer is not repeated here.
  const answers = new Set([...run.artifacts.values()].map((artifact) => artifact.parts.map((part) => part.text ?? "").join("").trim()));
  const notes = run.notes.filter((note) => note.isProgress || !(run.saidAnswer || answers.has(note.text.trim())));
  const last = notes.at(-1);
  if (!last) return null;
  const said = notes.filter((note) => note.text);
  return (
    <div class="notes">
      {run.share !== null && <Progress value={run.share} isLive={true} />}
      {run.isLive && last.text && (
        <p class="note">
          {last.text} {last.detail && <code>{last.detail}</code>}
        </p>
      )}
      {said.length > (run.isLive ? 1 : 0) && (
        <details>
          <summary>{plural(said.length, "note")} while it worked</summary>
          <ul>
            {said.map((note) => (
              <li>
                {note.share !== null && <span class="dim">{Math.round(note.share * 100)} % </span>}
                {note.text} {note.detail && <code>{note.detail}</code>}
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function ArtifactView({ artifact, isLive, isOnly }: { artifact: ShownArtifact; isLive: boolean; isOnly: boolean }): ComponentChild {
  const textLength = artifact.parts.reduce((sum, part) => sum + (part.text?.length ?? 0), 0);
  return (
    <section class="artifact" aria-label={`Artifact ${artifact.name || artifact.artifactId}`}>
      {!isOnly && <h4>{artifact.name || artifact.artifactId}</h4>}
      {artifact.description && <p class="dim">{artifact.description}</p>}
      <Parts parts={artifact.parts} isLive={isLive} />
      {textLength > 0 && !isLive && (
        <div class="data-tools">
          <CopyButton text={() => artifact.parts.map((part) => part.text ?? "").join("")} label="Copy text" />
        </div>
      )}
    </section>
  );
}

function Failure({ run }: { run: Run }): ComponentChild {
  void run.tick.value;
  const failure = run.failure;
  if (!failure) return null;
  return (
    <div class="banner bad" role="alert">
      <p>
        <Icon name="alert" /> {failure.message}
      </p>
      {failure.exception && <pre class="code" tabIndex={0}>{failure.exception}</pre>}
      {failure.violations.length > 0 && (
        <ul>
          {failure.violations.map((violation) => (
            <li>
              {violation.field && <code>{violation.field}</code>} {violation.message}
            </li>
          ))}
        </ul>
      )}
      <p class="reference">
        {failure.reference && (
          <>
            Reference <code>{failure.reference}</code> <CopyButton text={() => failure.reference} label="Copy" /> · find it in the agent's log
          </>
        )}
        {failure.code !== 0 && <>Code {failure.code}</>}
      </p>
    </div>
  );
}
