// Records what the client and the server of @a2a-js/sdk 0.3.x say to each other, on a loopback port. See README.md.
import { writeFileSync } from "node:fs";
import express from "express";
import { JsonRpcTransport, RestTransport } from "@a2a-js/sdk/client";
import { DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from "@a2a-js/sdk/server/express";

const PARTS = [
  { kind: "text", text: "grüße 👋 \u2028", metadata: { n: 1, f: 1.5, deep: { list: [null, true] } } },
  { kind: "data", data: { count: 42, ratio: 0.1 } },
  { kind: "file", file: { bytes: "AP8=", name: "a.bin", mimeType: "application/octet-stream" } },
  { kind: "file", file: { uri: "https://example.com/a.txt", name: "a.txt" }, metadata: { x: "y" } },
];
const CARD = {
  name: "Recorder",
  description: "says one of everything",
  version: "1.2.3",
  protocolVersion: "0.3.0",
  url: "http://jsonrpc.test/",
  preferredTransport: "JSONRPC",
  capabilities: { streaming: true, pushNotifications: true, stateTransitionHistory: false },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "echo", name: "Echo", description: "repeats", tags: ["text"] }],
  supportsAuthenticatedExtendedCard: true,
  securitySchemes: { bearer: { type: "http", scheme: "bearer" } },
  security: [{ bearer: [] }],
};

class Executor {
  async execute(context, bus) {
    const { taskId, contextId, userMessage, task } = context;
    const say = (text) => ({
      kind: "message", messageId: crypto.randomUUID(), role: "agent", parts: [{ kind: "text", text }], taskId, contextId,
    });
    const update = (state, final, message) => {
      const status = { state, timestamp: new Date().toISOString(), message };
      bus.publish({ kind: "status-update", taskId, contextId, final, status });
    };
    const word = userMessage.parts[0].text.split(" ")[0];
    if (word === "message") {
      bus.publish({ ...say("hi"), parts: PARTS });
      return bus.finished();
    }
    if (!task) {
      const metadata = { skillId: "echo" };
      bus.publish({ kind: "task", id: taskId, contextId, status: { state: "submitted" }, history: [userMessage], metadata });
    }
    update("working", false, say("on it"));
    if (word === "ask") update("input-required", true, say("which one?"));
    else if (word === "fail") update("failed", true, say("no"));
    else {
      PARTS.forEach((part, index) =>
        bus.publish({
          kind: "artifact-update", taskId, contextId, append: index > 0, lastChunk: index === PARTS.length - 1,
          artifact: { artifactId: "a-1", name: "result", parts: [part], metadata: { chunk: index } },
        }));
      update("completed", true);
    }
    bus.finished();
  }
  async cancelTask(taskId, bus) {
    bus.publish({ kind: "status-update", taskId, contextId: "c", final: true, status: { state: "canceled" } });
    bus.finished();
  }
}

const events = (text) => {
  const lines = text.split("\n\n").map((block) => block.split("\n").filter((line) => line.startsWith("data:")));
  return lines.filter((data) => data.length).map((data) => JSON.parse(data.map((line) => line.slice(5)).join("\n")));
};
const frames = [];
const recording = (binding) => async (url, options = {}) => {
  const response = await fetch(url, options);
  const body = await response.clone().text();
  const { pathname, search } = new URL(url);
  const frame = { binding, http: `${options.method ?? "GET"} ${pathname}${search}` };
  if (options.body) frame.request = JSON.parse(options.body);
  frame.status = response.status;
  if (response.headers.get("content-type")?.includes("event-stream")) frame.events = events(body);
  else frame.response = body ? JSON.parse(body) : null;
  frames.push(frame);
  return response;
};

const params = (text, extra = {}) => ({
  message: {
    kind: "message", messageId: `m-${text.replaceAll(" ", "-")}`, role: "user",
    parts: [{ kind: "text", text }, ...(text.includes("parts") ? PARTS : [])], ...extra,
  },
  configuration: { blocking: true, acceptedOutputModes: ["text/plain"], historyLength: 5 },
  metadata: { skillId: "echo" },
});

async function converse(transport) {
  await transport.sendMessage(params("message please"));
  const done = await transport.sendMessage(params("work with parts"));
  await transport.getTask({ id: done.id, historyLength: 2 });
  await transport.getTask({ id: "nobody" }).catch(() => {});
  await transport.cancelTask({ id: done.id }).catch(() => {});
  const asked = await transport.sendMessage(params("ask me", { contextId: "c-1" }));
  const authentication = { schemes: ["Bearer"], credentials: "secret" };
  const push = { id: "p-1", url: "https://example.com/hook", token: "token", authentication };
  const named = { id: asked.id, pushNotificationConfigId: "p-1" };
  const refused = () => {}; // over REST its server refuses the push config that its client sends
  await transport.setTaskPushNotificationConfig({ taskId: asked.id, pushNotificationConfig: push }).catch(refused);
  await transport.getTaskPushNotificationConfig(named).catch(refused);
  await transport.listTaskPushNotificationConfig({ id: asked.id });
  await transport.deleteTaskPushNotificationConfig(named);
  await transport.sendMessage(params("fail now", { taskId: asked.id, contextId: asked.contextId }));
  const waiting = await transport.sendMessage(params("ask again"));
  await transport.cancelTask({ id: waiting.id });
  for (const text of ["work in a stream with parts", "ask in a stream", "message in a stream"])
    for await (const _ of transport.sendMessageStream(params(text)));
  await transport.getExtendedAgentCard();
}

const defaults = [undefined, undefined, undefined];
const requestHandler = new DefaultRequestHandler(CARD, new InMemoryTaskStore(), new Executor(), ...defaults, CARD);
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
const app = express();
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/rest", restHandler(options));
app.use("/", jsonRpcHandler(options));
const server = app.listen(0, "127.0.0.1", async () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  await recording("jsonrpc")(`${url}/.well-known/agent-card.json`);
  await converse(new JsonRpcTransport({ endpoint: url, fetchImpl: recording("jsonrpc") }));
  await converse(new RestTransport({ endpoint: `${url}/rest`, fetchImpl: recording("rest") }));
  writeFileSync(process.argv[2], `${JSON.stringify(frames, null, 1)}\n`);
  server.close();
  server.closeAllConnections();
});
