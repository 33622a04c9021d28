import type { ComponentChild } from "preact";
import { effect, signal } from "@preact/signals";
import type { Version } from "./a2a";
import * as agent from "./agent";
import { duration } from "./format";
import { Icon } from "./icons";
import { openHelp, openPalette } from "./palette";
import { useNow } from "./now";
import { CredentialsButton } from "./signin";

// ---- colours --------------------------------------------------------------------------------------------------------

type Theme = "auto" | "light" | "dark";
const THEME_KEY = "apcore-a2a.explorer.theme";
export const theme = signal<Theme>(readTheme());

function readTheme(): Theme {
  try {
    const kept = localStorage.getItem(THEME_KEY);
    return kept === "light" || kept === "dark" ? kept : "auto";
  } catch {
    return "auto"; // the browser blocks storage
  }
}

effect(() => {
  const chosen = theme.value;
  if (chosen === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", chosen);
  try {
    localStorage.setItem(THEME_KEY, chosen);
  } catch {
    // then the setting is not stored
  }
});

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
export const nextTheme = (): void => void (theme.value = NEXT[theme.value]);

// ---- the bar --------------------------------------------------------------------------------------------------------

const CONNECTIONS = { connecting: "connecting…", online: "online", gone: "not reachable", back: "back online" };

export function Header(): ComponentChild {
  const card = agent.card.value;
  const state = agent.connection.value;
  const themeIcon = { auto: "auto", light: "sun", dark: "moon" } as const;
  return (
    <header class="bar">
      <div class="who">
        <h1>{card?.name ?? "Explorer"}</h1>
        {card?.version && <span class="version">v{card.version}</span>}
        <span class={`dot ${state}`} role="status">
          {CONNECTIONS[state]}
        </span>
      </div>
      <div class="tools">
        <label class="pick">
          <span>A2A</span>
          <select aria-label="A2A version" value={agent.version.value} onChange={(event) => void (agent.version.value = event.currentTarget.value as Version)}>
            {agent.versions.value.map((each) => (
              <option value={each}>{each}</option>
            ))}
          </select>
        </label>
        <CredentialsButton />
        <button type="button" class="quiet" title="Commands (Ctrl-K)" aria-label="Commands" onClick={openPalette}>
          <Icon name="command" />
        </button>
        <button type="button" class="quiet" title={`Colours: ${theme.value}`} aria-label={`Colours: ${theme.value}`} onClick={nextTheme}>
          <Icon name={themeIcon[theme.value]} />
        </button>
        <button type="button" class="quiet" title="Keys (?)" aria-label="Keyboard shortcuts" onClick={openHelp}>
          <Icon name="help" />
        </button>
      </div>
    </header>
  );
}

export function ConnectionBanner(): ComponentChild {
  const state = agent.connection.value;
  const now = useNow(1000, state === "gone");
  if (state === "gone") {
    return (
      <p class="banner bad" role="alert">
        <Icon name="alert" /> The server is down{now - agent.goneSince.value >= 1000 ? `, for ${duration(now - agent.goneSince.value)}` : ""}. The page retries every 1.5 seconds.
      </p>
    );
  }
  if (state === "back") {
    return (
      <p class="banner good" role="status">
        <Icon name="check" /> The server is back.
      </p>
    );
  }
  return null;
}
