"""Reads the inputs of a skill, a function or an apcore module, from the parts of a message.

Invariant: integers stay exact, and those that arrive as floats become integers (`IntegerSchema`). The inputs share no
object with the stored message.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from apcore_a2a import errors
from apcore_a2a.agents.schema import ROOT, Schema, file_field, is_base64, text_field
from apcore_a2a.protocol.decoding import check_tree, decode
from apcore_a2a.protocol.model import Part

# ---- integers -------------------------------------------------------------------------------------------------------
# Restores integers that arrive as floats, where the schema of the skill says integer.
#
# Official clients hold the data of a part in a `google.protobuf.Struct`, whose numbers are all doubles: they send the
# integer 5 as `5.0`. JSON Schema accepts that as an integer, Python code often does not.
#
# Invariant: a number becomes an integer only if a schema of its place says integer, none says number, and a double
# holds the integer exactly. All other values stay as they are.

EXACT: Final = 2**53  # a larger double stands for several integers, so the original one is unknown
_CHOICES: Final = ("anyOf", "oneOf")
_MAY_CHANGE: Final = (float, dict, list)  # types of the values that are restored, or that contain such a value


class IntegerSchema:
    """Restores integers by the original input schema of a skill.

    It does not use the schema of the card, whose references are expanded to a limited depth only.

    A value may be large, and restoring it blocks the event loop. So the rules for each place in a value are derived
    once and cached for the life of the schema (100,000 numbers in a list: 30 ms instead of 290).
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._has_integers = _mentions_integers(schema)
        self._place = _Place(self, [schema])

    def restore(self, value: Any) -> Any:
        """Return the value with its integers restored. Objects and lists are changed in place."""
        if not self._has_integers or not isinstance(value, _MAY_CHANGE):
            return value
        return self._place.restore(value)

    def schemas_for(self, value: Any, given: list[Any]) -> tuple[list[Schema], bool]:
        """Return the schemas that apply to a value, and whether the result depends on the value.

        Includes the schemas that `given` refers to or is composed of. Each is included once, so that cycles end. Items
        of `given` that are not schemas are skipped.
        """
        found: list[Schema] = []
        seen: set[int] = set()
        depends = False
        waiting = [*given]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if "$ref" in node:
                waiting.append(self._resolve(node["$ref"]))
            waiting.extend(node.get("allOf", ()))
            for choice in _CHOICES:
                if choice in node:
                    depends = True
                    waiting.extend(self._possible_branches(value, node[choice]))
        return found, depends

    def _possible_branches(self, value: Any, branches: Iterable[Any]) -> list[Any]:
        return [branch for branch in branches if _may_apply(value, self._follow_reference(branch))]

    def _follow_reference(self, node: Any) -> Any:
        """Return the schema that a reference refers to. Any other node is returned as it is."""
        if isinstance(node, dict) and "$ref" in node:
            return self._resolve(node["$ref"])
        return node

    def _resolve(self, reference: Any) -> Any:
        """Return the node at a JSON pointer into this schema, or None."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = node.get(step.replace("~1", "/").replace("~0", "~"))
        return node


class _Place:
    """A place in a value, with the schemas that may apply to it."""

    def __init__(self, schema: IntegerSchema, given: list[Any]) -> None:
        self._schema = schema
        self._given = given
        # Cached rules: for numbers, and for all values if no alternative depends on the value.
        self._of_numbers: _Rules | None = None
        self._of_all: _Rules | None = None

    def restore(self, value: Any) -> Any:
        """Return a number, object or list with its integers restored."""
        if isinstance(value, float):
            if self._of_numbers is None:  # every alternative may apply, whatever the number is
                self._of_numbers = self._find_rules(value)
            return self._of_numbers.to_integer(value)
        rules = self._of_all or self._find_rules(value)
        if isinstance(value, dict):
            for name, item in value.items():
                if isinstance(item, _MAY_CHANGE):
                    value[name] = rules.place_of_property(name).restore(item)
        else:
            for index, item in enumerate(value):
                if isinstance(item, _MAY_CHANGE):
                    value[index] = rules.place_of_item(index).restore(item)
        return value

    def _find_rules(self, value: Any) -> "_Rules":
        nodes, depends = self._schema.schemas_for(value, self._given)
        rules = _Rules(self._schema, nodes)
        if not depends:
            self._of_all = rules
        return rules


class _Rules:
    """The combined rules of several schemas for a value and for the places in it."""

    def __init__(self, schema: IntegerSchema, nodes: list[Schema]) -> None:
        self._schema = schema
        self._nodes = nodes
        self._is_integer = any(_has_type(node, "integer") for node in nodes)
        self._is_number = any(_has_type(node, "number") for node in nodes)
        self._listed = {value for node in nodes for value in _listed_integers(node)}
        self._first_items = max((len(_first_items(node)) for node in nodes), default=0)
        # By name and by index, only those that the schemas name: a client may send any number of others.
        self._properties: dict[str, _Place] = {}
        self._items: dict[int, _Place] = {}
        self._other_property: _Place | None = None
        self._other_item: _Place | None = None

    def to_integer(self, value: float) -> float | int:
        """Return the number as an integer if the schemas say so."""
        if self._is_number or not value.is_integer() or abs(value) > EXACT:
            return value
        if self._is_integer or value in self._listed:
            return int(value)
        return value

    def place_of_property(self, name: str) -> _Place:
        if name in self._properties:
            return self._properties[name]
        if not any(name in node.get("properties", {}) for node in self._nodes):
            if self._other_property is None:
                self._other_property = _Place(self._schema, _of_property(self._nodes, name))
            return self._other_property
        self._properties[name] = _Place(self._schema, _of_property(self._nodes, name))
        return self._properties[name]

    def place_of_item(self, index: int) -> _Place:
        if index >= self._first_items:
            if self._other_item is None:
                self._other_item = _Place(self._schema, _of_item(self._nodes, index))
            return self._other_item
        if index not in self._items:
            self._items[index] = _Place(self._schema, _of_item(self._nodes, index))
        return self._items[index]


def _mentions_integers(node: Any) -> bool:
    match node:
        case dict():
            return (
                _has_type(node, "integer")
                or bool(_listed_integers(node))
                or any(map(_mentions_integers, node.values()))
            )
        case list():
            return any(map(_mentions_integers, node))
    return False


def _has_type(node: Schema, kind: str) -> bool:
    kinds = node.get("type")
    return kinds == kind or (isinstance(kinds, list) and kind in kinds)


def _listed_integers(node: Schema) -> list[int]:
    """Return the integers among the values of `const` and `enum`."""
    allowed = [node.get("const")]
    listed = node.get("enum")
    if isinstance(listed, list):  # else `node` is a table of properties, one of them named "enum"
        allowed.extend(listed)
    return [value for value in allowed if type(value) is int]  # not a bool, which is an int in Python


def _may_apply(value: Any, node: Any) -> bool:
    """Whether an alternative of `anyOf` or `oneOf` may apply to a value.

    An object must have the required properties, whose values must fit `const` and `enum`. Nothing else is compared.
    """
    if not isinstance(node, dict):
        return False
    if isinstance(value, float):
        return True
    if isinstance(value, list):
        return "type" not in node or _has_type(node, "array")
    if "type" in node and not _has_type(node, "object"):
        return False
    if not value.keys() >= set(node.get("required", ())):
        return False
    for name, property_schema in node.get("properties", {}).items():
        if name in value and not _is_allowed(value[name], property_schema):
            return False
    return True


def _is_allowed(value: Any, property_schema: Any) -> bool:
    """Whether `const` or `enum` of a schema allows a value."""
    if not isinstance(property_schema, dict):
        return True
    if "const" in property_schema:
        return bool(value == property_schema["const"])
    if "enum" in property_schema:
        return value in property_schema["enum"]
    return True


def _of_property(nodes: Iterable[Schema], name: str) -> list[Any]:
    """Return the schemas of one property of an object."""
    found: list[Any] = []
    for node in nodes:
        properties = node.get("properties", {})
        if name in properties:
            found.append(properties[name])
        else:
            found.extend(node.get("patternProperties", {}).values())
            found.append(node.get("additionalProperties"))
    return found


def _of_item(nodes: Iterable[Schema], index: int) -> list[Any]:
    """Return the schemas of one item of a list."""
    found: list[Any] = []
    for node in nodes:
        first = _first_items(node)
        if index < len(first):
            found.append(first[index])
        elif isinstance(node.get("items"), list):
            found.append(node.get("additionalItems"))
        else:
            found.append(node.get("items"))
    return found


def _first_items(node: Schema) -> Any:
    """Return the schemas of the first items of a list, one per item."""
    rest = node.get("items")
    if isinstance(rest, list):  # older schemas: `items` and `additionalItems` for `prefixItems` and `items`
        return rest
    return node.get("prefixItems", ())


# ---- inputs ---------------------------------------------------------------------------------------------------------

MAX_VIOLATIONS: Final = 50  # violations that an error names
MAX_TEXT: Final = 300  # characters of each, which may repeat input of the client
_JSON: Final = msgspec.json.Decoder()


class TakesInputs(Protocol):
    """The attributes of a skill that are needed to read its inputs. The schema is empty if the skill has none."""

    @property
    def id(self) -> str: ...

    @property
    def input_schema(self) -> Schema: ...

    @property
    def integers(self) -> IntegerSchema: ...


def read_inputs(parts: tuple[Part, ...], skill: TakesInputs) -> tuple[Any, tuple[Part, ...]]:
    """Read the inputs from the first part that fits the skill, and return them with the other parts.

    Raises:
        InvalidParamsError: No part can be read as input of this skill.
        ContentTypeNotSupportedError: The part is a file, and the skill takes no files.
    """
    if not parts:
        raise errors.InvalidParamsError("Message must contain at least one Part")
    chosen = 0  # if no part fits, the error is about the first
    for index, part in enumerate(parts):
        if _fits(part, skill):
            chosen = index
            break
    inputs = skill.integers.restore(_read(parts[chosen], skill))
    return inputs, parts[:chosen] + parts[chosen + 1 :]


def _fits(part: Part, skill: TakesInputs) -> bool:
    schema = skill.input_schema
    if part.data is not UNSET:
        return bool(schema)
    if not schema:
        return True
    if part.text is not UNSET:
        return text_field(schema) is not None
    return file_field(schema) is not None


def _read(part: Part, skill: TakesInputs) -> Any:
    schema = skill.input_schema
    if part.data is not UNSET:
        if not isinstance(part.data, dict) and schema.get("type", "object") == "object":
            raise _unreadable("The data part must be a JSON object")
        return msgspec.to_builtins(part.data)  # a copy, because skills may change their inputs
    if isinstance(part.text, str):
        if not schema:
            return _read_text(part.text, "text", any_object=True)
        field = text_field(schema)
        inputs = _read_text(part.text, field, any_object=field is None)
        if inputs is None:
            names = ", ".join(schema.get("properties", {}))
            raise _unreadable("Invalid JSON in TextPart", f"Skill {skill.id} takes a JSON object with {names}")
        return inputs
    return _read_file(part, skill)


def _read_text(text: str, field: str | None, *, any_object: bool) -> Any:
    """Return the text as inputs if it is a JSON object, else as the value of `field`. None if it can be neither."""
    if field == ROOT:
        return text
    value = _parse_json(text)
    # An object without `field` would be rejected as input. It is taken as text, which may well be JSON.
    if isinstance(value, dict) and (any_object or field in value):
        return value
    if field is None:
        return None
    return {field: text}


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text. None if it is invalid, too large or too deep."""
    try:
        body = text.encode()
        check_tree(body)
        return decode(body, _JSON)
    except (errors.A2AError, UnicodeError):
        return None


def _read_file(part: Part, skill: TakesInputs) -> Any:
    field: str | None = ROOT
    if skill.input_schema:
        field = file_field(skill.input_schema)
    if field is None:
        raise errors.ContentTypeNotSupportedError(f"Skill {skill.id} takes no files")
    if is_base64(skill.input_schema, field):
        file = _read_content(part, skill)
    else:
        file = _describe_file(part)
    if field == ROOT:
        return file
    return {field: file}


def _read_content(part: Part, skill: TakesInputs) -> Any:
    if part.raw is UNSET:
        raise errors.ContentTypeNotSupportedError(f"Skill {skill.id} takes the content of files, not URLs")
    return msgspec.to_builtins(part.raw)  # base64


def _describe_file(part: Part) -> dict[str, Any]:
    file: dict[str, Any] = {}
    if part.raw is UNSET:
        file["uri"] = part.url
    else:
        file["bytes"] = msgspec.to_builtins(part.raw)
    file["name"] = part.filename
    file["mimeType"] = part.media_type
    return file


def fill_in(inputs: dict[str, Any], rest: tuple[Part, ...], skill: TakesInputs) -> None:
    """Fill missing inputs with the first text and the first file of the other parts."""
    for part in rest:
        if isinstance(part.text, str):
            field = text_field(skill.input_schema)
            if field and field not in inputs:
                inputs[field] = part.text
        elif part.data is UNSET:
            field = file_field(skill.input_schema)
            if field and field not in inputs:
                inputs |= _read_file(part, skill)


def refuse_inputs(violations: Sequence[errors.Violation]) -> errors.InvalidParamsError:
    """Return the error that names the wrong fields, at most MAX_VIOLATIONS of them: a client may send any number."""
    named: list[errors.Violation] = []
    texts: list[str] = []
    for field, message, code in violations[:MAX_VIOLATIONS]:
        shown = errors.Violation(field[:MAX_TEXT], message[:MAX_TEXT], code)
        named.append(shown)
        texts.append(f"{shown.field}: {shown.message}" if shown.field else shown.message)
    text = f"Invalid parameters: {'; '.join(texts[:3])}"  # the readable summary
    return errors.InvalidParamsError(text, named, kind="SchemaValidationError")


def _unreadable(text: str, hint: str = "") -> errors.A2AError:
    return errors.InvalidParamsError(text, [errors.Violation("message.parts", hint or text)])
