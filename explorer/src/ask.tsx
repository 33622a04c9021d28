// The questions of a task that waits: approvals with the call, and a form for each other question.
import type { ComponentChild } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import * as agent from "./agent";
import * as app from "./app";
import { DataView, Parts } from "./content";
import { apply, SchemaForm, type Change } from "./form";
import { parse, pretty } from "./json";
import { Markdown } from "./markdown";
import { complaintsOf, emptyAnswer, replyParts, type Answer, type Question } from "./questions";
import { textOf, type Run } from "./run";
import { credentialsOpen } from "./signin";

export function Ask({ run }: { run: Run }): ComponentChild {
  void run.tick.value;
  const card = useRef<HTMLDivElement>(null);
  useEffect(() => card.current?.scrollIntoView({ block: "nearest" }), []);
  const approval = run.approval;
  const { questions } = run;
  if (approval) return <ApprovalOf run={run} question={approval} card={card} />;
  if (questions.length) return <Questions key={run.status.message?.messageId} run={run} questions={questions} card={card} />;
  if (run.state === "AUTH_REQUIRED") {
    return (
      <div class="ask" ref={card} role="group" aria-label="Credentials needed">
        <p class="ask-head">
          <strong>Credentials needed</strong>
        </p>
        <Parts parts={run.status.message?.parts ?? []} />
        <div class="row">
          <button type="button" class="primary" onClick={() => void (credentialsOpen.value = true)}>
            Sign in
          </button>
          <span class="dim">or reply below, if the agent asks for something else.</span>
        </div>
      </div>
    );
  }
  return (
    <div class="ask" ref={card} role="group" aria-label="Input needed">
      <p class="ask-head">
        <strong>The agent asks</strong>
      </p>
      <Parts parts={run.status.message?.parts ?? [{ text: textOf(run.status.message) || "The agent needs more input." }]} />
      <p class="dim">Reply below.</p>
    </div>
  );
}

// ---- one approval: two buttons, and two keys --------------------------------------------------------------------------

function CallOf({ question }: { question: Question }): ComponentChild {
  const skill = agent.skills.value.find((each) => each.id === question.tool);
  return (
    <>
      <p class="ask-head">
        <strong>{skill?.name ?? question.tool}</strong> {question.tool ? "requires approval" : "The agent asks for an approval"}
        {skill?.badges.includes("destructive") && <span class="badge destructive">destructive</span>}
      </p>
      {question.args !== undefined && <DataView value={question.args} isLive={false} />}
      {question.text && <p class="dim">{question.text}</p>}
    </>
  );
}

function ApprovalOf({ run, question, card }: { run: Run; question: Question; card: { current: HTMLDivElement | null } }): ComponentChild {
  return (
    <div class="ask" ref={card} role="group" aria-label="Approval">
      <CallOf question={question} />
      <div class="row">
        <button type="button" class="primary approve" aria-keyshortcuts="a" onClick={() => app.decide(run, true)}>
          Approve <kbd>a</kbd>
        </button>
        <button type="button" class="danger reject" aria-keyshortcuts="r" onClick={() => app.decide(run, false)}>
          Reject <kbd>r</kbd>
        </button>
      </div>
    </div>
  );
}

// ---- several questions: answered together -----------------------------------------------------------------------------

function Questions({ run, questions, card }: { run: Run; questions: Question[]; card: { current: HTMLDivElement | null } }): ComponentChild {
  const [answers, setAnswers] = useState<Answer[]>(() => questions.map(emptyAnswer));
  const latest = useRef(answers); // a key can be pressed before the last change is rendered
  const [complaints, setComplaints] = useState<Map<string, string>>(new Map());
  const change = (index: number, edit: (old: Answer) => Answer): void => {
    latest.current = latest.current.map((answer, at) => (at === index ? edit(answer) : answer));
    setAnswers(latest.current);
    setComplaints(new Map());
  };
  const send = (): void => {
    const found = new Map<string, string>();
    questions.forEach((question, index) => {
      for (const [path, message] of complaintsOf(question, latest.current[index]!)) found.set(place(index, path), message);
    });
    setComplaints(found);
    if (!found.size) return app.answer(run, replyParts(questions, latest.current));
    requestAnimationFrame(() => card.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  const why = whyAgain(run, questions);
  return (
    <div class="ask" ref={card} role="group" aria-label={questions.length > 1 ? "Questions" : "Question"}>
      <p class="ask-head">
        <strong>{questions.length > 1 ? `The agent asks ${questions.length} questions` : "The agent asks"}</strong>
      </p>
      {why && <p class="complaint">{why}</p>}
      <form
        class="questions"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        {questions.map((question, index) => (
          <section class="question" key={question.id} aria-label={question.text || question.id}>
            {question.isApproval ? (
              <Decision question={question} answer={answers[index]!} complaint={complaints.get(place(index, ""))} onChange={(edit) => change(index, edit)} />
            ) : (
              <Field question={question} answer={answers[index]!} path={place(index, "")} complaints={complaints} onChange={(edit) => change(index, edit)} />
            )}
          </section>
        ))}
        <div class="row">
          <button type="submit" class="primary">
            {questions.length > 1 ? "Send the answers" : "Answer"}
          </button>
        </div>
      </form>
    </div>
  );
}

// The paths of one form begin with its number, so that the ids of two forms differ.
const place = (index: number, path: string): string => (path ? `q${index}.${path}` : `q${index}`);

/** Why the agent asks once more: the first line of its message, if that is not one of the questions. */
function whyAgain(run: Run, questions: Question[]): string {
  const [first] = textOf(run.status.message).split("\n");
  if (!first || questions.some((question) => !question.text || first.includes(question.text))) return "";
  return first;
}

type Edit = (edit: (old: Answer) => Answer) => void;

function Field({ question, answer, path, complaints, onChange }: { question: Question; answer: Answer; path: string; complaints: Map<string, string>; onChange: Edit }): ComponentChild {
  const set = (change: Change): void => onChange((old) => ({ ...old, value: apply(change, old.value) }));
  return (
    <>
      <Markdown source={question.text} />
      {question.schema ? (
        <SchemaForm schema={question.schema} value={answer.value} complaints={complaints} path={path} label="Answer" isRequired={!question.isOptional} onChange={set} />
      ) : (
        <textarea
          id={`field-${path}`}
          rows={2}
          aria-label={question.text || question.id}
          aria-invalid={complaints.has(path)}
          value={String(answer.value ?? "")}
          onInput={(event) => set(event.currentTarget.value)}
        />
      )}
      {!question.schema && complaints.has(path) && <p class="complaint">{complaints.get(path)}</p>}
      {question.isOptional && <p class="dim">Optional: leave it empty to decline.</p>}
    </>
  );
}

function Decision({ question, answer, complaint, onChange }: { question: Question; answer: Answer; complaint: string | undefined; onChange: Edit }): ComponentChild {
  const [isEditing, setEditing] = useState(false);
  const decide = (decision: boolean): void => onChange((old) => ({ ...old, decision }));
  return (
    <>
      {isEditing ? <p class="ask-head"><strong>{question.tool}</strong> {question.text}</p> : <CallOf question={{ ...question, args: answer.args }} />}
      {isEditing && <Arguments value={answer.args} onChange={(args) => onChange((old) => ({ ...old, args }))} />}
      <div class="row">
        <div class="switch" role="group" aria-label={`Decision about ${question.tool || question.id}`}>
          <button type="button" aria-pressed={answer.decision === true} aria-invalid={complaint !== undefined} onClick={() => decide(true)}>
            Approve
          </button>
          <button type="button" aria-pressed={answer.decision === false} onClick={() => decide(false)}>
            Reject
          </button>
        </div>
        {question.isEditable && !isEditing && (
          <button type="button" class="link" onClick={() => setEditing(true)}>
            Change the arguments
          </button>
        )}
      </div>
      {answer.decision === false && (
        <input
          aria-label="Reason of the rejection"
          placeholder="Reason (optional)"
          value={answer.reason}
          onInput={(event) => {
            const reason = event.currentTarget.value;
            onChange((old) => ({ ...old, reason }));
          }}
        />
      )}
      {complaint && <p class="complaint">{complaint}</p>}
    </>
  );
}

function Arguments({ value, onChange }: { value: unknown; onChange: (args: unknown) => void }): ComponentChild {
  const [typed, setTyped] = useState(pretty(value));
  const [complaint, setComplaint] = useState("");
  return (
    <>
      <textarea
        class="mono"
        rows={Math.min(12, typed.split("\n").length + 1)}
        aria-label="Arguments as JSON"
        spellcheck={false}
        value={typed}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          try {
            onChange(parse(event.currentTarget.value));
            setComplaint("");
          } catch {
            setComplaint("not JSON yet: the arguments are not changed");
          }
        }}
      />
      {complaint && <p class="complaint">{complaint}</p>}
    </>
  );
}
