// Sign-in by OAuth 2.0 or OpenID Connect: authorization code with PKCE, in a window of the issuer.
//
// The window returns to this page's address. The page that opened it receives the code over a channel, because the
// two pages share an origin and no reference. Only the issuer's origin on the card may receive requests (the page's
// Content-Security-Policy). Tokens are kept in memory.
import { signal } from "@preact/signals";
import * as agent from "./agent";
import type { SchemeInfo } from "./card";
import { uuid } from "./format";
import { list, record, text } from "./json";

const CHANNEL = "apcore-a2a.explorer.sign-in";
const PATIENCE = 10 * 60_000; // milliseconds for the user at the issuer
const REFRESHED_BEFORE = 30_000; // milliseconds before the end of a token
const REDIRECT = new URL(agent.meta("a2a-callback") || location.pathname, location.origin).href;
const CLIENT_KEY = "apcore-a2a.explorer.client.";

export type Progress = "" | "waiting" | "failed";
export const progress = signal<Progress>("");
export const failure = signal("");
export const redirectAddress = REDIRECT;

interface Endpoints {
  authorization: string;
  token: string;
}

/** Report the outcome of a sign-in to the page that began it. Return whether this page is such a return. */
export function finishSignIn(): boolean {
  const found = new URLSearchParams(location.search);
  if (!found.get("state") || !(found.get("code") || found.get("error"))) return false;
  new BroadcastChannel(CHANNEL).postMessage(Object.fromEntries(found));
  history.replaceState(null, "", location.pathname); // the code must not stay in the address bar
  document.getElementById("app")!.textContent = "Signed in. You can close this window.";
  window.close();
  return true;
}

/** The client id for an issuer: that of the server's options, or the one that was used last. */
export function knownClient(scheme: SchemeInfo): string {
  try {
    return agent.meta("a2a-client-id") || localStorage.getItem(CLIENT_KEY + issuerOf(scheme)) || "";
  } catch {
    return agent.meta("a2a-client-id"); // the browser blocks storage
  }
}

export function issuerOf(scheme: SchemeInfo): string {
  try {
    return new URL(scheme.discoveryUrl || scheme.authorizationUrl).origin;
  } catch {
    return "an address that is not valid";
  }
}

export async function signIn(scheme: SchemeInfo, client: string, scopes: string): Promise<void> {
  // Opened at once: browsers allow a new window only during a click.
  const window_ = window.open("", "_blank", "popup,width=520,height=720");
  failure.value = "";
  progress.value = "waiting";
  try {
    if (!window_) throw new Error("The browser has blocked the window for the sign-in. Allow pop-ups for this page.");
    if (!crypto.subtle) throw new Error("Sign-in needs https or localhost. Open this page there, or enter a token.");
    const endpoints = await findEndpoints(scheme);
    const verifier = random();
    const state = uuid();
    const returned = waitForReturn(state);
    window_.location.href = await authorizationAddress(endpoints, { client, scopes, state, verifier });
    const code = await returned;
    take(await request(endpoints, { grant_type: "authorization_code", code, redirect_uri: REDIRECT, client_id: client, code_verifier: verifier }), endpoints, client);
    remember(scheme, client);
    progress.value = "";
  } catch (error) {
    window_?.close();
    progress.value = "failed";
    failure.value = error instanceof Error ? error.message : String(error);
  }
}

async function authorizationAddress(endpoints: Endpoints, given: { client: string; scopes: string; state: string; verifier: string }): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(given.verifier));
  const address = new URL(endpoints.authorization);
  const wanted: Record<string, string> = {
    response_type: "code",
    client_id: given.client,
    redirect_uri: REDIRECT,
    state: given.state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  if (given.scopes.trim()) wanted["scope"] = given.scopes.trim();
  for (const [name, value] of Object.entries(wanted)) address.searchParams.set(name, value);
  return address.href;
}

async function findEndpoints(scheme: SchemeInfo): Promise<Endpoints> {
  if (!scheme.discoveryUrl) return check({ authorization: scheme.authorizationUrl, token: scheme.tokenUrl });
  const response = await fetchFrom(scheme.discoveryUrl, { headers: { Accept: "application/json" } });
  const found = record(await response.json());
  return check({ authorization: text(found["authorization_endpoint"]), token: text(found["token_endpoint"]) });
}

function check(endpoints: Endpoints): Endpoints {
  for (const [name, address] of Object.entries(endpoints)) {
    let url: URL;
    try {
      url = new URL(address);
    } catch {
      throw new Error(`The card's ${name} endpoint is not an address: ${address || "it is missing"}`);
    }
    const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(url.hostname);
    if (url.protocol !== "https:" && !(url.protocol === "http:" && isLocal)) throw new Error(`The card's ${name} endpoint does not use https: ${address}`);
  }
  return endpoints;
}

/** Fetch from the issuer, without cookies. A refusal by the policy or by CORS has no details for a page. */
async function fetchFrom(address: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(address, { ...init, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch {
    throw new Error(`${new URL(address).origin} cannot be reached from this page. The issuer must allow requests from ${location.origin} (CORS), and its origin must be that of the card.`);
  }
}

function waitForReturn(state: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const channel = new BroadcastChannel(CHANNEL);
    const timer = setTimeout(() => end(() => reject(new Error("The sign-in was not completed within ten minutes."))), PATIENCE);
    const end = (settle: () => void): void => {
      clearTimeout(timer);
      channel.close();
      settle();
    };
    channel.onmessage = ({ data }) => {
      const returned = record(data);
      if (returned["state"] !== state) return; // of another page
      const code = text(returned["code"]);
      const reason = text(returned["error_description"]) || text(returned["error"]) || "without a reason";
      end(() => (code ? resolve(code) : reject(new Error(`The issuer has refused the sign-in: ${reason}`))));
    };
  });
}

async function request(endpoints: Endpoints, fields: Record<string, string>): Promise<Record<string, any>> {
  const response = await fetchFrom(endpoints.token, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields).toString(),
  });
  let answer: Record<string, any> = {};
  try {
    answer = record(await response.json());
  } catch {
    // reported below by its status
  }
  if (response.ok && text(answer["access_token"])) return answer;
  const reason = text(answer["error_description"]) || text(answer["error"]) || `HTTP ${response.status}`;
  throw new Error(`The issuer has not granted a token: ${reason}`);
}

let refreshing = 0;

function take(answer: Record<string, any>, endpoints: Endpoints, client: string): void {
  const token = text(answer["access_token"]);
  agent.credentials.value = { kind: "bearer", header: "Authorization", value: token };
  agent.credentialsNeeded.value = "";
  clearTimeout(refreshing);
  const refreshToken = text(answer["refresh_token"]);
  const lifetime = Number(answer["expires_in"]) * 1000;
  if (!refreshToken || !(lifetime > 0)) return;
  const refresh = async (): Promise<void> => {
    if (agent.credentials.value?.value !== token) return; // the user has signed out, or in as another user
    try {
      const next = await request(endpoints, { grant_type: "refresh_token", refresh_token: refreshToken, client_id: client });
      take({ refresh_token: refreshToken, ...next }, endpoints, client);
    } catch (error) {
      failure.value = error instanceof Error ? error.message : String(error);
    }
  };
  refreshing = window.setTimeout(() => void refresh(), Math.min(Math.max(lifetime - REFRESHED_BEFORE, 1000), 2 ** 31 - 1));
}

function remember(scheme: SchemeInfo, client: string): void {
  try {
    localStorage.setItem(CLIENT_KEY + issuerOf(scheme), client);
  } catch {
    // then it has to be entered again
  }
}

const random = (): string => base64url(crypto.getRandomValues(new Uint8Array(48)));

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export const scopesOf = (scheme: SchemeInfo): string => list(scheme.scopes).join(" ");
