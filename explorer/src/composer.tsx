import type { ComponentChild } from "preact";
import { useEffect, useRef } from "preact/hooks";
import * as agent from "./agent";
import * as app from "./app";
import { bytes } from "./format";
import { apply, SchemaForm } from "./form";
import { Icon } from "./icons";
import type { Mode } from "./run";

export function Composer(): ComponentChild {
  const waiting = app.waitingRun.value;
  if (waiting && !app.asksOnlyApprovals(waiting)) return <Reply hasForm={waiting.questions.length > 0} />;
  if (!agent.card.value) return null;
  const skill = app.skill.value;
  if (!skill && agent.skills.value.length > 0 && !app.current.value.runs.length) return null;
  return <Message />;
}

/** Ctrl-Enter sends from every field. In a text box of the conversation (`data-chat`) Enter does, and Shift-Enter begins
 * a new line. While an input method composes a character, Enter belongs to it. */
function onEnter(send: () => void): (event: KeyboardEvent) => void {
  return (event) => {
    if (event.key !== "Enter" || event.isComposing || event.keyCode === 229) return;
    const isChat = (event.target as HTMLElement).hasAttribute("data-chat");
    if (!(event.ctrlKey || event.metaKey) && !(isChat && !event.shiftKey && !event.altKey)) return;
    event.preventDefault();
    send();
  };
}

function Reply({ hasForm }: { hasForm: boolean }): ComponentChild {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (!hasForm) field.current?.focus();
  }, []);
  return (
    <form
      class="composer"
      aria-label="Reply"
      onSubmit={(event) => {
        event.preventDefault();
        app.submit("stream");
      }}
      onKeyDown={onEnter(() => app.submit("stream"))}
    >
      <label for="reply">{hasForm ? "Or reply in words" : "Your reply"}</label>
      <textarea id="reply" data-chat ref={field} rows={hasForm ? 1 : 2} value={app.reply.value} onInput={(event) => void (app.reply.value = event.currentTarget.value)} />
      <Files />
      <div class="actions">
        <AttachButton />
        <span class="grow" />
        <button type="submit" class="primary">
          Reply
        </button>
      </div>
    </form>
  );
}

function Message(): ComponentChild {
  const skill = app.skill.value;
  const draft = app.draft.value;
  const canStream = agent.card.value?.streaming !== false;
  const usual: Mode = canStream ? "stream" : "send";
  const form = useRef<HTMLFormElement>(null);
  const send = (mode: Mode): void => {
    if (app.submit(mode)) return;
    // Move the focus to the first error.
    requestAnimationFrame(() => form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  const editors: app.Editor[] = skill?.inputSchema ? ["form", "json", "text"] : ["text", "json"];
  return (
    <form
      class="composer"
      ref={form}
      aria-label="Message"
      onSubmit={(event) => {
        event.preventDefault();
        send(usual);
      }}
      onKeyDown={onEnter(() => send(usual))}
    >
      <div class="composer-head">
        {skill ? (
          <>
            <strong>{skill.name}</strong>
            <span class="examples">
              {skill.examples.slice(0, 4).map((sample) => (
                <button type="button" class="chip" onClick={() => app.useSample(sample)} title="Fill in this example">
                  {sample.title}
                </button>
              ))}
            </span>
          </>
        ) : (
          <strong>Message</strong>
        )}
        <span class="grow" />
        <div class="switch" role="group" aria-label="How to write the input">
          {editors.map((editor) => (
            <button type="button" aria-pressed={draft.editor === editor} onClick={() => app.switchEditor(editor)}>
              {{ form: "Form", json: "JSON", text: "Text" }[editor]}
            </button>
          ))}
        </div>
      </div>
      <div class="composer-body">
        <Editor />
        <Files />
      </div>
      <div class="actions">
        <AttachButton />
        <button type="button" class="link" onClick={app.resetDraft}>
          Reset
        </button>
        <span class="grow" />
        <button type="button" class="secondary" onClick={() => send("background")} title="Run in the background. The task list shows its progress">
          Background
        </button>
        <button type="button" class={canStream ? "secondary" : "primary"} onClick={() => send("send")} title="Wait for the outcome">
          Send
        </button>
        {canStream && (
          <button type="submit" class="primary" title="Ctrl-Enter">
            <Icon name="play" /> Stream
          </button>
        )}
      </div>
    </form>
  );
}

function Editor(): ComponentChild {
  const draft = app.draft.value;
  const schema = app.skill.value?.inputSchema;
  const complaint = draft.complaints.get("");
  if (draft.editor === "form" && schema) {
    return <SchemaForm key={app.skillId.value} schema={schema} value={draft.value} complaints={draft.complaints} onChange={(change) => app.edit({ value: apply(change, app.draft.value.value), complaints: new Map() })} />;
  }
  const isJson = draft.editor === "json";
  const others = [...draft.complaints].filter(([path]) => path);
  return (
    <>
      <textarea
        class={isJson ? "mono" : ""}
        data-chat={isJson ? undefined : true}
        aria-label={isJson ? "Input as JSON" : "Message text"}
        aria-invalid={draft.complaints.size > 0}
        rows={isJson ? 8 : 3}
        spellcheck={!isJson}
        placeholder={isJson ? "{ }" : "Write to the agent. Shift-Enter begins a new line"}
        value={isJson ? draft.json : draft.text}
        onInput={(event) => app.edit(isJson ? { json: event.currentTarget.value, complaints: new Map() } : { text: event.currentTarget.value, complaints: new Map() })}
      />
      {complaint && <p class="complaint">{complaint}</p>}
      {others.map(([path, message]) => (
        <p class="complaint">
          <code>{path}</code> {message}
        </p>
      ))}
    </>
  );
}

function Files(): ComponentChild {
  const { files } = app.draft.value;
  if (!files.length) return null;
  return (
    <ul class="attached" aria-label="Attached files">
      {files.map((file, index) => (
        <li>
          <Icon name="clip" /> {file.name} <span class="dim">{bytes(file.size)}</span>
          <button type="button" class="quiet" aria-label={`Remove ${file.name}`} onClick={() => app.edit({ files: files.filter((_, place) => place !== index) })}>
            <Icon name="close" />
          </button>
        </li>
      ))}
    </ul>
  );
}

function AttachButton(): ComponentChild {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-label="Attach files"
        onChange={(event) => {
          void app.attach([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
      <button type="button" class="quiet" aria-label="Attach" onClick={() => picker.current?.click()}>
        <Icon name="clip" /> <span class="wide">Attach</span>
      </button>
    </>
  );
}
