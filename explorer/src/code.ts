// This call as code for a terminal or a program.
import { METHODS, type Operation, type Part, type Version } from "./a2a";
import { PREFIXES, type Credentials } from "./agent";
import { Exact, isObject, list, record, text } from "./json";

export interface Call {
  address: string;
  version: Version;
  operation: Operation;
  params: unknown;
  credentials: Credentials | null;
}
export type Language = "curl" | "apcore-a2a" | "Python" | "JavaScript";
export const LANGUAGES: Language[] = ["curl", "apcore-a2a", "Python", "JavaScript"];

export function write(language: Language, call: Call): string {
  switch (language) {
    case "curl":
      return curl(call);
    case "apcore-a2a":
      return commandLine(call);
    case "Python":
      return python(call);
    case "JavaScript":
      return javascript(call);
  }
}

/** Quoted for a POSIX shell, so that no character is interpreted. */
export const quote = (value: string): string => (/^[\w@%+=:,./-]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`);

const envelope = (call: Call, indent?: number): string =>
  JSON.stringify({ jsonrpc: "2.0", id: 1, method: METHODS[call.version][call.operation], params: call.params }, null, indent);

function headersOf(call: Call): [string, string][] {
  const found: [string, string][] = [
    ["Content-Type", "application/json"],
    ["A2A-Version", call.version],
  ];
  const shown = call.credentials;
  if (shown && shown.kind !== "basic") found.push([shown.header, `${PREFIXES[shown.kind]}$A2A_TOKEN`]);
  return found;
}

function curl(call: Call): string {
  const isStream = call.operation === "stream" || call.operation === "subscribe";
  const lines = [`curl -s${isStream ? "N" : ""} ${quote(call.address)}`];
  for (const [name, value] of headersOf(call)) {
    // The token comes from the environment, so the header is in double quotes. Its name comes from the card, so it is
    // escaped.
    const isSecret = value.includes("$A2A_TOKEN");
    lines.push(isSecret ? `-H ${quote(`${name}: `)}"${value}"` : `-H ${quote(`${name}: ${value}`)}`);
  }
  if (call.credentials?.kind === "basic") lines.push('-u "$A2A_TOKEN"'); // NAME:PASSWORD
  lines.push(`--data-binary ${quote(envelope(call))}`);
  return lines.join(" \\\n  ");
}

function messageOf(call: Call): { parts: Part[]; message: Record<string, any> } {
  const message = record(record(call.params)["message"]);
  const parts: Part[] = list(message["parts"]).map((part: Record<string, any>) => {
    const file = record(part["file"]);
    if ("text" in part) return { text: text(part["text"]) };
    if ("data" in part) return { data: part["data"] };
    return {
      raw: text(part["raw"] ?? file["bytes"]),
      filename: text(part["filename"] ?? file["name"]),
      mediaType: text(part["mediaType"] ?? file["mimeType"]),
    };
  });
  return { parts, message };
}

function commandLine(call: Call): string {
  const { parts, message } = messageOf(call);
  const params = record(call.params);
  const words: string[] = [];
  switch (call.operation) {
    case "send":
    case "stream":
      words.push(`apcore-a2a ${call.operation} ${quote(call.address)}`);
      for (const part of parts) {
        if (part.text !== undefined) words.push(`--text ${quote(part.text.startsWith("@") || part.text === "-" ? `@${part.text}` : part.text)}`);
        else if ("data" in part) words.push(`--data ${quote(JSON.stringify(part.data))}`);
        else words.push(`--file ${quote(part.filename || "file")}`);
      }
      if (record(message["metadata"])["skillId"]) words.push(`--skill ${quote(text(record(message["metadata"])["skillId"]))}`);
      if (message["contextId"]) words.push(`--context-id ${quote(text(message["contextId"]))}`);
      if (message["taskId"]) words.push(`--task-id ${quote(text(message["taskId"]))}`);
      if (isBackground(params)) words.push("--async");
      break;
    default:
      words.push(`apcore-a2a task ${call.operation} ${quote(call.address)} ${quote(text(params["id"]))}`);
  }
  if (call.version === "0.3") words.push("--a2a-version 0.3");
  const variables = { bearer: "A2ACLI_BEARER", basic: "A2ACLI_BASIC", key: "A2ACLI_API_KEY" };
  const secret = call.credentials ? `${variables[call.credentials.kind]}="$A2A_TOKEN" ` : "";
  return secret + words.join(" \\\n  ");
}

function isBackground(params: Record<string, any>): boolean {
  const configuration = record(params["configuration"]);
  return configuration["returnImmediately"] === true || configuration["blocking"] === false;
}

/** A JSON value in Python syntax. */
export function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (value instanceof Exact) return value.source;
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (isObject(value)) return `{${Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${pythonValue(member)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function python(call: Call): string {
  const { parts, message } = messageOf(call);
  const params = record(call.params);
  const isStream = call.operation === "stream";
  const isSend = isStream || call.operation === "send";
  const models: string[] = [];
  const needs = (name: string): string => {
    if (!models.includes(name)) models.push(name);
    return name;
  };
  const contents = parts.map((part) => {
    if (part.text !== undefined) return parts.length === 1 ? pythonValue(part.text) : `${needs("Part")}(text=${pythonValue(part.text)})`;
    if ("data" in part) {
      const isPlain = isObject(part.data) && !("parts" in part.data) && parts.length === 1;
      return isPlain ? pythonValue(part.data) : `${needs("Part")}(data=${pythonValue(part.data)})`;
    }
    return `${needs("Part")}(raw=Path(${pythonValue(part.filename || "file")}).read_bytes(), filename=${pythonValue(part.filename)}, media_type=${pythonValue(part.mediaType)})`;
  });
  const options: string[] = [];
  const skill = record(message["metadata"])["skillId"];
  if (skill) options.push(`skill=${pythonValue(skill)}`);
  if (message["contextId"]) options.push(`context_id=${pythonValue(message["contextId"])}`);
  if (message["taskId"]) options.push(`task_id=${pythonValue(message["taskId"])}`);
  if (isSend && isBackground(params)) options.push(`configuration=${needs("SendConfiguration")}(return_immediately=True)`);
  const said = contents.length === 1 && !contents[0]!.startsWith("Part(") ? contents[0]! : `[${contents.join(", ")}]`;
  const client: string[] = [pythonValue(call.address)];
  const imports = ["import asyncio"];
  if (call.credentials) {
    imports.push("import os");
    const token = 'os.environ["A2A_TOKEN"]';
    const auth = { bearer: `BearerAuth(${token})`, basic: `BasicAuth(*${token}.split(":", 1))`, key: `ApiKeyAuth(${token}, header=${pythonValue(call.credentials.header)})` };
    client.push(`auth=${auth[call.credentials.kind]}`);
  }
  if (parts.some((part) => part.raw !== undefined)) imports.push("from pathlib import Path");
  if (call.version === "0.3") client.push('version="0.3"');
  const lines = [...imports, "", `from apcore_a2a import ${["A2AClient", ...models.sort()].join(", ")}`];
  if (call.credentials) lines.push(`from apcore_a2a.client import ${{ bearer: "BearerAuth", basic: "BasicAuth", key: "ApiKeyAuth" }[call.credentials.kind]}`);
  lines.push("", "", "async def main() -> None:", `    async with A2AClient(${client.join(", ")}) as client:`);
  const given = [said, ...options].join(", ");
  if (isStream) lines.push(`        async for event in client.stream_message(${given}):`, "            print(event.to_dict())");
  else if (isSend) lines.push(`        answer = await client.send_message(${given})`, "        print(answer.to_dict())");
  else lines.push(`        task = await client.get_task(${pythonValue(params["id"])})`, "        print(task.to_dict())");
  lines.push("", "", "asyncio.run(main())");
  return lines.join("\n");
}

function javascript(call: Call): string {
  const headers = Object.fromEntries(headersOf(call));
  const isStream = call.operation === "stream" || call.operation === "subscribe";
  let shown = JSON.stringify(headers, null, 2).replaceAll("\n", "\n  ");
  if (call.credentials?.kind === "basic") shown = shown.replace(/\n(\s*)\}$/, ',\n$1  "Authorization": `Basic ${btoa(process.env.A2A_TOKEN)}`\n$1}');
  shown = shown.replace('"Bearer $A2A_TOKEN"', "`Bearer ${process.env.A2A_TOKEN}`").replace('"$A2A_TOKEN"', "process.env.A2A_TOKEN");
  const lines = [
    `const response = await fetch(${JSON.stringify(call.address)}, {`,
    '  method: "POST",',
    `  headers: ${shown},`,
    `  body: JSON.stringify(${envelope(call, 2).replaceAll("\n", "\n  ")}),`,
    "});",
  ];
  if (!isStream) return [...lines, "console.log(JSON.stringify(await response.json(), null, 2));"].join("\n");
  return [
    ...lines,
    'let rest = "";',
    "for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {",
    "  const frames = (rest + chunk).split(/\\r?\\n\\r?\\n/);",
    "  rest = frames.pop();",
    "  for (const frame of frames) {",
    "    const data = frame.split(/\\r?\\n/).filter((line) => line.startsWith(\"data:\"));",
    "    if (data.length) console.log(JSON.stringify(JSON.parse(data.map((line) => line.slice(5)).join(\"\\n\")).result));",
    "  }",
    "}",
  ].join("\n");
}
