"""Docstrings with an example, for what people call and implement: not only for the names, but for each method."""

import inspect
import re

import pytest

import apcore_a2a
from apcore_a2a.agents.executors import EventQueue, RequestContext, RequestContextBuilder, TaskUpdater
from apcore_a2a.app.application import Application
from apcore_a2a.storage.contract import DeferringStore, ReportsTrouble, ReportsUsage, Store
from tests.requirements import requirement

EXPORTED = [getattr(apcore_a2a, name) for name in apcore_a2a.__all__]
FURTHER = (Application, EventQueue, RequestContext, RequestContextBuilder, TaskUpdater)
CLASSES = [*filter(inspect.isclass, EXPORTED), *FURTHER]
INTERNAL = {"Application.open_or_keep_reason"}  # the server's
# The methods that the engine calls on a store. The store contract documents them, and no application calls them.
OF_STORES = {name for contract in (Store, DeferringStore, ReportsTrouble, ReportsUsage) for name in vars(contract)}


def methods() -> list[str]:
    found = []
    for each in CLASSES:
        is_store = hasattr(each, "orphans")
        for name, member in vars(each).items():
            if name.startswith("_") or (is_store and name in OF_STORES):
                continue
            is_method = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if is_method and f"{each.__name__}.{name}" not in INTERNAL:
                found.append(f"{each.__name__}.{name}")
    return found


@requirement("NFR-MNT-003")
@pytest.mark.parametrize("value", [value for value in EXPORTED if callable(value)], ids=lambda value: value.__name__)
def test_a_public_name_has_a_docstring_with_an_example(value: object) -> None:
    assert re.search(r"\bExample:\n.*>>> ", inspect.getdoc(value) or "", re.DOTALL)


@requirement("NFR-MNT-003")
@pytest.mark.parametrize("method", methods())
def test_a_public_method_has_a_docstring_with_an_example(method: str) -> None:
    owner, _, name = method.partition(".")
    each = next(each for each in CLASSES if each.__name__ == owner)
    assert ">>> " in (inspect.getdoc(vars(each)[name]) or "")
