// The agent's card in one form for both versions, and its problems by JSON pointer.
import { isObject, list, record, text } from "./json";
import type { Version } from "./a2a";
import type { Schema } from "./schema";

// The extension in which apcore-a2a agents publish the schemas of their skills.
const MODULES = "urn:apcore:a2a:modules:1";
const IDEMPOTENCY = "urn:apcore:a2a:idempotency-key:1";

export interface Interface {
  url: string;
  binding: string;
  version: string;
}
export interface Skill {
  id: string;
  name: string;
  description: string;
  tags: string[];
  examples: Sample[];
  inputModes: string[];
  outputModes: string[];
  inputSchema: Schema | null;
  outputSchema: Schema | null;
  badges: Badge[];
}
export interface Sample {
  title: string;
  input: unknown; // an object for a form, a string for a message
}
export type Badge = "streaming" | "approval" | "read-only" | "destructive";
/** How this page can obtain or take the credentials of a scheme. "none": it cannot. */
export type Way = "bearer" | "key" | "basic" | "code" | "none";
export interface SchemeInfo {
  name: string;
  kind: string;
  way: Way;
  header: string; // the header of an API key; empty for other kinds
  about: string; // what the user should know, such as why the page cannot use the scheme
  authorizationUrl: string; // of an authorization code flow
  tokenUrl: string;
  discoveryUrl: string; // of OpenID Connect
  scopes: string[];
}
export interface Card {
  raw: Record<string, any>;
  name: string;
  description: string;
  version: string;
  provider: string;
  documentation: string;
  interfaces: Interface[];
  streaming: boolean;
  push: boolean;
  extended: boolean;
  extensions: { uri: string; description: string; required: boolean }[];
  skills: Skill[];
  schemes: SchemeInfo[];
  signatures: Record<string, any>[];
  isOurs: boolean;
}

export function readCard(raw: Record<string, any>): Card {
  const capabilities = record(raw["capabilities"]);
  const extensions = list(capabilities["extensions"]).map(record);
  const modules = extensions.find((extension) => extension["uri"] === MODULES);
  const described = record(record(modules?.["params"])["skills"]);
  return {
    raw,
    name: text(raw["name"]) || "Unnamed agent",
    description: text(raw["description"]),
    version: text(raw["version"]),
    provider: text(record(raw["provider"])["organization"]),
    documentation: text(raw["documentationUrl"]),
    interfaces: readInterfaces(raw),
    streaming: capabilities["streaming"] === true,
    push: capabilities["pushNotifications"] === true,
    extended: capabilities["extendedAgentCard"] === true || raw["supportsAuthenticatedExtendedCard"] === true,
    extensions: extensions.map((extension) => ({
      uri: text(extension["uri"]),
      description: text(extension["description"]),
      required: extension["required"] === true,
    })),
    skills: list(raw["skills"]).filter(isObject).map((skill) => readSkill(skill, record(described[text(skill["id"])]), raw)),
    schemes: Object.entries(record(raw["securitySchemes"])).map(([name, scheme]) => readScheme(name, record(scheme), requiredScopes(raw, name))),
    signatures: list(raw["signatures"]).map(record),
    isOurs: extensions.some((extension) => extension["uri"] === IDEMPOTENCY),
  };
}

function readInterfaces(raw: Record<string, any>): Interface[] {
  const found: Interface[] = [];
  for (const item of list(raw["supportedInterfaces"]).map(record)) {
    found.push({ url: text(item["url"]), binding: text(item["protocolBinding"]), version: text(item["protocolVersion"]) });
  }
  if (typeof raw["url"] === "string" && !found.length) {
    const version = text(raw["protocolVersion"]) || "0.3";
    found.push({ url: raw["url"], binding: text(raw["preferredTransport"]) || "JSONRPC", version });
    for (const item of list(raw["additionalInterfaces"]).map(record)) {
      const binding = text(item["transport"]);
      if (item["url"] !== raw["url"] || binding !== found[0]!.binding) found.push({ url: text(item["url"]), binding, version });
    }
  }
  return found;
}

/** The versions that the agent supports over JSON-RPC, newest first. */
export function spokenVersions(card: Card): Version[] {
  const spoken = new Set<Version>();
  for (const item of card.interfaces) {
    if (item.binding !== "JSONRPC") continue;
    spoken.add(item.version.startsWith("1.") || item.version === "" ? "1.0" : "0.3");
  }
  const found = (["1.0", "0.3"] as Version[]).filter((version) => spoken.has(version));
  return found.length ? found : ["1.0"];
}

function readSkill(skill: Record<string, any>, described: Record<string, any>, card: Record<string, any>): Skill {
  const annotations = record(described["annotations"]);
  const tags = list(skill["tags"]).map(text).filter(Boolean);
  const badges: Badge[] = [];
  if (described["streaming"] === true || annotations["streaming"] === true) badges.push("streaming");
  if (annotations["requires_approval"] === true) badges.push("approval");
  if (annotations["destructive"] === true) badges.push("destructive");
  else if (annotations["readonly"] === true) badges.push("read-only");
  const modes = (name: string, usual: string): string[] => {
    const own = list(skill[name]).map(text).filter(Boolean);
    return own.length ? own : list(card[usual]).map(text).filter(Boolean);
  };
  return {
    id: text(skill["id"]),
    name: text(skill["name"]) || text(skill["id"]),
    description: text(skill["description"]),
    tags,
    examples: readSamples(skill, described),
    inputModes: modes("inputModes", "defaultInputModes"),
    outputModes: modes("outputModes", "defaultOutputModes"),
    inputSchema: isObject(described["inputSchema"]) ? (described["inputSchema"] as Schema) : null,
    outputSchema: isObject(described["outputSchema"]) ? (described["outputSchema"] as Schema) : null,
    badges,
  };
}

function readSamples(skill: Record<string, any>, described: Record<string, any>): Sample[] {
  const samples = list(described["examples"]).filter(isObject);
  if (samples.length) return samples.map((sample) => ({ title: text(sample["name"]) || "Example", input: sample["input"] }));
  return list(skill["examples"])
    .map(text)
    .filter(Boolean)
    .map((example) => ({ title: example.length > 60 ? `${example.slice(0, 57)}…` : example, input: example }));
}

/** The scopes that the card's security requirements name for a scheme. */
function requiredScopes(raw: Record<string, any>, name: string): string[] {
  const found = new Set<string>();
  for (const item of list(raw["securityRequirements"] ?? raw["security"])) {
    const needed = record(record(item)["schemes"] ?? item)[name];
    for (const scope of list(record(needed)["list"] ?? needed).map(text)) if (scope) found.add(scope);
  }
  return [...found];
}

function readScheme(name: string, scheme: Record<string, any>, required: string[]): SchemeInfo {
  const info = (way: Way, kind: string, more: Partial<SchemeInfo> = {}): SchemeInfo => ({
    ...{ name, kind, way, header: "", about: "", authorizationUrl: "", tokenUrl: "", discoveryUrl: "", scopes: required },
    ...more,
  });
  // 1.0 nests a scheme below its kind, 0.3 has the kind in a field.
  const member = (nested: string, type: string): Record<string, any> | null => {
    if (isObject(scheme[nested])) return scheme[nested];
    return scheme["type"] === type ? scheme : null;
  };
  const key = member("apiKeySecurityScheme", "apiKey");
  if (key) {
    const place = text(key["location"]) || text(key["in"]);
    if (place === "header") return info("key", `API key in ${text(key["name"])}`, { header: text(key["name"]) });
    return info("none", `API key (${place})`, { about: `A page can send an API key only in a header, and this one belongs into the ${place || "request"}.` });
  }
  const http = member("httpAuthSecurityScheme", "http");
  if (http) {
    const kind = text(http["scheme"]).toLowerCase();
    if (kind === "basic") return info("basic", "HTTP Basic");
    if (kind === "bearer") return info("bearer", "Bearer token");
    return info("none", `HTTP ${text(http["scheme"])}`, { about: "This page does not support this scheme." });
  }
  const connect = member("openIdConnectSecurityScheme", "openIdConnect");
  if (connect) return info("code", "OpenID Connect", { discoveryUrl: text(connect["openIdConnectUrl"]), scopes: required.includes("openid") ? required : ["openid", ...required] });
  const oauth = member("oauth2SecurityScheme", "oauth2");
  if (oauth) {
    const flow = record(record(oauth["flows"])["authorizationCode"]);
    const scopes = required.length ? required : Object.keys(record(flow["scopes"]));
    if (text(flow["authorizationUrl"])) return info("code", "OAuth 2.0", { authorizationUrl: text(flow["authorizationUrl"]), tokenUrl: text(flow["tokenUrl"]), scopes });
    return info("bearer", "OAuth 2.0", { about: "The card describes no flow that a browser can use. Get a token elsewhere, and enter it." });
  }
  if (member("mtlsSecurityScheme", "mutualTLS")) return info("none", "mutual TLS", { about: "The browser presents the client certificate. Import it there." });
  return info("none", "unknown", { about: "This page does not know this scheme." });
}

/** Skills grouped by the part of their ids before the first dot, slash or colon. Single skills form one group. */
export function groupSkills(skills: Skill[]): [string, Skill[]][] {
  const groups = new Map<string, Skill[]>();
  for (const skill of skills) {
    const prefix = /^([^./:]+)[./:]/.exec(skill.id)?.[1] ?? "";
    groups.set(prefix, [...(groups.get(prefix) ?? []), skill]);
  }
  return [...groups].sort(([one], [other]) => one.localeCompare(other));
}

// ---- checking -------------------------------------------------------------------------------------------------------

export interface Finding {
  pointer: string;
  message: string;
  level: "error" | "warning";
}

/** The requirements of the specification that the card alone can show (1.0 §4.4, §8). */
export function checkCard(raw: Record<string, any>): Finding[] {
  const findings: Finding[] = [];
  const say = (level: Finding["level"], pointer: string, message: string): void => {
    findings.push({ level, pointer, message });
  };
  const needText = (holder: Record<string, any>, pointer: string, name: string): void => {
    if (typeof holder[name] !== "string") say("error", `${pointer}/${name}`, `${name} is required and must be a string`);
    else if (!holder[name].trim()) say("warning", `${pointer}/${name}`, `${name} is empty`);
  };
  const needList = (holder: Record<string, any>, pointer: string, name: string): any[] => {
    if (!Array.isArray(holder[name])) say("error", `${pointer}/${name}`, `${name} is required and must be an array`);
    return list(holder[name]);
  };
  for (const name of ["name", "description", "version"]) needText(raw, "", name);
  if (!isObject(raw["capabilities"])) say("error", "/capabilities", "capabilities is required and must be an object");
  checkInterfaces(raw, say);
  for (const name of ["defaultInputModes", "defaultOutputModes"]) {
    needList(raw, "", name).forEach((mode, index) => {
      if (!/^[^/\s]+\/[^/\s]+$/.test(text(mode))) say("warning", `/${name}/${index}`, "not a media type such as text/plain");
    });
  }
  const ids = new Map<string, number>();
  needList(raw, "", "skills").forEach((skill, index) => {
    const pointer = `/skills/${index}`;
    if (!isObject(skill)) return say("error", pointer, "a skill must be an object");
    for (const name of ["id", "name", "description"]) needText(skill, pointer, name);
    needList(skill, pointer, "tags");
    const id = text(skill["id"]);
    if (ids.has(id)) say("error", `${pointer}/id`, `the id ${id} is not unique: /skills/${ids.get(id)} has it too`);
    ids.set(id, index);
  });
  if (Array.isArray(raw["skills"]) && !raw["skills"].length) say("warning", "/skills", "the agent has no skills");
  checkSecurity(raw, say);
  list(raw["signatures"]).forEach((signature, index) => {
    for (const name of ["protected", "signature"]) needText(record(signature), `/signatures/${index}`, name);
  });
  return findings;
}

type Say = (level: Finding["level"], pointer: string, message: string) => void;

function checkInterfaces(raw: Record<string, any>, say: Say): void {
  const isOld = !("supportedInterfaces" in raw) && "url" in raw;
  if (isOld) {
    if (!isAddress(raw["url"])) say("error", "/url", "url must be an absolute http or https address");
    if (!raw["protocolVersion"]) say("warning", "/protocolVersion", "protocolVersion is missing, and 0.3 requires it");
    return;
  }
  if (!Array.isArray(raw["supportedInterfaces"]) || !raw["supportedInterfaces"].length) {
    say("error", "/supportedInterfaces", "supportedInterfaces is required and must name at least one interface");
  }
  list(raw["supportedInterfaces"]).forEach((item, index) => {
    const pointer = `/supportedInterfaces/${index}`;
    const entry = record(item);
    // gRPC addresses are host:port, without a scheme.
    const isRpc = text(entry["protocolBinding"]) === "GRPC" && /^[^\s/]+(:\d+)?\/?$/.test(text(entry["url"]));
    if (!isRpc && !isAddress(entry["url"])) say("error", `${pointer}/url`, "url must be an absolute http or https address");
    if (!text(entry["protocolBinding"])) say("error", `${pointer}/protocolBinding`, "protocolBinding is required");
    if (!text(entry["protocolVersion"])) say("error", `${pointer}/protocolVersion`, "protocolVersion is required");
  });
}

function checkSecurity(raw: Record<string, any>, say: Say): void {
  const schemes = record(raw["securitySchemes"]);
  const asked = list(raw["securityRequirements"] ?? raw["security"]);
  asked.forEach((item, index) => {
    for (const name of Object.keys(record(record(item)["schemes"] ?? item))) {
      if (!(name in schemes)) say("error", `/securityRequirements/${index}`, `names the scheme ${name}, which is not declared`);
    }
  });
  if (Object.keys(schemes).length && !asked.length) {
    say("warning", "/securitySchemes", "schemes are declared, and none is required");
  }
}

function isAddress(value: unknown): boolean {
  try {
    return ["http:", "https:", "grpc:"].includes(new URL(text(value)).protocol);
  } catch {
    return false;
  }
}
