// The webhooks of the current task, dead letters, and an inbox for development.
import type { ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as agent from "./agent";
import * as app from "./app";
import { Tree } from "./content";
import { clock, plural, shortId } from "./format";
import { list, parse, record, text } from "./json";

const POLL_INTERVAL = 3000;
const INBOX = new URL("inbox", location.origin + location.pathname).href;
const HAS_INBOX = agent.OPTIONS.has("inbox");

interface Hook {
  taskId: string;
  id: string;
  url: string;
  state: string;
  delivered: number;
  undelivered: number;
  attempts: number;
  reason: string;
}

function readHook(value: unknown, taskId: string): Hook {
  const body = record(value);
  const config = record(body["pushNotificationConfig"] ?? body); // 0.3 nests it one level deeper
  const number = (name: string): number => (typeof body[name] === "number" ? body[name] : 0);
  return {
    taskId: text(body["taskId"]) || taskId,
    id: text(config["id"]),
    url: text(config["url"]),
    state: text(body["state"]) || "set",
    delivered: number("delivered"),
    undelivered: number("undelivered"),
    attempts: number("attempts"),
    reason: text(body["reason"]),
  };
}

/** The webhooks of a task: with their delivery status if the agent reports it, otherwise as in the protocol. */
async function hooksOf(taskId: string): Promise<Hook[]> {
  if (agent.card.value?.isOurs) {
    const found = record(await agent.get(`webhooks?taskId=${encodeURIComponent(taskId)}`, { quiet: true }));
    return list(found["webhooks"]).map((hook) => readHook(hook, taskId));
  }
  const isNew = agent.version.value === "1.0";
  const found = await agent.call("pushList", isNew ? { taskId } : { id: taskId }, { quiet: true });
  return list(isNew ? record(found)["configs"] : found).map((hook) => readHook(hook, taskId));
}

export function WebhooksTab(): ComponentChild {
  if (!agent.card.value?.push) {
    return (
      <p class="empty">
        This agent has no webhooks. One of ours gets them with <code>--push-notifications</code> (in Python: <code>push_notifications=True</code>).
      </p>
    );
  }
  return <Webhooks />;
}

function Webhooks(): ComponentChild {
  const taskId = app.selectedRun.value?.taskId ?? "";
  void app.selectedRun.value?.tick.value;
  const [hooks, setHooks] = useState<Hook[]>([]);
  const [dead, setDead] = useState<Hook[]>([]);
  const [failure, setFailure] = useState("");
  const [polls, setPolls] = useState(0);
  useEffect(() => {
    let isOn = true;
    const poll = async (): Promise<void> => {
      try {
        const found = taskId ? await hooksOf(taskId) : [];
        const given = agent.card.value?.isOurs ? list(record(await agent.get("webhooks", { quiet: true }))["webhooks"]).map((hook) => readHook(hook, "")) : [];
        if (!isOn) return;
        setHooks(found);
        setDead(given);
        setFailure("");
      } catch (error) {
        if (isOn) setFailure(error instanceof Error ? error.message : "no answer");
      }
    };
    void poll();
    const timer = setInterval(() => void poll(), POLL_INTERVAL);
    return () => {
      isOn = false;
      clearInterval(timer);
    };
  }, [taskId, polls]);
  const again = (): void => setPolls((before) => before + 1);
  return (
    <div class="webhooks-tab">
      {failure && <p class="complaint">{failure}</p>}
      <h4>{taskId ? `Webhooks of task ${shortId(taskId)}` : "Webhooks of a task"}</h4>
      {!taskId && <p class="dim">Open a task to see its webhooks, or to add one.</p>}
      {taskId && !hooks.length && <p class="dim">None yet.</p>}
      <HookList hooks={hooks} onChange={again} />
      {taskId && <AddHook taskId={taskId} onChange={again} />}
      <h4>Dead letters</h4>
      {!dead.length && <p class="dim">{agent.card.value?.isOurs ? "None: all deliveries have arrived." : "A2A has no request that lists dead letters, so this agent may have some."}</p>}
      <HookList hooks={dead} onChange={again} />
      {HAS_INBOX && <InboxView />}
    </div>
  );
}

function HookList({ hooks, onChange }: { hooks: Hook[]; onChange: () => void }): ComponentChild {
  const [failure, setFailure] = useState("");
  const act = async (work: () => Promise<unknown>): Promise<void> => {
    try {
      await work();
      setFailure("");
    } catch (error) {
      setFailure(error instanceof Error ? error.message : "failed");
    }
    onChange();
  };
  const redeliver = (hook: Hook): Promise<unknown> => agent.get("webhooks:redeliver", { method: "POST", body: { taskId: hook.taskId, id: hook.id } });
  const remove = (hook: Hook): Promise<unknown> => {
    const isNew = agent.version.value === "1.0";
    return agent.call("pushDelete", isNew ? { taskId: hook.taskId, id: hook.id } : { id: hook.taskId, pushNotificationConfigId: hook.id });
  };
  return (
    <>
      {failure && <p class="complaint">{failure}</p>}
      <ul class="hooks">
        {hooks.map((hook) => (
          <li key={`${hook.taskId}/${hook.id}`}>
            <div class="row">
              <span class={`badge ${hook.state === "failed" ? "destructive" : "read-only"}`}>{hook.state}</span>
              <code>{hook.url}</code>
            </div>
            <p class="dim">
              task {shortId(hook.taskId)} · delivered up to event {hook.delivered} · {plural(hook.undelivered, "event")} to go
              {hook.attempts > 0 && ` · ${plural(hook.attempts, "attempt")}`}
              {hook.reason && ` · ${hook.reason}`}
            </p>
            <div class="row">
              {hook.state === "failed" && (
                <button type="button" class="small" onClick={() => void act(() => redeliver(hook))}>
                  Redeliver
                </button>
              )}
              <button type="button" class="link" onClick={() => void act(() => remove(hook))}>
                Delete
              </button>
            </div>
          </li>
        ))}
      </ul>
    </>
  );
}

function AddHook({ taskId, onChange }: { taskId: string; onChange: () => void }): ComponentChild {
  const [url, setUrl] = useState("");
  const [failure, setFailure] = useState("");
  const add = async (address: string, isInbox: boolean): Promise<void> => {
    const config: Record<string, unknown> = { url: address };
    const shown = agent.credentials.value;
    const isNew = agent.version.value === "1.0";
    // The inbox requires authentication, so the webhook is set with the user's own token, and the agent sends it back.
    if (isInbox && shown?.kind === "bearer") {
      config["authentication"] = { [isNew ? "scheme" : "schemes"]: isNew ? "Bearer" : ["Bearer"], credentials: shown.value };
    }
    try {
      await agent.call("pushCreate", isNew ? { taskId, ...config } : { taskId, pushNotificationConfig: config });
      setFailure("");
      setUrl("");
    } catch (error) {
      setFailure(error instanceof Error ? error.message : "failed");
    }
    onChange();
  };
  return (
    <form
      class="add-hook"
      aria-label="Add a webhook"
      onSubmit={(event) => {
        event.preventDefault();
        if (url.trim()) void add(url.trim(), false);
      }}
    >
      <input type="url" aria-label="Address of a webhook" placeholder="https://example.com/hook" value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
      <button type="submit" class="small">
        Add
      </button>
      {HAS_INBOX && (
        <button type="button" class="small" onClick={() => void add(INBOX, true)}>
          Use the inbox
        </button>
      )}
      {failure && <p class="complaint">{failure}</p>}
    </form>
  );
}

function InboxView(): ComponentChild {
  const [deliveries, setDeliveries] = useState<Record<string, any>[]>([]);
  const request = async (method = "GET"): Promise<void> => {
    try {
      setDeliveries(list(record(await agent.get(INBOX, { quiet: true, method }))["deliveries"]).map(record));
    } catch {
      // it is requested again
    }
  };
  useEffect(() => {
    void request();
    const timer = setInterval(() => void request(), POLL_INTERVAL / 2);
    return () => clearInterval(timer);
  }, []);
  return (
    <section aria-label="Inbox">
      <div class="row">
        <h4>Inbox</h4>
        <span class="dim">for development; {plural(deliveries.length, "notification")}</span>
        <span class="grow" />
        <button type="button" class="link" onClick={() => void request("DELETE")}>
          Empty
        </button>
      </div>
      <ul class="hooks">
        {deliveries.map((delivery) => (
          <Delivery key={`${delivery["at"]}`} delivery={delivery} />
        ))}
      </ul>
    </section>
  );
}

function Delivery({ delivery }: { delivery: Record<string, any> }): ComponentChild {
  const headers = record(delivery["headers"]);
  let body: unknown = text(delivery["body"]);
  try {
    body = parse(text(delivery["body"]));
  } catch {
    // shown as text
  }
  const kind = Object.keys(record(body))[0] ?? "";
  return (
    <li>
      <details>
        <summary>
          {clock(Number(delivery["at"]) * 1000)} · {text(headers["webhook-id"]).split("/").at(-1)} {kind.length < 30 ? kind : ""}
          {list(delivery["proofs"]).includes("webhook-signature") && <span class="badge read-only">signed</span>}
        </summary>
        <Tree value={{ headers, body }} />
      </details>
    </li>
  );
}
