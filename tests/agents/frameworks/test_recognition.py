"""Agents of frameworks are recognized by the names of their classes, and nothing is imported for it."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from apcore_a2a import as_agent
from apcore_a2a.agents.frameworks.recognition import FRAMEWORKS, framework_of, is_factory, read_version
from apcore_a2a.agents.functions.agent import FunctionAgent


def class_of(module: str, name: str) -> type:
    return type(name, (), {"__module__": module})


PydanticAgent: Any = class_of("pydantic_ai.agent.abstract", "AbstractAgent")


class Derived(PydanticAgent):  # type: ignore[misc]  # as a class of a framework that has no types
    """An agent of the application."""


def make_agent() -> Derived:
    return Derived()


def make_nothing_known():  # type: ignore[no-untyped-def]  # the annotation is what this is about
    raise AssertionError("a function without an annotation is not called")


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.title)
def test_an_agent_of_each_framework_is_recognized_by_its_class(framework: Any) -> None:
    inside = class_of(f"{framework.module}.inner", framework.class_name)
    beside = class_of(f"{framework.module}_tools.inner", framework.class_name)
    assert framework_of(inside()) is framework
    assert framework_of(beside()) is not framework


def test_a_class_of_the_application_is_recognized_by_its_base() -> None:
    framework = framework_of(Derived())
    assert framework is not None
    assert framework.title == "pydantic-ai"


def test_a_framework_knows_its_own_classes() -> None:
    framework = framework_of(Derived())
    assert framework is not None
    assert framework.defines(PydanticAgent)
    assert not framework.defines(Derived)


@pytest.mark.parametrize("thing", [str.upper, len, [], "text", object(), Derived])
def test_other_objects_are_not_recognized(thing: Any) -> None:
    assert framework_of(thing) is None
    assert not is_factory(thing)


@pytest.mark.parametrize("factory", [make_agent, lambda: Derived(), partial(Derived), partial(make_agent)])
def test_a_factory_is_recognized_by_what_it_returns(factory: Any) -> None:
    assert is_factory(factory)


@pytest.mark.parametrize("function", [make_nothing_known, lambda: "text", lambda text: text, partial(dict)])
def test_a_function_that_returns_no_agent_is_not_a_factory(function: Any) -> None:
    assert not is_factory(function)


def test_a_lambda_that_returns_text_is_served_as_a_function() -> None:
    agent = as_agent(lambda: "text")
    assert isinstance(agent, FunctionAgent)


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.68.0", (2, 68, 0)), ("1.0.0b3", (1, 0, 0)), ("1.2rc1.4", (1, 2)), ("dev", ())]
)
def test_versions_are_read_by_their_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert read_version(text) == numbers


def test_a_version_below_the_floor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recognition = sys.modules["apcore_a2a.agents.frameworks.recognition"]
    monkeypatch.setattr(recognition, "version", lambda name: "0.1.0")
    with pytest.raises(ImportError, match=r"pydantic-ai-slim 0\.1\.0 is not supported: install [\d.]+ or newer"):
        as_agent(Derived())


def test_recognition_imports_no_framework() -> None:
    code = (
        "import sys; from apcore_a2a.agents.as_agent import as_agent; as_agent(len);"
        "found = {'pydantic_ai', 'agents', 'langgraph', 'langchain_core', 'google.adk', 'strands', 'agent_framework'};"
        "assert not found & sys.modules.keys(), found & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
