"""Modules as skills of the card."""

import json
from typing import Any

import apcore
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from apcore_a2a.agents.apcore.agent import to_params, to_skill
from apcore_a2a.agents.schema import ROOT, Schema, file_field, inline, is_base64, text_field
from apcore_a2a.agents.skills import modes
from apcore_a2a.protocol.card import AgentCard, AgentSkill
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.v03.jsonrpc import encode_card
from tests.agents.apcore.running import Add, Counts, Returns, modules_of
from tests.requirements import requirement


def skill_of(module: Any, module_id: str = "a__module") -> AgentSkill:
    (found,) = modules_of(**{module_id: module})
    return to_skill(found)


def params_of(module: Any) -> dict[str, Any]:
    (found,) = modules_of(a__module=module)
    return to_params(found)


@requirement("FR-SKL-001")
def test_a_skill_has_the_description_of_its_module() -> None:
    skill = skill_of(Add(), "math__add")
    assert (skill.id, skill.name) == ("math.add", "Math Add")
    assert (skill.description, skill.tags) == ("Add two integers", ("math",))


@requirement("FR-SKL-001")
@pytest.mark.parametrize(
    ("module_id", "name"), [("image.resize", "Image Resize"), ("a.b_c.d", "A B C D"), ("hello", "Hello")]
)
def test_the_name_is_the_id_in_title_case(module_id: str, name: str) -> None:
    assert skill_of(Returns({}), module_id.replace(".", "__")).name == name


@requirement("FR-SKL-002")
def test_examples_are_inputs_as_json_and_ten_at_most() -> None:
    examples = [apcore.ModuleExample(title=f"No {n}", inputs={"n": n}, output={}) for n in range(12)]
    module = Returns({}, examples=examples)
    assert [json.loads(text) for text in skill_of(module).examples] == [{"n": n} for n in range(10)]
    assert params_of(module)["examples"][0] == {"name": "No 0", "input": {"n": 0}}
    assert len(params_of(module)["examples"]) == 10


@requirement("FR-SKL-002")
def test_a_module_without_examples_is_a_skill_with_an_empty_list() -> None:
    card = AgentCard(name="agent", supported_interfaces=(), skills=(skill_of(Returns({})),))
    (shown,) = json.loads(encode_card(card))["skills"]
    assert shown["examples"] == []


STRING = {"type": "string"}
TEXT = {"type": "object", "properties": {"text": STRING}}
MAYBE = {"type": "object", "properties": {"text": {"anyOf": [STRING, {"type": "null"}]}}}
TWO = {"type": "object", "properties": {"text": STRING, "n": {"type": "integer"}}}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
EMPTY = {"type": "object", "properties": {}}


@requirement("FR-SKL-003")
@pytest.mark.parametrize(
    ("schema", "declared"),
    [
        ({}, ("text/plain",)),
        (STRING, ("application/json", "text/plain")),
        (TEXT, ("application/json", "text/plain")),
        (MAYBE, ("application/json", "text/plain")),
        (TWO, ("application/json",)),
        (NUMBER, ("application/json",)),
        (EMPTY, ("application/json",)),
    ],
)
def test_modes_follow_from_the_schema(schema: dict[str, Any], declared: tuple[str, ...]) -> None:
    assert modes(schema) == declared


@requirement("FR-SKL-003")
def test_a_skill_declares_the_modes_of_its_input_and_its_output() -> None:
    class Text(BaseModel):
        text: str

    skill = skill_of(Returns({}, input_schema=Text))
    assert (skill.input_modes, skill.output_modes) == (("application/json", "text/plain"), ("text/plain",))


@requirement("FR-SKL-004")
def test_annotations_are_published() -> None:
    off = {"destructive": False, "requires_approval": False, "open_world": False}
    flags = {"readonly": True, "idempotent": True, **off}
    published = params_of(Returns({}, annotations=apcore.ModuleAnnotations(**flags)))["annotations"]
    assert published == flags


@requirement("FR-SKL-004")
def test_no_annotations_are_published_for_a_module_without() -> None:
    assert "annotations" not in params_of(Returns({}))


def test_schemas_are_published_without_references() -> None:
    class Inner(BaseModel):
        n: int

    class Outer(BaseModel):
        inner: Inner
        more: list[Inner]

    params = params_of(Returns({}, input_schema=Outer))
    assert "$ref" not in json.dumps(params["inputSchema"])
    assert params["inputSchema"]["properties"]["inner"]["properties"]["n"]["type"] == "integer"
    assert "outputSchema" not in params


def test_a_streaming_skill_is_marked() -> None:
    assert params_of(Counts())["streaming"]
    assert "streaming" not in params_of(Returns({}))


# Texts can be overridden


@pytest.mark.parametrize(
    ("display", "read"),
    [
        ({}, ("A Module", "Return a value", ())),
        ({"alias": "Giver"}, ("Giver", "Return a value", ())),
        ({"alias": "Giver", "a2a": {"alias": "A2A Giver"}}, ("A2A Giver", "Return a value", ())),
        ({"description": "Gives", "tags": ["gift"]}, ("A Module", "Gives", ("gift",))),
        ({"description": "Gives", "a2a": {"description": "Gives all"}}, ("A Module", "Gives all", ())),
        ({"guidance": "Ask nicely"}, ("A Module", "Return a value\n\nGuidance: Ask nicely", ())),
        ({"a2a": None, "mcp": {"alias": "Not for us"}}, ("A Module", "Return a value", ())),
    ],
)
def test_display_overrides_the_texts_but_not_the_id(display: dict[str, Any], read: tuple[Any, ...]) -> None:
    skill = skill_of(Returns({}, metadata={"display": display}))
    assert (skill.name, skill.description, skill.tags) == read
    assert skill.id == "a.module"


# Schemas


def test_references_are_replaced_by_their_definitions() -> None:
    schema = {
        "$defs": {"N": {"type": "integer"}},
        "definitions": {"S": {"type": "string"}},
        "properties": {
            "n": {"$ref": "#/$defs/N", "title": "N"},
            "s": {"$ref": "#/definitions/S"},
            "gone": {"$ref": "#/$defs/Gone"},
            "$ref": {"type": "string"},
            "list": {"items": [{"$ref": "#/$defs/N"}]},
        },
    }
    assert inline(schema) == {
        "properties": {
            "n": {"type": "integer", "title": "N"},
            "s": {"type": "string"},
            "gone": {},
            "$ref": {"type": "string"},
            "list": {"items": [{"type": "integer"}]},
        },
    }
    assert "$defs" in schema


def test_true_is_a_schema_that_accepts_any_value() -> None:
    schema = {
        "$defs": {"Any": True},
        "properties": {"x": True, "y": {"$ref": "#/$defs/Any"}, "z": {"anyOf": [True, {"type": "null"}]}},
    }

    assert inline(schema)["properties"] == {"x": True, "y": True, "z": {"anyOf": [True, {"type": "null"}]}}
    for name in ("x", "y", "z"):
        alone = {"properties": {name: inline(schema)["properties"][name]}}
        assert (text_field(alone), file_field(alone), is_base64(alone, name)) == (None, None, False)
    assert inline({"$defs": 1, "properties": 1}) == {"$defs": 1, "properties": 1}
    assert text_field({"properties": 1}) is None


def doubling(levels: int) -> Schema:
    """Return a schema whose definitions each refer to the next one twice."""
    definitions: Schema = {}
    for level in range(levels):
        reference = {"$ref": f"#/$defs/D{level + 1}"}
        definitions[f"D{level}"] = {"type": "object", "properties": {"a": reference, "b": reference}}
    definitions[f"D{levels}"] = STRING
    return {"$defs": definitions, "type": "object", "properties": {"top": {"$ref": "#/$defs/D0"}}}


def test_multiplying_references_are_expanded_only_as_deep_as_the_result_stays_small() -> None:
    assert len(encode(inline(doubling(8)))) > len(encode(doubling(8)))
    for levels in (12, 24, 200):
        small = inline(doubling(levels))
        assert len(encode(small)) < 100_000
        assert b"$ref" not in encode(small)
        node = small["properties"]["top"]
        for _ in range(8):
            assert node["type"] == "object"
            node = node["properties"]["b"]


def test_large_definitions_without_multiplication_are_expanded() -> None:
    large = {"properties": {f"p{number}": {"type": "string"} for number in range(5_000)}}
    assert inline({"$defs": {"L": large}, "items": {"$ref": "#/$defs/L"}}) == {"items": large}


def test_a_schema_keeps_its_own_keywords_if_no_reference_can_be_expanded() -> None:
    many = [{"$ref": "#/$defs/N", "title": str(number)} for number in range(5_000)]
    expected = [{"title": str(number)} for number in range(5_000)]
    assert inline({"$defs": {"N": {"items": [{}, {}]}}, "anyOf": many}) == {"anyOf": expected}


def test_text_and_files_find_their_field() -> None:
    file = {"properties": {"uri": STRING, "name": STRING}}
    assert [text_field(schema) for schema in (STRING, TEXT, TWO, EMPTY)] == [ROOT, "text", None, None]
    assert file_field(file) == ROOT
    assert file_field({"properties": {"picture": file, "n": {"type": "integer"}}}) == "picture"
    assert file_field({"properties": {"one": file, "two": file}}) is None
    assert file_field(TEXT) is None


def test_a_module_without_a_version_has_none_on_the_card() -> None:
    (found,) = modules_of(a__module=Add())
    assert "version" in to_params(replace(found, version="1.2.3"))
    assert "version" not in to_params(replace(found, version=""))
