"""The names we promise: listed, sorted, typed, loaded on first use."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import apcore_a2a
from tests.requirements import requirement
from tests.sources import PACKAGE

EXPORTED = [name for name in apcore_a2a.__all__ if name != "__version__"]


def typed_imports() -> dict[str, str]:
    """The root's imports for type checkers: name → module."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    guarded = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: node.module or ""
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def public_functions(value: Any) -> Iterator[Any]:  # Any: whatever the package exports
    """The value itself if it is a function; the public methods that our class defines if it is a class."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value):
        for base in value.__mro__:
            if base.__module__.startswith("apcore_a2a"):
                members = vars(base).items()
                yield from (
                    member for name, member in members if not name.startswith("_") and inspect.isfunction(member)
                )


def test_the_list_of_names_is_sorted() -> None:
    assert apcore_a2a.__all__ == sorted(apcore_a2a.__all__)


def test_type_checkers_see_the_names_that_programs_see() -> None:
    assert sorted(typed_imports()) == EXPORTED


@pytest.mark.parametrize("name", EXPORTED)
def test_a_name_loads_from_the_module_that_type_checkers_read(name: str) -> None:
    assert getattr(apcore_a2a, name) is getattr(import_module(typed_imports()[name]), name)


def test_every_name_shows_in_dir() -> None:
    assert set(apcore_a2a.__all__) <= set(dir(apcore_a2a))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'apcore_a2a' has no attribute 'Nothing'"):
        _ = apcore_a2a.Nothing


@requirement("NFR-MNT-002")
@pytest.mark.parametrize("name", EXPORTED)
def test_every_parameter_and_result_of_the_public_api_is_typed(name: str) -> None:
    untyped = []
    for function in public_functions(getattr(apcore_a2a, name)):
        signature = inspect.signature(function)
        hints = {key: parameter.annotation for key, parameter in signature.parameters.items()}
        hints["return"] = signature.return_annotation
        empty = {key for key, hint in hints.items() if hint is inspect.Signature.empty}
        untyped += [f"{function.__qualname__}: {key}" for key in sorted(empty - {"self", "cls"})]
    assert untyped == []


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
