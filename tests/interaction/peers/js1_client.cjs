// A client of @a2a-js/sdk that speaks 1.0 and does what the lines on its standard input say (`process.py`). Run it where
// the package is installed.
const { randomUUID } = require("node:crypto");
const load = require("node:module").createRequire(process.cwd() + "/");
const sdk = load("@a2a-js/sdk");
const client = load("@a2a-js/sdk/client");
const errors = load("@a2a-js/sdk/errors");
const grpc = load("@grpc/grpc-js");

const streams = new Map();

function withMetadata(headers) {
  const credentials = grpc.credentials.createFromMetadataGenerator((_, done) => {
    const metadata = new grpc.Metadata();
    for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
    done(null, metadata);
  });
  return { credentials };
}

async function connect({ url, binding, headers }) {
  if (binding === "GRPC") {
    const { GrpcTransportFactory } = load("@a2a-js/sdk/client/grpc");
    const options = { grpcChannelCredentials: grpc.credentials.createInsecure(), grpcCallOptions: withMetadata(headers) };
    const factory = new client.ClientFactory({ transports: [new GrpcTransportFactory(options)] });
    return factory.createFromUrl(url);
  }
  const authentication = { headers: async () => headers, shouldRetryWithHeaders: async () => undefined };
  const fetchImpl = client.createAuthenticatingFetchWithRetry(fetch, authentication);
  const Factory = binding === "JSONRPC" ? client.JsonRpcTransportFactory : client.RestTransportFactory;
  const factory = new client.ClientFactory({ transports: [new Factory({ fetchImpl })] });
  return factory.createFromUrl(url);
}

function request(ask, parts = [{ text: ask.text }]) {
  const message = { messageId: randomUUID(), role: "ROLE_USER", parts };
  if (ask.task_id) message.taskId = ask.task_id;
  if (ask.context_id) message.contextId = ask.context_id;
  return sdk.SendMessageRequest.fromJSON({ message, configuration: { returnImmediately: ask.wait === false } });
}

const state = (status) => sdk.TaskStatus.toJSON(status).state.replace("TASK_STATE_", "").toLowerCase().replace("_", "-");
const text = (part) => part.content.value;

function taskWords(task) {
  const texts = task.artifacts.flatMap((artifact) => artifact.parts.map(text));
  const history = task.history.map((message) => text(message.parts[0]));
  return { task: task.id, context: task.contextId, state: state(task.status), texts, history };
}

function eventWords({ payload: { $case, value } }) {
  if ($case === "task") return taskWords(value);
  if ($case === "message") return { says: text(value.parts[0]) };
  if ($case === "statusUpdate") return { state: state(value.status) };
  return { chunk: text(value.artifact.parts[0]), append: value.append, last: value.lastChunk };
}

function keep(events) {
  const name = randomUUID();
  streams.set(name, events);
  return name;
}

const deeds = {
  async send(ask) {
    const answer = await (await connect(ask)).sendMessage(request(ask));
    return answer.status ? taskWords(answer) : { says: text(answer.parts[0]) };
  },
  async send_file(ask) {
    const parts = [{ raw: ask.content, filename: "f", mediaType: "application/octet-stream" }];
    const task = await (await connect(ask)).sendMessage(request(ask, parts));
    return sdk.Task.toJSON(task).artifacts[0].parts[0].raw;
  },
  async stream(ask) {
    return keep((await connect(ask)).sendMessageStream(request(ask)));
  },
  async subscribe(ask) {
    return keep((await connect(ask)).resubscribeTask({ tenant: "", id: ask.task_id }));
  },
  async next(ask) {
    const { done, value } = await streams.get(ask.stream).next();
    return done ? {} : eventWords(value);
  },
  async close(ask) {
    await streams.get(ask.stream).return();
    streams.delete(ask.stream);
    return {};
  },
  async get(ask) {
    const wanted = { tenant: "", id: ask.task_id, historyLength: ask.history_length ?? undefined };
    return taskWords(await (await connect(ask)).getTask(wanted));
  },
  async list(ask) {
    const wanted = { contextId: ask.context_id, pageSize: ask.page_size, pageToken: ask.page_token };
    const page = await (await connect(ask)).listTasks(sdk.ListTasksRequest.fromJSON(wanted));
    return [page.tasks.map((task) => task.id), page.nextPageToken];
  },
  async cancel(ask) {
    return taskWords(await (await connect(ask)).cancelTask({ tenant: "", id: ask.task_id, metadata: undefined }));
  },
  async card(ask) {
    return sdk.AgentCard.toJSON(await (await connect(ask)).getAgentCard());
  },
  async set_webhook(ask) {
    const config = sdk.TaskPushNotificationConfig.fromJSON({ taskId: ask.task_id, url: ask.webhook });
    const made = await (await connect(ask)).createTaskPushNotificationConfig(config);
    return sdk.TaskPushNotificationConfig.toJSON(made);
  },
  async get_webhook(ask) {
    const wanted = { tenant: "", taskId: ask.task_id, id: ask.config_id };
    return sdk.TaskPushNotificationConfig.toJSON(await (await connect(ask)).getTaskPushNotificationConfig(wanted));
  },
};

async function answer(ask) {
  try {
    return { ok: await deeds[ask.do](ask) };
  } catch (error) {
    const name = error.constructor.name.replace(/^JsonRpc|^Rest|^Grpc/, "").replace(/Impl$/, "");
    const known = name in errors || error instanceof errors.A2AError;
    return known ? { error: name } : { failed: error.stack };
  }
}

async function main() {
  for await (const line of require("node:readline").createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await answer(JSON.parse(line))));
  }
}

main();
