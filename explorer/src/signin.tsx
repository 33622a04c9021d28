// The sign-in: the button in the bar, and the dialog for the schemes that the card offers.
import type { ComponentChild } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import * as agent from "./agent";
import type { SchemeInfo } from "./card";
import { duration, utf8ToBase64 } from "./format";
import { Icon } from "./icons";
import { isObject, parse, text } from "./json";
import { useNow } from "./now";
import * as oauth from "./oauth";

export const credentialsOpen = signal(false);

// For an agent that requires credentials and names no scheme.
const PLAIN: SchemeInfo = { name: "", kind: "Bearer token", way: "bearer", header: "", about: "", authorizationUrl: "", tokenUrl: "", discoveryUrl: "", scopes: [] };

/** The schemes of the card, with a field for a token beside each window of an issuer. */
function offered(): SchemeInfo[] {
  const schemes = agent.publicCard.value?.schemes ?? [];
  const found = [...schemes];
  const takesToken = schemes.some((scheme) => scheme.way === "bearer");
  if (schemes.some((scheme) => scheme.way === "code") && !takesToken) found.push(PLAIN);
  return found.length ? found : [PLAIN];
}

/** Whether there is anything to sign in for: a scheme on the card, a rejected request, or a task that asks for it. */
const isNeeded = (): boolean => Boolean(credentialsOpen.value || agent.publicCard.value?.schemes.length || agent.credentialsNeeded.value || agent.credentials.value);

export function CredentialsButton(): ComponentChild {
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
  if (!isNeeded()) return null;
  return (
    <div class="credentials" ref={box}>
      <button
        type="button"
        class={`quiet ${needed ? "needs" : ""} ${shown?.value ? "has" : ""}`}
        aria-label={shown?.value ? "Signed in" : "Sign in"}
        aria-expanded={credentialsOpen.value}
        onClick={() => void (credentialsOpen.value = !credentialsOpen.value)}
      >
        <Icon name="key" /> <span class="wide">{shown?.value ? "Signed in" : "Sign in"}</span>
      </button>
      {credentialsOpen.value && <CredentialsBox />}
    </div>
  );
}

function CredentialsBox(): ComponentChild {
  const schemes = offered();
  const shown = agent.credentials.value;
  const usable = Math.max(0, schemes.findIndex((scheme) => scheme.way !== "none"));
  const [at, setAt] = useState(usable);
  const scheme = schemes[Math.min(at, schemes.length - 1)]!;
  return (
    <div class="popover" role="dialog" aria-label="Credentials">
      {agent.credentialsNeeded.value && (
        <p class="banner warn" role="alert">
          {agent.credentialsNeeded.value}
        </p>
      )}
      {schemes.length > 1 && (
        <label>
          Kind
          <select value={String(at)} onChange={(event) => setAt(Number(event.currentTarget.value))}>
            {schemes.map((each, index) => (
              <option value={String(index)}>{each.kind}</option>
            ))}
          </select>
        </label>
      )}
      <SchemeForm key={at} scheme={scheme} />
      {scheme.about && <p class="dim">{scheme.about}</p>}
      {shown?.kind === "bearer" && <Claims token={shown.value} />}
      {agent.extendedCard.value && <p class="good">Accepted: the extended card is shown.</p>}
      {agent.extendedFailure.value && shown?.value && <p class="complaint">{agent.extendedFailure.value}</p>}
      <p class="dim">Kept only in the memory of this tab, until a reload.</p>
      <div class="row">
        <button type="button" class="small" onClick={() => put(null)} disabled={!shown}>
          {shown ? "Sign out" : "Forget"}
        </button>
        <button type="button" class="small" onClick={() => { agent.credentialsNeeded.value = ""; credentialsOpen.value = false; }}>
          Done
        </button>
      </div>
    </div>
  );
}

function put(given: agent.Credentials | null): void {
  agent.credentialsNeeded.value = "";
  agent.credentials.value = given;
}

function SchemeForm({ scheme }: { scheme: SchemeInfo }): ComponentChild {
  switch (scheme.way) {
    case "bearer":
      return <SecretField label="Bearer token" onType={(typed) => put(bearer(typed))} kind="bearer" />;
    case "key":
      return <SecretField label="API key" onType={(typed) => put(typed ? { kind: "key", header: scheme.header, value: typed } : null)} kind="key" />;
    case "basic":
      return <BasicFields />;
    case "code":
      return <IssuerForm scheme={scheme} />;
  }
  return null;
}

function bearer(typed: string): agent.Credentials | null {
  const bare = typed.replace(/^Bearer\s+/i, "");
  return bare ? { kind: "bearer", header: "Authorization", value: bare } : null;
}

function SecretField({ label, kind, onType }: { label: string; kind: agent.Credentials["kind"]; onType: (typed: string) => void }): ComponentChild {
  const shown = agent.credentials.value;
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <>
      <label for="token">{label}</label>
      <input
        id="token"
        ref={field}
        type="password"
        autocomplete="off"
        spellcheck={false}
        value={shown?.kind === kind ? shown.value : ""}
        onInput={(event) => onType(event.currentTarget.value.trim())}
      />
    </>
  );
}

function BasicFields(): ComponentChild {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const give = (user: string, secret: string): void => {
    setName(user);
    setPassword(secret);
    put(user ? { kind: "basic", header: "Authorization", value: utf8ToBase64(`${user}:${secret}`) } : null);
  };
  return (
    <>
      <label for="user">Name</label>
      <input id="user" ref={field} autocomplete="off" value={name} onInput={(event) => give(event.currentTarget.value, password)} />
      <label for="password">Password</label>
      <input id="password" type="password" autocomplete="off" value={password} onInput={(event) => give(name, event.currentTarget.value)} />
    </>
  );
}

function IssuerForm({ scheme }: { scheme: SchemeInfo }): ComponentChild {
  const [client, setClient] = useState(oauth.knownClient(scheme));
  const [scopes, setScopes] = useState(oauth.scopesOf(scheme));
  const isWaiting = oauth.progress.value === "waiting";
  return (
    <form
      class="issuer"
      aria-label="Sign in at the issuer"
      onSubmit={(event) => {
        event.preventDefault();
        void oauth.signIn(scheme, client.trim(), scopes);
      }}
    >
      <label for="client">Client id</label>
      <input id="client" required autocomplete="off" spellcheck={false} value={client} onInput={(event) => setClient(event.currentTarget.value)} />
      <label for="scopes">Scopes</label>
      <input id="scopes" autocomplete="off" spellcheck={false} value={scopes} onInput={(event) => setScopes(event.currentTarget.value)} />
      <button type="submit" class="primary" disabled={isWaiting}>
        {isWaiting ? "Waiting for the other window…" : `Sign in at ${oauth.issuerOf(scheme).replace(/^https?:\/\//, "")}`}
      </button>
      {oauth.failure.value && (
        <p class="complaint" role="alert">
          {oauth.failure.value}
        </p>
      )}
      <p class="dim">
        Register <code>{oauth.redirectAddress}</code> as the redirect address of the client.
      </p>
    </form>
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
