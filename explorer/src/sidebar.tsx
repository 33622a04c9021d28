import type { ComponentChild } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { isOver, LABELS, STATES, type State } from "./a2a";
import * as agent from "./agent";
import * as app from "./app";
import { groupSkills, type Skill } from "./card";
import { ago, plural, shortId } from "./format";
import { Icon } from "./icons";
import { useNow } from "./now";
import { VirtualList } from "./virtual";

export function Sidebar(): ComponentChild {
  return (
    <nav class={`pane left ${app.pane.value === "left" ? "shown" : ""}`} aria-label="Skills and tasks">
      <Skills />
      <Tasks />
    </nav>
  );
}

// ---- skills ---------------------------------------------------------------------------------------------------------

export function foundSkills(): Skill[] {
  const words = app.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  return agent.skills.value.filter((skill) => {
    const hay = [skill.id, skill.name, skill.description, ...skill.tags, ...skill.badges].join(" ").toLowerCase();
    return words.every((word) => hay.includes(word));
  });
}

function Skills(): ComponentChild {
  const found = foundSkills();
  const groups = useMemo(() => groupSkills(found), [agent.skills.value, app.search.value]);
  const all = agent.skills.value.length;
  return (
    <section class="skills" aria-labelledby="skills-title">
      <div class="section-head">
        <h2 id="skills-title">Skills</h2>
        <span class="count">{app.search.value ? `${found.length} of ${all}` : all}</span>
      </div>
      <div class="search">
        <Icon name="search" />
        <input
          id="search"
          type="search"
          placeholder="Search skills"
          aria-label="Search skills"
          aria-keyshortcuts="/"
          value={app.search.value}
          onInput={(event) => void (app.search.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            const [first] = foundSkills();
            if (event.key === "Enter" && first) app.toSkill(first.id);
            if (event.key === "Escape") event.currentTarget.blur();
          }}
        />
        <kbd>/</kbd>
      </div>
      <div class="skill-list" tabIndex={-1}>
        {agent.connection.value === "connecting" && !all && <Skeleton />}
        {groups.map(([prefix, skills]) => (
          <div class="skill-group" key={prefix}>
            {prefix && <h3>{prefix}</h3>}
            {skills.map((skill) => (
              <SkillRow key={skill.id} skill={skill} />
            ))}
          </div>
        ))}
        {all > 0 && !found.length && <p class="empty">No skill matches “{app.search.value}”.</p>}
        {agent.publicCard.value && !all && <p class="empty">The card lists no skills. A message can still be sent.</p>}
      </div>
    </section>
  );
}

function Skeleton(): ComponentChild {
  return (
    <div class="skeleton" aria-hidden="true">
      <span />
      <span />
      <span />
    </div>
  );
}

export const SHORT_BADGES = { streaming: "stream", approval: "approval", "read-only": "read-only", destructive: "destructive" };

function SkillRow({ skill }: { skill: Skill }): ComponentChild {
  const isChosen = app.skillId.value === skill.id;
  return (
    <button type="button" class="skill-row" data-skill={skill.id} data-row aria-current={isChosen} title={skill.id} onClick={() => app.toSkill(skill.id)}>
      <span class="skill-name">{skill.name}</span>
      <span class="skill-about">
        {skill.badges.filter((badge) => badge !== "read-only").map((badge) => (
          <span class={`badge ${badge}`}>{SHORT_BADGES[badge]}</span>
        ))}
        {skill.description}
      </span>
    </button>
  );
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

const ROW = 46;
const POLL_INTERVAL = 8000;

function Tasks(): ComponentChild {
  const { rows, total, next, isLoading, failure } = app.listing.value;
  const found = app.foundRows.value;
  const isSearch = app.taskSearch.value.trim() !== "";
  const now = useNow(5000, true);
  const isOnline = agent.connection.value === "online" || agent.connection.value === "back";
  useEffect(() => {
    if (agent.publicCard.value && isOnline) void app.listTasks();
  }, [app.stateFilter.value, app.contextFilter.value, app.sinceFilter.value, agent.version.value, agent.credentials.value?.value, agent.publicCard.value !== null, isOnline]);
  useEffect(() => {
    const timer = setInterval(() => {
      const isIdle = document.visibilityState === "visible" && agent.connection.value === "online" && !app.listing.value.failure;
      if (isIdle && agent.publicCard.value) void app.listTasks({ quiet: true });
    }, POLL_INTERVAL);
    return () => clearInterval(timer);
  }, []);
  return (
    <section class="tasks" aria-labelledby="tasks-title" style={{ height: `min(45%, ${Math.max(3, rows.length) * ROW + (rows.length > 3 ? 126 : 84)}px)` }}>
      <div class="section-head">
        <h2 id="tasks-title">Tasks</h2>
        <span class="count">{total > 0 ? total.toLocaleString("en") : ""}</span>
        <select
          aria-label="State of tasks"
          value={app.stateFilter.value}
          onChange={(event) => void (app.stateFilter.value = event.currentTarget.value as State | "")}
        >
          <option value="">any state</option>
          {STATES.map((state) => (
            <option value={state}>{LABELS[state]}</option>
          ))}
        </select>
        <select aria-label="Time of tasks" value={app.sinceFilter.value} onChange={(event) => void (app.sinceFilter.value = Number(event.currentTarget.value))}>
          <option value="0">any time</option>
          <option value="10">10 min</option>
          <option value="60">1 h</option>
          <option value="1440">1 day</option>
        </select>
        <button type="button" class="quiet" aria-label="Refresh tasks" title="Refresh" onClick={() => void app.listTasks()}>
          <Icon name="refresh" />
        </button>
      </div>
      {(rows.length > 3 || isSearch) && (
        <div class="search">
          <Icon name="search" />
          <input
            type="search"
            placeholder="Search tasks"
            aria-label="Search tasks"
            value={app.taskSearch.value}
            onInput={(event) => void (app.taskSearch.value = event.currentTarget.value)}
          />
        </div>
      )}
      {app.contextFilter.value && (
        <p class="filter">
          of conversation <span class="words">{app.currentContext.value === app.contextFilter.value && app.currentTitle.value ? app.currentTitle.value : shortId(app.contextFilter.value)}</span>
          <button type="button" class="link" onClick={() => void (app.contextFilter.value = "")}>
            show all
          </button>
        </p>
      )}
      {failure && <p class="empty">{failure}</p>}
      {!rows.length && !failure && !isLoading && <p class="empty">No tasks yet. Tasks that you start appear here.</p>}
      {isSearch && rows.length > 0 && !found.length && <p class="empty">No loaded task matches “{app.taskSearch.value}”.</p>}
      {found.length > 0 && (
        <VirtualList items={found} rowHeight={ROW} label="List of tasks" keyOf={(row) => row.id} onEnd={() => void app.listTasks({ more: true })}>
          {(row) => <TaskRow row={row} now={now} />}
        </VirtualList>
      )}
      {rows.length > 0 && (
        <p class="list-foot">
          {isSearch && `${found.length} of ${plural(rows.length, "loaded task")}`}
          {!isSearch && rows.length < total && `${plural(rows.length, "task")} of ${total.toLocaleString("en")}`}
          {next && (
            <button type="button" class="link" disabled={isLoading} onClick={() => void app.listTasks({ more: true })}>
              {isLoading ? "loading…" : "more"}
            </button>
          )}
        </p>
      )}
    </section>
  );
}

function TaskRow({ row, now }: { row: app.Row; now: number }): ComponentChild {
  const isChosen = app.selectedRun.value?.taskId === row.id;
  return (
    <button type="button" class="task-row" data-task={row.id} data-row aria-current={isChosen} onClick={() => app.toTask(row.id)}>
      <StateDot state={row.state} />
      <span class="task-name" title={row.title}>
        {row.title || row.skillId || shortId(row.id)}
      </span>
      <span class="task-when">{ago(row.timestamp, now)}</span>
      <span class="task-state">
        {LABELS[row.state]} · {(row.title && row.skillId) || shortId(row.id)}
      </span>
    </button>
  );
}

export function StateDot({ state }: { state: State }): ComponentChild {
  return <span class={`state-dot s-${state} ${isOver(state) ? "" : "live"}`} aria-hidden="true" />;
}
