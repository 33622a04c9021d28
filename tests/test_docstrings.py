"""Docstrings with an example, for what people call and implement: not only for the names, but for each method."""

import inspect

import pytest

from apcore_a2a import AgentExecutor, Authenticator, JWTAuthenticator, Settings
from apcore_a2a.agents.executors import EventQueue, RequestContext, RequestContextBuilder, TaskUpdater
from apcore_a2a.app.application import Application
from tests.requirements import requirement

CLASSES = (
    AgentExecutor,
    Application,
    Authenticator,
    EventQueue,
    JWTAuthenticator,
    RequestContext,
    RequestContextBuilder,
    Settings,
    TaskUpdater,
)
INTERNAL = {"Application.open_or_say_why"}  # the server's


def methods() -> list[str]:
    found = []
    for each in CLASSES:
        for name, member in vars(each).items():
            is_method = inspect.isfunction(member) or isinstance(member, property)
            if is_method and not name.startswith("_") and f"{each.__name__}.{name}" not in INTERNAL:
                found.append(f"{each.__name__}.{name}")
    return found


@requirement("NFR-MNT-003")
@pytest.mark.parametrize("method", methods())
def test_a_public_method_has_a_docstring_with_an_example(method: str) -> None:
    owner, _, name = method.partition(".")
    each = next(each for each in CLASSES if each.__name__ == owner)
    assert ">>> " in (inspect.getdoc(vars(each)[name]) or "")
