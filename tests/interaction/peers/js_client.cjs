// A client of @a2a-js/sdk that speaks 0.3. Run it where the package is installed, with the address, the binding and what
// to do: `file <base64>` sends a file and prints what came back, `error` asks for a task that is not there, `webhook <url>`
// makes one, gets it, lists it and deletes it.
const load = require("node:module").createRequire(process.cwd() + "/");
const { LegacyJsonRpcTransport, LegacyRestTransport } = load("@a2a-js/sdk/compat/v0_3/client");
const { SendMessageRequest, Task } = load("@a2a-js/sdk");

const [endpoint, binding, deed, content] = process.argv.slice(2);
const Transport = binding === "JSONRPC" ? LegacyJsonRpcTransport : LegacyRestTransport;
const client = new Transport({ endpoint });

async function sendFile() {
  const parts = [{ raw: content, filename: "f", mediaType: "application/octet-stream" }];
  const message = { messageId: "m", role: "ROLE_USER", parts };
  const answer = await client.sendMessage(SendMessageRequest.fromJSON({ message }));
  return Task.toJSON(answer).artifacts[0].parts[0].raw;
}

async function fail() {
  try {
    await client.getTask({ id: "unknown" });
  } catch (error) {
    return `${error.constructor.name}: ${error.message}`;
  }
}

async function webhooks() {
  const message = { messageId: "m", role: "ROLE_USER", parts: [{ text: "hi" }] };
  const { id: taskId } = await client.sendMessage(SendMessageRequest.fromJSON({ message }));
  const empty = { tenant: "", id: "", token: "", authentication: undefined };
  const made = await client.createTaskPushNotificationConfig({ ...empty, taskId, url: content });
  await client.createTaskPushNotificationConfig({ ...empty, taskId, url: content, id: "stays" });
  const config = { tenant: "", taskId, id: made.id };
  const got = await client.getTaskPushNotificationConfig(config);
  const all = { tenant: "", taskId, pageSize: 0, pageToken: "" };
  const listed = await client.listTaskPushNotificationConfig(all);
  await client.deleteTaskPushNotificationConfig(config);
  return [made, got, listed, await client.listTaskPushNotificationConfig(all)];
}

const deeds = { file: sendFile, error: fail, webhook: webhooks };
deeds[deed]().then((answer) => console.log(JSON.stringify(answer)));
