// @a2a-js/sdk's server on Node: JSON-RPC at /rpc, both versions. Runs in the directory where the packages are installed.
const { parseArgs } = require("node:util");
const load = require("node:module").createRequire(process.cwd() + "/");
const express = load("express");
const { AgentCard, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } = load("@a2a-js/sdk");
const { AgentEvent, DefaultRequestHandler, InMemoryTaskStore, ServerCallContext } = load("@a2a-js/sdk/server");
const { agentCardHandler, jsonRpcHandler, UserBuilder } = load("@a2a-js/sdk/server/express");

const { values: given } = parseArgs({ options: { port: { type: "string" }, fill: { type: "string", default: "0" } } });
const text = "x".repeat(50);
let gates = [];

const turn = () => new Promise((resolve) => setImmediate(resolve));

async function prepare(word, rest) {
  if (word === "hang") await new Promise(() => {});
  if (word === "sleep") await new Promise((resolve) => setTimeout(resolve, 1000 * Number(rest)));
  if (word === "open") gates.splice(0).forEach((open) => open());
  if (word.startsWith("gate")) await new Promise((resolve) => gates.push(resolve));
  return ["count", "yield", "gate", "gate-yield"].includes(word) ? Number(rest) : 1;
}

const agent = {
  async execute({ userMessage, taskId, contextId }, bus) {
    const ids = { taskId, contextId };
    const status = (state) =>
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ ...ids, status: { state } })));
    const history = [Message.toJSON(userMessage)];
    const fresh = { id: taskId, contextId, status: { state: "TASK_STATE_SUBMITTED" }, history };
    bus.publish(AgentEvent.task(Task.fromJSON(fresh)));
    status("TASK_STATE_WORKING");
    const [word, rest] = history[0].parts[0].text.split(" ");
    const chunks = await prepare(word, rest);
    for (let number = 0; number < chunks; number++) {
      const artifact = { artifactId: "answer", parts: [{ text }] };
      const update = { ...ids, append: number > 0, lastChunk: number === chunks - 1, artifact };
      bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON(update)));
      if (word.endsWith("yield")) await turn();
    }
    status("TASK_STATE_COMPLETED");
    bus.finished();
  },
  async cancelTask() {},
};

const padded = (number) => String(number).padStart(12, "0");

async function fill(store, tasks) {
  for (let number = 0; number < tasks; number++) {
    const [id, contextId] = [`00000000-0000-4000-8000-${padded(number)}`, `11111111-0000-4000-8000-${padded(number)}`];
    const status = { state: "TASK_STATE_COMPLETED", timestamp: new Date().toISOString() };
    const artifacts = [{ artifactId: "answer", parts: [{ text }] }];
    const history = [{ messageId: `m${number}`, role: "ROLE_USER", parts: [{ text: "echo" }], taskId: id, contextId }];
    await store.save(Task.fromJSON({ id, contextId, status, artifacts, history }), new ServerCallContext());
  }
}

async function main() {
  const url = `http://127.0.0.1:${given.port}/rpc`;
  const card = AgentCard.fromJSON({
    name: "bench",
    description: "does as it is told",
    version: "1",
    supportedInterfaces: ["1.0", "0.3"].map((protocolVersion) => ({ url, protocolBinding: "JSONRPC", protocolVersion })),
    capabilities: { streaming: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "obey", name: "Obey", description: "", tags: ["test"] }],
  });
  const store = new InMemoryTaskStore();
  await fill(store, Number(given.fill));
  const requestHandler = new DefaultRequestHandler(card, store, agent);
  const app = express();
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
  app.use(
    "/rpc",
    jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } }),
  );
  app.listen(Number(given.port), "127.0.0.1");
}

main();
