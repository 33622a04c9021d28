// A server of @a2a-js/sdk: JSON-RPC at /rpc and REST at /rest, each with both versions, and gRPC at a port of its own. Its
// card is signed, and the public key is at /jwks.json. Runs in the directory where the packages are installed, and prints
// its ports.
const { generateKeyPairSync, randomUUID } = require("node:crypto");
const load = require("node:module").createRequire(process.cwd() + "/");
const express = load("express");
const grpc = load("@grpc/grpc-js");
const { AgentCard, generateAgentCardSignature, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } =
  load("@a2a-js/sdk");
const { AgentEvent, DefaultRequestHandler, InMemoryPushNotificationStore, InMemoryTaskStore } =
  load("@a2a-js/sdk/server");
const { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } = load("@a2a-js/sdk/server/express");
const { A2AService, grpcService, UserBuilder: GrpcUserBuilder } = load("@a2a-js/sdk/server/grpc");
const old = load("@a2a-js/sdk/compat/v0_3/server/grpc");

const hanging = new Map();

const agent = {
  async execute({ userMessage, task, taskId, contextId }, bus) {
    const ids = { taskId, contextId };
    const says = (text) => ({ messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text }] });
    const status = (state, message) =>
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ ...ids, status: { state, message } })));
    const artifact = (text, append) =>
      bus.publish(
        AgentEvent.artifactUpdate(
          TaskArtifactUpdateEvent.fromJSON({ ...ids, append, artifact: { artifactId: "numbers", parts: [{ text }] } }),
        ),
      );
    const [word, ...rest] = Message.toJSON(userMessage).parts[0].text.split(" ");
    if (word === "message") {
      bus.publish(AgentEvent.message(Message.fromJSON({ ...says("hello"), contextId })));
      bus.finished();
      return;
    }
    const history = [Message.toJSON(userMessage)];
    const fresh = { id: taskId, contextId, status: { state: "TASK_STATE_SUBMITTED" }, history };
    bus.publish(AgentEvent.task(task ?? Task.fromJSON(fresh)));
    status("TASK_STATE_WORKING");
    if (word === "ask") status("TASK_STATE_INPUT_REQUIRED", says("which one?"));
    else if (word === "fail") status("TASK_STATE_FAILED", says("no"));
    else if (word === "hang") {
      await new Promise((resolve) => hanging.set(taskId, resolve));
      status("TASK_STATE_CANCELED");
    } else {
      const texts = word === "count" ? [...Array(Number(rest[0])).keys()].map(String) : [rest.join(" ")];
      texts.forEach((text, index) => artifact(text, index > 0));
      status("TASK_STATE_COMPLETED");
    }
    bus.finished();
  },
  async cancelTask(taskId) {
    hanging.get(taskId)?.();
  },
};

function card(url, target, name) {
  const offers = [
    [url + "/rpc", "JSONRPC", "1.0"],
    [url + "/rest", "HTTP+JSON", "1.0"],
    [target, "GRPC", "1.0"],
    [url + "/rpc", "JSONRPC", "0.3"],
    [url + "/rest", "HTTP+JSON", "0.3"],
    [target, "GRPC", "0.3"],
  ];
  return AgentCard.fromJSON({
    name,
    description: "does as it is told",
    version: "1",
    supportedInterfaces: offers.map(([address, protocolBinding, protocolVersion]) => ({
      url: address,
      protocolBinding,
      protocolVersion,
    })),
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "obey", name: "Obey", description: "", tags: ["test"] }],
  });
}

const app = express();
const calls = new grpc.Server();
const server = app.listen(0, "127.0.0.1", () => {
  calls.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (_, port) => start(server.address().port, port));
});

function start(port, grpcPort) {
  const target = `127.0.0.1:${grpcPort}`;
  const url = `http://127.0.0.1:${port}`;
  const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const requestHandler = new DefaultRequestHandler(
    card(url, target, "js"),
    new InMemoryTaskStore(),
    agent,
    undefined,
    new InMemoryPushNotificationStore(),
    undefined,
    card(url, target, "js, extended"),
    generateAgentCardSignature(privateKey, { alg: "ES256", kid: "js", typ: "JOSE" }),
  );
  const parts = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } };
  app.get("/jwks.json", (_, response) => response.json({ keys: [{ ...publicKey.export({ format: "jwk" }), kid: "js" }] }));
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
  app.use("/rpc", jsonRpcHandler(parts));
  app.use("/rest", restHandler(parts));
  const callParts = { requestHandler, userBuilder: GrpcUserBuilder.noAuthentication };
  calls.addService(A2AService, grpcService(callParts));
  calls.addService(old.LegacyA2AService, old.legacyGrpcService(callParts));
  console.log(port, grpcPort);
}
