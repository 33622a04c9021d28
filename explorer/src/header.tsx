import type { ComponentChild } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import type { Version } from "./a2a";
import * as agent from "./agent";
import { duration } from "./format";
import { isObject, parse, text } from "./json";
import { Icon } from "./icons";
import { openHelp, openPalette } from "./palette";
import { useNow } from "./now";

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
          <select value={agent.version.value} onChange={(event) => void (agent.version.value = event.currentTarget.value as Version)}>
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

// ---- credentials ----------------------------------------------------------------------------------------------------

export const credentialsOpen = signal(false);

function CredentialsButton(): ComponentChild {
  const shown = agent.credentials.value;
  const needed = agent.credentialsNeeded.value;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (needed) credentialsOpen.value = true;
  }, [needed]);
  useEffect(() => {
    const close = (event: MouseEvent): void => {
      if (!box.current?.contains(event.target as Node) && !agent.credentialsNeeded.value) credentialsOpen.value = false;
    };
    document.addEventListener("mousedown", close);
    return () => document.removeEventListener("mousedown", close);
  }, []);
  return (
    <div class="credentials" ref={box}>
      <button
        type="button"
        class={`quiet ${needed ? "needs" : ""} ${shown?.value ? "has" : ""}`}
        aria-expanded={credentialsOpen.value}
        onClick={() => void (credentialsOpen.value = !credentialsOpen.value)}
      >
        <Icon name="key" /> <span class="wide">{shown?.value ? "Credentials" : "Sign in"}</span>
      </button>
      {credentialsOpen.value && <CredentialsBox />}
    </div>
  );
}

function CredentialsBox(): ComponentChild {
  const keys = (agent.publicCard.value?.schemes ?? []).filter((scheme) => scheme.header);
  const shown = agent.credentials.value;
  const [way, setWay] = useState(shown?.kind === "key" ? shown.header : "bearer");
  const [typed, setTyped] = useState(shown?.value ?? "");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const put = (value: string, chosen = way): void => {
    setTyped(value);
    const bare = value.trim().replace(/^Bearer\s+/i, "");
    agent.credentialsNeeded.value = "";
    if (!bare) agent.credentials.value = null;
    else agent.credentials.value = chosen === "bearer" ? { kind: "bearer", header: "Authorization", value: bare } : { kind: "key", header: chosen, value: bare };
  };
  return (
    <div class="popover" role="dialog" aria-label="Credentials">
      {agent.credentialsNeeded.value && (
        <p class="banner warn" role="alert">
          {agent.credentialsNeeded.value}
        </p>
      )}
      {keys.length > 0 && (
        <label>
          Kind
          <select
            value={way}
            onChange={(event) => {
              setWay(event.currentTarget.value);
              put(typed, event.currentTarget.value);
            }}
          >
            <option value="bearer">Bearer token</option>
            {keys.map((key) => (
              <option value={key.header}>
                API key in {key.header}
              </option>
            ))}
          </select>
        </label>
      )}
      <label for="token">{way === "bearer" ? "Bearer token" : "API key"}</label>
      <input id="token" ref={field} type="password" autocomplete="off" spellcheck={false} value={typed} onInput={(event) => put(event.currentTarget.value)} />
      <Claims token={typed} />
      {agent.extendedCard.value && <p class="good">Accepted: the extended card is shown.</p>}
      {agent.extendedFailure.value && typed && <p class="complaint">{agent.extendedFailure.value}</p>}
      <p class="dim">Kept only in the memory of this tab, until a reload.</p>
      <div class="row">
        <button type="button" class="small" onClick={() => put("")} disabled={!typed}>
          Forget
        </button>
        <button type="button" class="small" onClick={() => { agent.credentialsNeeded.value = ""; credentialsOpen.value = false; }}>
          Done
        </button>
      </div>
    </div>
  );
}

/** The claims of a JWT. They are not verified, which is the agent's task. */
function Claims({ token }: { token: string }): ComponentChild {
  const now = useNow(1000, true);
  const body = token.trim().split(".")[1];
  if (!body) return null;
  let claims: unknown;
  try {
    const binary = atob(body.replaceAll("-", "+").replaceAll("_", "/"));
    claims = parse(new TextDecoder().decode(Uint8Array.from(binary, (char) => char.charCodeAt(0))));
  } catch {
    return null;
  }
  if (!isObject(claims)) return null;
  const expires = typeof claims["exp"] === "number" ? claims["exp"] * 1000 : null;
  const shown = Object.entries(claims).slice(0, 12);
  return (
    <div class="claims">
      {expires !== null && (
        <p class={expires > now ? "good" : "complaint"}>{expires > now ? `Expires in ${duration(expires - now)}` : `Expired ${duration(now - expires)} ago`}</p>
      )}
      <dl class="record">
        {shown.map(([name, value]) => (
          <div>
            <dt>{name}</dt>
            <dd>{text(value) || JSON.stringify(value)}</dd>
          </div>
        ))}
      </dl>
    </div>
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
