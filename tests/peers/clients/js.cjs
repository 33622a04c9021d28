// @a2a-js/sdk: the parts of the stored task after a stream. Run it where the package is installed. The address of an agent
// at a path needs the slash at its end: the client resolves the path of the card relative to it.
const { randomUUID } = require("node:crypto");
const load = require("node:module").createRequire(process.cwd() + "/");
const sdk = load("@a2a-js/sdk");
const { ClientFactory } = load("@a2a-js/sdk/client");

const tasks = new Map(); // of each address and conversation

function plain({ content: { $case, value } }) {
  if ($case === "raw") return Buffer.from(value).toString();
  return $case === "data" ? JSON.stringify(value) : value;
}

function request(text, taskId = "") {
  const message = { messageId: randomUUID(), role: "ROLE_USER", parts: [{ text }], taskId };
  return sdk.SendMessageRequest.fromJSON({ message });
}

const actions = {
  async ask({ url, text, talk }) {
    const client = await new ClientFactory().createFromUrl(`${url}/`);
    const pieces = [];
    for await (const { payload } of client.sendMessageStream(request(text, tasks.get(url + talk)))) {
      if (payload.$case === "task") tasks.set(url + talk, payload.value.id);
      if (payload.$case === "artifactUpdate") pieces.push(...payload.value.artifact.parts.map(plain));
    }
    const task = await client.getTask({ tenant: "", id: tasks.get(url + talk), historyLength: undefined });
    const parts = task.artifacts.flatMap((artifact) => artifact.parts);
    return { shown: (parts.length ? parts : task.status.message.parts).map(plain), pieces };
  },
  async cancel({ url }) {
    const client = await new ClientFactory().createFromUrl(`${url}/`);
    for await (const { payload } of client.sendMessageStream(request("go"))) {
      if (payload.$case !== "artifactUpdate") continue;
      const task = await client.cancelTask({ tenant: "", id: payload.value.taskId, metadata: undefined });
      return { shown: [sdk.TaskStatus.toJSON(task.status).state] };
    }
    throw new Error("the task has ended by itself");
  },
};

async function main() {
  for await (const line of require("node:readline").createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    try {
      console.log(JSON.stringify({ ok: await actions[call.do](call) }));
    } catch (error) {
      console.log(JSON.stringify({ ok: { raised: error.stack } }));
    }
  }
}

main();
