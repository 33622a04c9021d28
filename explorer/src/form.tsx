// A form built from a JSON Schema. The value is one JSON document, and each field changes its part of it.
import type { ComponentChild } from "preact";
import { useState } from "preact/hooks";
import { bytes, toBase64 } from "./format";
import { Exact, isObject, list, parse, pretty, record, text } from "./json";
import { fieldOf, resolve, startValue, validate, type Field, type Schema } from "./schema";

/** A new value, or a function from the old value. Two fields may change before the next render, and the second change
 * must be based on the first, not on the rendered value. */
export type Change = unknown | ((old: unknown) => unknown);
export const apply = (change: Change, old: unknown): unknown => (typeof change === "function" ? change(old) : change);

interface FieldProps {
  schema: unknown;
  root: Schema;
  value: unknown;
  path: string;
  label: string;
  isRequired: boolean;
  complaints: Map<string, string>;
  onChange: (change: Change) => void;
}

interface SchemaFormProps {
  schema: Schema;
  value: unknown;
  complaints: Map<string, string>;
  path?: string; // of the whole value, where there are several forms
  label?: string; // of a value that is not an object
  isRequired?: boolean;
  onChange: (change: Change) => void;
}

export function SchemaForm(props: SchemaFormProps): ComponentChild {
  const root = props.schema;
  const path = props.path ?? "";
  const { kind, schema } = fieldOf(root, root);
  const shared = { root, complaints: props.complaints };
  if (kind === "object" && schema["properties"]) {
    return (
      <div class="form">
        <Members {...shared} schema={schema} value={record(props.value)} path={path} onChange={props.onChange} />
        <Complaint complaints={props.complaints} path={path} />
      </div>
    );
  }
  return (
    <div class="form">
      <FieldView {...shared} schema={root} value={props.value} path={path} label={text(root["title"]) || (props.label ?? "Input")} isRequired={props.isRequired ?? true} onChange={props.onChange} />
    </div>
  );
}

function Members({ schema, root, value, path, complaints, onChange }: Omit<FieldProps, "label" | "isRequired" | "schema"> & { schema: Schema; value: Record<string, unknown> }): ComponentChild {
  const required = list(schema["required"]);
  const properties = record(schema["properties"]);
  const set = (name: string, change: Change): void =>
    onChange((old: unknown) => {
      const next = { ...record(old) };
      const member = apply(change, next[name]);
      if (member === undefined) delete next[name];
      else next[name] = member;
      return next;
    });
  const more = Object.keys(value).filter((name) => !(name in properties));
  const extra = schema["additionalProperties"];
  return (
    <>
      {Object.entries(properties).map(([name, property]) => (
        <FieldView
          key={name}
          root={root}
          schema={property}
          value={value[name]}
          path={path ? `${path}.${name}` : name}
          label={name}
          isRequired={required.includes(name)}
          complaints={complaints}
          onChange={(member) => set(name, member)}
        />
      ))}
      {more.map((name) => (
        <div class="member" key={`+${name}`}>
          <FieldView
            root={root}
            schema={isObject(extra) ? extra : {}}
            value={value[name]}
            path={path ? `${path}.${name}` : name}
            label={name}
            isRequired={true}
            complaints={complaints}
            onChange={(member) => set(name, member)}
          />
          <button type="button" class="link" onClick={() => set(name, undefined)} aria-label={`Remove ${name}`}>
            Remove
          </button>
        </div>
      ))}
      {(isObject(extra) || extra === true) && <AddMember taken={Object.keys(value)} onAdd={(name) => set(name, startValue(extra, root, 1) ?? "")} />}
    </>
  );
}

function AddMember({ taken, onAdd }: { taken: string[]; onAdd: (name: string) => void }): ComponentChild {
  const [name, setName] = useState("");
  const add = (): void => {
    if (!name.trim() || taken.includes(name.trim())) return;
    onAdd(name.trim());
    setName("");
  };
  return (
    <div class="add-member">
      <input aria-label="Name of an additional field" placeholder="additional field" value={name} onInput={(event) => setName(event.currentTarget.value)} />
      <button type="button" class="small" onClick={add}>
        Add
      </button>
    </div>
  );
}

function Complaint({ complaints, path }: { complaints: Map<string, string>; path: string }): ComponentChild {
  const message = complaints.get(path);
  return message ? (
    <p class="complaint" id={idOf(path, "complaint")}>
      {message}
    </p>
  ) : null;
}

const idOf = (path: string, role = "field"): string => `${role}-${path || "root"}`;

function FieldView(props: FieldProps): ComponentChild {
  const field = fieldOf(props.schema, props.root);
  const { schema, isNullable } = field;
  const about = text(schema["description"]);
  const isSet = props.value !== undefined && props.value !== null;
  const isGroup = ["object", "array", "variants"].includes(field.kind);
  const head = (
    <>
      <span class="label">{props.label}</span>
      {props.isRequired ? <span class="needed" title="needed">*</span> : null}
      <span class="type">{typeName(field)}</span>
    </>
  );
  const control = <Control {...props} field={field} />;
  const nullBox = isNullable && (
    <label class="null-box">
      <input type="checkbox" checked={props.value === null} onChange={(event) => props.onChange(event.currentTarget.checked ? null : (begin(props) ?? undefined))} />
      null
    </label>
  );
  if (isGroup) {
    return (
      <fieldset class={`group k-${field.kind}`}>
        <legend>{head}</legend>
        {about && <p class="about">{about}</p>}
        {nullBox}
        {(!isNullable || isSet) && (isSet || field.kind !== "object" ? control : <button type="button" class="small" onClick={() => props.onChange(begin(props) ?? {})}>Fill in</button>)}
        <Complaint complaints={props.complaints} path={props.path} />
      </fieldset>
    );
  }
  return (
    <div class={`field k-${field.kind}`}>
      <label for={idOf(props.path)}>{head}</label>
      {props.value === null && isNullable ? null : control}
      {nullBox}
      {about && <p class="about">{about}</p>}
      <Complaint complaints={props.complaints} path={props.path} />
    </div>
  );
}

/** The initial value of a field that was null, without its default. */
function begin(props: FieldProps): unknown {
  const { default: _default, anyOf, oneOf, type, ...rest } = resolve(props.schema, props.root);
  const options = list(anyOf ?? oneOf).filter((option) => resolve(option, props.root)["type"] !== "null");
  const types = list(typeof type === "string" ? [type] : type).filter((each) => each !== "null");
  const bare: Schema = { ...rest };
  if (options.length === 1) Object.assign(bare, resolve(options[0], props.root));
  else if (options.length) bare["anyOf"] = options;
  if (types.length) bare["type"] = types.length === 1 ? types[0] : types;
  const field = fieldOf(bare, props.root);
  return startValue(bare, props.root) ?? (field.kind === "string" ? "" : undefined);
}

function typeName({ kind, schema, isInteger }: Field): string {
  const format = text(schema["format"]);
  switch (kind) {
    case "number":
      return isInteger ? "integer" : "number";
    case "string":
      return format || "text";
    case "array":
      return "list";
    case "variants":
      return "one of";
    case "choice":
      return "choice";
  }
  return kind;
}

function Control(props: FieldProps & { field: Field }): ComponentChild {
  const { field, value, path, complaints, onChange } = props;
  const shared = {
    id: idOf(path),
    "aria-invalid": complaints.has(path),
    "aria-describedby": complaints.has(path) ? idOf(path, "complaint") : undefined,
    "aria-required": props.isRequired,
  };
  switch (field.kind) {
    case "string":
      return <StringControl {...props} shared={shared} />;
    case "number":
      return <NumberControl {...props} shared={shared} />;
    case "boolean":
      return <input type="checkbox" {...shared} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />;
    case "choice":
      return (
        <select
          {...shared}
          value={value === undefined ? "" : JSON.stringify(value)}
          onChange={(event) => onChange(event.currentTarget.value === "" ? undefined : JSON.parse(event.currentTarget.value))}
        >
          <option value="">{props.isRequired ? "choose…" : "—"}</option>
          {field.choices.map((choice) => (
            <option value={JSON.stringify(choice)}>{typeof choice === "string" ? choice : JSON.stringify(choice)}</option>
          ))}
        </select>
      );
    case "constant":
      return <input {...shared} readOnly value={typeof field.schema["const"] === "string" ? field.schema["const"] : JSON.stringify(field.schema["const"])} />;
    case "array":
      return <Items {...props} />;
    case "object":
      return (
        <Members
          schema={field.schema}
          root={props.root}
          value={record(value)}
          path={path}
          complaints={complaints}
          onChange={onChange}
        />
      );
    case "variants":
      return <Variants {...props} />;
    case "file":
      return <FileControl {...props} shared={shared} />;
  }
  return <JsonControl {...props} shared={shared} />;
}

interface Shared {
  shared: Record<string, unknown>;
  field: Field;
}

const INPUTS: Record<string, "date" | "time" | "datetime-local" | "email" | "url" | "password"> = { date: "date", time: "time", "date-time": "datetime-local", email: "email", uri: "url", url: "url", password: "password" };

function StringControl({ field, value, isRequired, onChange, shared }: FieldProps & Shared): ComponentChild {
  const { schema } = field;
  const said = typeof value === "string" ? value : value === undefined ? "" : String(value);
  const put = (next: string): void => onChange(next === "" && !isRequired && !("default" in schema) ? undefined : next);
  const format = text(schema["format"]);
  const isLong = format === "textarea" || (schema["maxLength"] ?? 0) > 200 || said.length > 80 || said.includes("\n") || (!format && !schema["maxLength"] && /text|body|prompt|content|message|query|markdown/i.test(shared["id"] as string));
  if (isLong && !INPUTS[format]) {
    return <textarea {...shared} rows={Math.min(12, Math.max(2, said.split("\n").length))} value={said} onInput={(event) => put(event.currentTarget.value)} />;
  }
  const type = INPUTS[format] ?? "text";
  if (type === "datetime-local") {
    return <input {...shared} type={type} step={1} value={toLocal(said)} onInput={(event) => put(fromLocal(event.currentTarget.value))} />;
  }
  return <input {...shared} type={type as "email"} autocomplete="off" value={said} placeholder={text(list(schema["examples"])[0])} onInput={(event) => put(event.currentTarget.value)} />;
}

/** Convert RFC 3339 to the value of the browser's control (local time, no zone), and back. */
function toLocal(value: string): string {
  const at = new Date(value);
  if (!value || Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
const fromLocal = (value: string): string => (value ? new Date(value).toISOString().replace(".000Z", "Z") : "");

function NumberControl({ field, value, onChange, shared }: FieldProps & Shared): ComponentChild {
  const { schema, isInteger } = field;
  const [typed, setTyped] = useState<string | null>(null);
  const shown = value instanceof Exact ? value.source : value === undefined || value === null ? "" : String(value);
  const put = (next: string): void => {
    setTyped(next);
    if (next.trim() === "") return onChange(undefined);
    try {
      const read = parse(next.trim());
      onChange(typeof read === "number" || read instanceof Exact ? read : next);
    } catch {
      onChange(next); // not a number: kept, and reported as an error
    }
  };
  return (
    <input
      {...shared}
      type="text"
      inputMode={isInteger ? "numeric" : "decimal"}
      autocomplete="off"
      placeholder={rangeOf(schema)}
      value={typed !== null && sameNumber(typed, shown) ? typed : shown}
      onInput={(event) => put(event.currentTarget.value)}
    />
  );
}

/** Whether the typed text still equals the document's value: "1." is on its way to "1.5". */
const sameNumber = (typed: string, shown: string): boolean => typed.trim() === shown || (shown !== "" && Number(typed) === Number(shown));

function rangeOf(schema: Schema): string {
  const low = schema["minimum"] ?? schema["exclusiveMinimum"];
  const high = schema["maximum"] ?? schema["exclusiveMaximum"];
  if (low !== undefined && high !== undefined) return `${low} … ${high}`;
  if (low !== undefined) return `from ${low}`;
  return high !== undefined ? `up to ${high}` : "";
}

function Items({ field, root, value, path, complaints, label, onChange }: FieldProps & { field: Field }): ComponentChild {
  const { schema } = field;
  const items = list(value);
  const given = (index: number): unknown => list(schema["prefixItems"])[index] ?? schema["items"] ?? {};
  const put = (index: number, change: Change): void =>
    onChange((old: unknown) => list(old).map((each, place) => (place === index ? (apply(change, each) ?? null) : each)));
  const add = (): void =>
    onChange((old: unknown) => {
      const next = given(list(old).length);
      return [...list(old), startValue(next, root, 1) ?? blank(next, root)];
    });
  const isFlat = !["object", "array", "variants", "json", "file"].includes(fieldOf(given(0), root).kind);
  return (
    <div class={`items ${isFlat ? "flat" : ""}`}>
      {items.map((item, index) => (
        <div class="item" key={index}>
          <FieldView
            root={root}
            schema={given(index)}
            value={item}
            path={path ? `${path}.${index}` : String(index)}
            label={`${index + 1}`}
            isRequired={true}
            complaints={complaints}
            onChange={(next) => put(index, next)}
          />
          <button type="button" class="link" aria-label={`Remove item ${index + 1} of ${label}`} onClick={() => onChange((old: unknown) => list(old).filter((_, place) => place !== index))}>
            ×
          </button>
        </div>
      ))}
      <button type="button" class="small" id={idOf(path)} onClick={add} disabled={items.length >= (schema["maxItems"] ?? Infinity)}>
        Add {items.length ? "another" : "one"}
      </button>
    </div>
  );
}

function blank(given: unknown, root: Schema): unknown {
  switch (fieldOf(given, root).kind) {
    case "string":
      return "";
    case "object":
      return {};
    case "array":
      return [];
  }
  return null;
}

function Variants(props: FieldProps & { field: Field }): ComponentChild {
  const { field, root, value, path } = props;
  const fitting = field.variants.findIndex((variant) => value !== undefined && validate(value, variant.schema, root).size === 0);
  const [picked, setPicked] = useState(-1);
  const chosen = picked >= 0 ? picked : fitting;
  const pick = (index: number): void => {
    setPicked(index);
    const variant = field.variants[index];
    props.onChange(variant ? (startValue(variant.schema, root) ?? blank(variant.schema, root) ?? undefined) : undefined);
  };
  const variant = field.variants[chosen];
  return (
    <div class="variants">
      <select id={idOf(path)} aria-label={`Variant of ${props.label}`} value={String(chosen)} onChange={(event) => pick(Number(event.currentTarget.value))}>
        <option value="-1">choose…</option>
        {field.variants.map((each, index) => (
          <option value={String(index)}>{each.title}</option>
        ))}
      </select>
      {variant && <Control {...props} schema={variant.schema} field={fieldOf(variant.schema, root)} />}
    </div>
  );
}

function FileControl({ field, value, path, onChange, shared }: FieldProps & Shared): ComponentChild {
  const file = record(value);
  const content = typeof value === "string" ? value : text(file["bytes"]);
  const choose = async (chosen: File | undefined): Promise<void> => {
    if (!chosen) return;
    const encoded = toBase64(new Uint8Array(await chosen.arrayBuffer()));
    onChange(field.schema["type"] === "string" ? encoded : { name: chosen.name, mimeType: chosen.type || "application/octet-stream", bytes: encoded });
  };
  return (
    <div class="file-control">
      {content && (
        <p>
          <strong>{text(file["name"]) || "file"}</strong> <span class="dim">{bytes(Math.floor((content.length * 3) / 4))}</span>{" "}
          <button type="button" class="link" onClick={() => onChange(undefined)}>
            Remove
          </button>
        </p>
      )}
      <input {...shared} type="file" key={path + (content ? "1" : "0")} onChange={(event) => void choose(event.currentTarget.files?.[0])} />
      {!content && <span class="dim">or drop one anywhere on this pane</span>}
    </div>
  );
}

function JsonControl({ value, onChange, shared }: FieldProps & Shared): ComponentChild {
  const [typed, setTyped] = useState<string | null>(null);
  const [complaint, setComplaint] = useState("");
  const shown = value === undefined ? "" : pretty(value);
  const put = (next: string): void => {
    setTyped(next);
    try {
      onChange(next.trim() ? parse(next) : undefined);
      setComplaint("");
    } catch {
      setComplaint("not JSON yet");
    }
  };
  return (
    <>
      <textarea {...shared} class="mono" rows={3} value={typed ?? shown} placeholder="JSON" onInput={(event) => put(event.currentTarget.value)} />
      {complaint && <p class="complaint">{complaint}</p>}
    </>
  );
}
