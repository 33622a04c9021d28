// Keyboard control: the command palette and the shortcuts.
import type { ComponentChild } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import * as agent from "./agent";
import * as app from "./app";
import { shortId } from "./format";

const TABS: app.Tab[] = ["timeline", "wire", "card", "code", "webhooks", "health"]; // by their keys, 1 to 6
const paletteOpen = signal(false);
const helpOpen = signal(false);
export const openPalette = (): void => void (paletteOpen.value = true);
export const openHelp = (): void => void (helpOpen.value = true);

interface Command {
  title: string;
  hint: string;
  run: () => void;
}

function commands(): Command[] {
  const found: Command[] = agent.skills.value.map((skill) => ({ title: skill.name, hint: `skill ${skill.id}`, run: () => app.toSkill(skill.id) }));
  for (const row of app.listing.value.rows.slice(0, 200)) {
    found.push({ title: `Task ${row.title || row.skillId || shortId(row.id)}`, hint: `${row.state.toLowerCase()} ${row.id}`, run: () => app.toTask(row.id) });
  }
  for (const tab of TABS) found.push({ title: `Show ${tab}`, hint: "tab", run: () => { app.tab.value = tab; app.pane.value = "right"; } });
  found.push({ title: "New conversation", hint: "n", run: () => app.startConversation() });
  found.push({ title: "Refresh tasks", hint: "", run: () => void app.listTasks() });
  for (const version of agent.versions.value) found.push({ title: `Speak A2A ${version}`, hint: "version", run: () => void (agent.version.value = version) });
  found.push({ title: "Keyboard shortcuts", hint: "?", run: openHelp });
  return found;
}

/** A native dialog: the browser keeps the focus inside, and Escape closes it. */
function Dialog({ label, onClose, children }: { label: string; onClose: () => void; children: ComponentChild }): ComponentChild {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current!;
    element.showModal();
    return () => element.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-label={label}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      {children}
    </dialog>
  );
}

export function Dialogs(): ComponentChild {
  return (
    <>
      {paletteOpen.value && <Palette />}
      {helpOpen.value && <Help />}
    </>
  );
}

function matching(query: string): Command[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return commands()
    .filter((command) => words.every((word) => `${command.title} ${command.hint}`.toLowerCase().includes(word)))
    .slice(0, 50);
}

function Palette(): ComponentChild {
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const close = (): void => void (paletteOpen.value = false);
  const found = matching(query);
  const chosen = Math.min(at, found.length - 1);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") {
      // The present value of the field: the last letter may not be rendered yet.
      const typed = (event.currentTarget as HTMLInputElement).value;
      const command = typed === query ? found[chosen] : matching(typed)[0];
      close();
      command?.run();
    } else return;
    event.preventDefault();
  };
  return (
    <Dialog label="Commands" onClose={close}>
      <div class="palette">
        <input
          autofocus
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={found.length ? `command-${chosen}` : undefined}
          aria-label="Search commands, skills and tasks"
          placeholder="Search commands, skills and tasks"
          value={query}
          onInput={(event) => {
            setQuery(event.currentTarget.value);
            setAt(0);
          }}
          onKeyDown={onKeyDown}
        />
        <ul id="palette-list" role="listbox" aria-label="Commands">
          {found.map((command, index) => (
            <li
              id={`command-${index}`}
              role="option"
              aria-selected={index === chosen}
              onClick={() => {
                close();
                command.run();
              }}
            >
              <span>{command.title}</span>
              <span class="dim">{command.hint}</span>
            </li>
          ))}
        </ul>
        {!found.length && <p class="empty">Nothing matches.</p>}
      </div>
    </Dialog>
  );
}

const KEYS: [string, string][] = [
  ["Ctrl K", "search commands, skills and tasks"],
  ["/", "search skills"],
  ["j  k", "next or previous entry of the list"],
  ["Ctrl Enter", "send the message"],
  ["a  r", "approve or reject the waiting task"],
  ["n", "new conversation"],
  ["1 … 6", "timeline, wire, card, code, webhooks, health"],
  ["?", "keyboard shortcuts"],
  ["Esc", "close, or leave a field"],
];

function Help(): ComponentChild {
  const close = (): void => void (helpOpen.value = false);
  return (
    <Dialog label="Keyboard shortcuts" onClose={close}>
      <div class="help">
        <h2>Keys</h2>
        <dl>
          {KEYS.map(([keys, what]) => (
            <div>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <button type="button" class="small" autofocus onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

// ---- keys -----------------------------------------------------------------------------------------------------------

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));

export function onKey(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette();
    return;
  }
  if (event.key === "Escape" && isTyping(event.target)) return (event.target as HTMLElement).blur();
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (onPlainKey(event.key)) event.preventDefault();
}

function onPlainKey(key: string): boolean {
  switch (key) {
    case "/":
      app.pane.value = "left";
      document.getElementById("search")?.focus();
      return true;
    case "?":
      openHelp();
      return true;
    case "j":
    case "k":
      return step(key === "j" ? 1 : -1);
    case "n":
      app.startConversation();
      return true;
    case "a":
    case "r":
      return decide(key === "a");
  }
  const tab = TABS[Number(key) - 1];
  if (!tab) return false;
  app.tab.value = tab;
  return true;
}

/** The next row of the list that has the focus, or of the skills. */
function step(by: number): boolean {
  const focused = document.activeElement;
  const holder = focused?.closest(".tasks") ?? document.querySelector(".skills");
  const rows = [...(holder?.querySelectorAll<HTMLElement>("[data-row]") ?? [])];
  const now = rows.findIndex((row) => row === focused);
  const chosen = rows.findIndex((row) => row.getAttribute("aria-current") === "true");
  const from = now >= 0 ? now : chosen;
  const next = rows[from < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, from + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
  return next !== undefined;
}

function decide(isApproved: boolean): boolean {
  const runs = app.current.value.runs;
  const selected = app.selectedRun.value;
  const run = selected?.approval ? selected : runs.findLast((each) => each.approval);
  if (!run) return false;
  app.decide(run, isApproved);
  return true;
}
