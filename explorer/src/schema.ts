// JSON Schema for forms: the kind of each field, initial values, and validation. The agent validates again, and its
// result is the final one.
import { Exact, isObject, list, record, text } from "./json";

export type Schema = Record<string, any>;
export type Kind = "string" | "number" | "boolean" | "choice" | "array" | "object" | "variants" | "file" | "constant" | "json";

const MAX_DEPTH = 12; // a schema may be recursive

export interface Field {
  kind: Kind;
  schema: Schema;
  isNullable: boolean;
  isInteger: boolean;
  choices: unknown[];
  variants: { title: string; schema: Schema }[];
}

/** Return a schema with its references resolved and its combined schemas merged. */
export function resolve(schema: unknown, root: Schema, depth = 0): Schema {
  if (schema === true || !isObject(schema) || depth > MAX_DEPTH) return {};
  let found: Schema = schema;
  if (typeof found["$ref"] === "string") {
    const { $ref, ...beside } = found;
    found = { ...resolve(lookUp($ref, root), root, depth + 1), ...beside };
  }
  if (Array.isArray(found["allOf"])) {
    const { allOf, ...beside } = found;
    let merged: Schema = {};
    for (const each of allOf) merged = merge(merged, resolve(each, root, depth + 1));
    found = merge(merged, beside);
  }
  return found;
}

function merge(one: Schema, other: Schema): Schema {
  const merged: Schema = { ...one, ...other };
  if (one["properties"] || other["properties"]) merged["properties"] = { ...one["properties"], ...other["properties"] };
  if (one["required"] || other["required"]) merged["required"] = [...new Set([...list(one["required"]), ...list(other["required"])])];
  return merged;
}

function lookUp(pointer: string, root: Schema): unknown {
  if (!pointer.startsWith("#")) return {};
  let found: unknown = root;
  for (const step of pointer.slice(1).split("/").filter(Boolean)) {
    const name = decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) || Array.isArray(found) ? (found as Record<string, unknown>)[name] : undefined;
  }
  return found;
}

export function fieldOf(given: unknown, root: Schema): Field {
  let schema = resolve(given, root);
  let isNullable = schema["nullable"] === true;
  let types = list(typeof schema["type"] === "string" ? [schema["type"]] : schema["type"]).map(text);
  if (types.includes("null") && types.length > 1) {
    isNullable = true;
    types = types.filter((type) => type !== "null");
  }
  let variants: { title: string; schema: Schema }[] = [];
  const options = list(schema["oneOf"] ?? schema["anyOf"]).map((option) => resolve(option, root));
  if (options.length) {
    const others = options.filter((option) => option["type"] !== "null");
    if (others.length < options.length) isNullable = true;
    const { oneOf: _one, anyOf: _any, ...beside } = schema;
    if (others.length === 1) {
      const field = fieldOf(merge(others[0]!, beside), root);
      return { ...field, isNullable: isNullable || field.isNullable };
    }
    if (others.every((option) => "const" in option)) {
      return field("choice", beside, { isNullable, choices: others.map((option) => option["const"]) });
    }
    variants = others.map((option, index) => ({ title: titleOf(option, index), schema: merge(beside, option) }));
    return field("variants", schema, { isNullable, variants });
  }
  if ("const" in schema) return field("constant", schema, { isNullable });
  if (Array.isArray(schema["enum"])) {
    const choices = schema["enum"].filter((choice) => choice !== null);
    return field("choice", schema, { isNullable: isNullable || choices.length < schema["enum"].length, choices });
  }
  if (types.length > 1) {
    variants = types.map((type) => ({ title: type, schema: { ...schema, type } }));
    return field("variants", schema, { isNullable, variants });
  }
  const type = types[0] ?? (schema["properties"] ? "object" : schema["items"] ? "array" : "");
  if (type !== schema["type"] && type) schema = { ...schema, type };
  switch (type) {
    case "string":
      return field(isBinary(schema) ? "file" : "string", schema, { isNullable });
    case "integer":
    case "number":
      return field("number", schema, { isNullable, isInteger: type === "integer" });
    case "boolean":
      return field("boolean", schema, { isNullable });
    case "array":
      return field("array", schema, { isNullable });
    case "object":
      if (isFileObject(schema)) return field("file", schema, { isNullable });
      return field(schema["properties"] || isObject(schema["additionalProperties"]) ? "object" : "json", schema, { isNullable });
  }
  return field("json", schema, { isNullable });
}

function field(kind: Kind, schema: Schema, more: Partial<Field>): Field {
  return { kind, schema, isNullable: false, isInteger: false, choices: [], variants: [], ...more };
}

function titleOf(schema: Schema, index: number): string {
  const named = text(schema["title"]) || text(record(record(schema["properties"])["type"])["const"]);
  return named || text(schema["type"]) || `Variant ${index + 1}`;
}

const isBinary = (schema: Schema): boolean =>
  schema["format"] === "binary" || schema["format"] === "base64" || schema["contentEncoding"] === "base64";

/** Whether the object is an A2A file: bytes or an address, and a name. */
export function isFileObject(schema: Schema): boolean {
  const names = Object.keys(record(schema["properties"]));
  return names.includes("bytes") && names.every((name) => ["bytes", "uri", "name", "mimeType", "url", "filename", "mediaType"].includes(name));
}

/** The property for a dropped file, or null. */
export function filePlace(root: Schema): string | null {
  const properties = record(resolve(root, root)["properties"]);
  for (const name of Object.keys(properties)) {
    if (fieldOf(properties[name], root).kind === "file") return name;
  }
  return null;
}

// ---- initial values -------------------------------------------------------------------------------------------------

export function startValue(given: unknown, root: Schema, depth = 0): unknown {
  const { kind, schema, isNullable, choices } = fieldOf(given, root);
  if ("default" in schema) return structuredClone(schema["default"]);
  if (kind === "constant") return schema["const"];
  if (isNullable && depth > 0) return null;
  switch (kind) {
    case "object": {
      const value: Record<string, unknown> = {};
      if (depth > MAX_DEPTH) return value;
      const required = list(schema["required"]);
      for (const [name, property] of Object.entries(record(schema["properties"]))) {
        const found = fieldOf(property, root);
        if (required.includes(name) || "default" in found.schema || (found.kind === "object" && depth < 2)) {
          const begun = startValue(property, root, depth + 1);
          if (begun !== undefined) value[name] = begun;
        }
      }
      return value;
    }
    case "array":
      return list(schema["prefixItems"]).map((item) => startValue(item, root, depth + 1));
    case "boolean":
      return false;
    case "choice":
      return choices.length === 1 ? choices[0] : undefined;
    case "variants":
      return undefined;
  }
  return undefined;
}

// ---- validation -----------------------------------------------------------------------------------------------------

/** Errors by path: "" is the whole value, "to.name" a member, "values.0" an item. */
export function validate(value: unknown, given: unknown, root: Schema): Map<string, string> {
  const complaints = new Map<string, string>();
  check(value, given, root, "", complaints, 0);
  return complaints;
}

type Complaints = Map<string, string>;
const at = (path: string, name: string | number): string => (path ? `${path}.${name}` : String(name));

function check(value: unknown, given: unknown, root: Schema, path: string, complaints: Complaints, depth: number): void {
  if (depth > 32) return;
  const found = fieldOf(given, root);
  const { kind, schema } = found;
  if (value === null && (found.isNullable || kind === "json")) return;
  const say = (message: string): void => void complaints.set(path, message);
  switch (kind) {
    case "string":
      return checkString(value, schema, say);
    case "number":
      return checkNumber(value, found, say);
    case "boolean":
      if (typeof value !== "boolean") say("choose yes or no");
      return;
    case "choice":
      if (!found.choices.some((choice) => JSON.stringify(choice) === JSON.stringify(value))) say("choose one");
      return;
    case "array":
      return checkArray(value, schema, root, path, complaints, depth);
    case "object":
      return checkObject(value, schema, root, path, complaints, depth);
    case "file":
      if (typeof value !== "string" && !isObject(value)) say("choose a file");
      return;
    case "variants": {
      const fits = found.variants.some((variant) => {
        const inside: Complaints = new Map();
        check(value, variant.schema, root, "", inside, depth + 1);
        return inside.size === 0;
      });
      if (value === undefined) say("choose a variant");
      else if (!fits) checkBest(value, found, root, path, complaints, depth);
      return;
    }
  }
}

/** No variant matches: report the errors of the closest one. */
function checkBest(value: unknown, found: Field, root: Schema, path: string, complaints: Complaints, depth: number): void {
  let best: Complaints | null = null;
  for (const variant of found.variants) {
    const inside: Complaints = new Map();
    check(value, variant.schema, root, path, inside, depth + 1);
    if (!best || inside.size < best.size) best = inside;
  }
  for (const [place, message] of best ?? []) complaints.set(place, message);
}

function checkString(value: unknown, schema: Schema, say: (message: string) => void): void {
  if (typeof value !== "string") return say("a text is required");
  if (value.length < (schema["minLength"] ?? 0)) say(schema["minLength"] === 1 ? "must not be empty" : `at least ${schema["minLength"]} characters`);
  else if (value.length > (schema["maxLength"] ?? Infinity)) say(`at most ${schema["maxLength"]} characters`);
  else if (typeof schema["pattern"] === "string" && value.length < 10_000 && !matches(schema["pattern"], value)) say(`must match ${schema["pattern"]}`);
  else if (schema["format"] === "email" && !/^\S+@\S+$/.test(value)) say("not an email address");
  else if (["uri", "url"].includes(schema["format"]) && !/^[a-z][a-z0-9+.-]*:/i.test(value)) say("not an address such as https://…");
}

function matches(pattern: string, value: string): boolean {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true; // browsers do not support this regular expression; the agent validates it
  }
}

function checkNumber(value: unknown, found: Field, say: (message: string) => void): void {
  if (value instanceof Exact) return;
  const { schema } = found;
  if (typeof value !== "number" || Number.isNaN(value)) return say("a number is required");
  if (found.isInteger && !Number.isInteger(value)) say("a whole number is required");
  else if (value < (schema["minimum"] ?? -Infinity)) say(`at least ${schema["minimum"]}`);
  else if (value > (schema["maximum"] ?? Infinity)) say(`at most ${schema["maximum"]}`);
  else if (value <= (schema["exclusiveMinimum"] ?? -Infinity)) say(`more than ${schema["exclusiveMinimum"]}`);
  else if (value >= (schema["exclusiveMaximum"] ?? Infinity)) say(`less than ${schema["exclusiveMaximum"]}`);
}

function checkArray(value: unknown, schema: Schema, root: Schema, path: string, complaints: Complaints, depth: number): void {
  if (!Array.isArray(value)) return void complaints.set(path, "a list is required");
  if (value.length < (schema["minItems"] ?? 0)) complaints.set(path, `at least ${schema["minItems"]}`);
  if (value.length > (schema["maxItems"] ?? Infinity)) complaints.set(path, `at most ${schema["maxItems"]}`);
  value.forEach((item, index) => {
    const given = list(schema["prefixItems"])[index] ?? schema["items"];
    if (given !== undefined) check(item, given, root, at(path, index), complaints, depth + 1);
  });
}

function checkObject(value: unknown, schema: Schema, root: Schema, path: string, complaints: Complaints, depth: number): void {
  if (!isObject(value)) return void complaints.set(path, "an object is required");
  for (const name of list(schema["required"])) {
    if (value[name] === undefined) complaints.set(at(path, name), "is needed");
  }
  for (const [name, member] of Object.entries(value)) {
    const given = record(schema["properties"])[name] ?? schema["additionalProperties"];
    if (isObject(given) && member !== undefined) check(member, given, root, at(path, name), complaints, depth + 1);
  }
}
