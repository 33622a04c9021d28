"""What the agent of every framework does: its fake model decides by the words of the user, and its tools note effects.

The files beside this one make an agent of it. Each runs in the environment of its framework.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

NAME = "clerk"
DESCRIPTION = "Pays and looks."
SECRET = "secret provider key sk-123"
WORDS = 2000
"""The words of the long answer."""


class Step(NamedTuple):
    """One response of the model: a text, then calls of tools. Or typed output."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    report: dict[str, Any] | None = None

    @property
    def pieces(self) -> list[str]:
        """The text as a model streams it."""
        words = self.text.split(" ")
        return [word + " " for word in words[:-1]] + words[-1:]


def first_step(said: str, turn: int) -> Step:
    """Return the response to a message of the user, the `turn`th of the conversation."""
    match said.split(" ", 1)[0]:
        case "look":
            return Step("Let me see. ", (("look", {"query": "x"}),))
        case "pay":
            return Step(calls=(("pay", {"to": "Ada", "amount": 5}),))
        case "two":
            return Step(calls=(("pay", {"to": "Ada", "amount": 1}), ("pay", {"to": "Bob", "amount": 2})))
        case "slow":
            return Step(calls=(("slow", {}),))
        case "report":
            return Step(report={"title": "Sales", "pages": 3})
        case "fail":
            raise RuntimeError(SECRET)
        case "long":
            return Step(" ".join(f"w{number}" for number in range(WORDS)))
    return Step(f"You said {said!r}; turn {turn}.")


def last_step(result: object) -> Step:
    """Return the response to the result of a tool."""
    return Step(f"The tool said: {result}.")


# ---- tools ----------------------------------------------------------------------------------------------------------


def note(line: str) -> None:
    """Write an effect to the file that the test reads."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(line + "\n")


def pay(to: str, amount: int) -> str:
    """Pay an amount. Requires approval."""
    note(f"paid {to} {amount}")
    return f"paid {amount} to {to}"


def look(query: str) -> str:
    """Look something up."""
    return "private row"


async def slow() -> str:
    """Never end."""
    note("slow began")
    try:
        await asyncio.Event().wait()
    finally:
        note("slow stopped")
    return "done"


# ---- server ---------------------------------------------------------------------------------------------------------


def run(agent: Any, **given: Any) -> None:
    """Serve the agent on a free port until the process is killed. Arguments: the store, and options as NAME=VALUE."""
    from apcore_a2a import APIKeyAuthenticator, serve
    from apcore_a2a.auth.api_keys import hash_key

    options: dict[str, Any] = given | dict(argument.split("=", 1) for argument in sys.argv[2:])
    keys = {name: hash_key(f"key-of-{name}") for name in ("ada", "bob")}
    serve(agent, host="127.0.0.1", port=0, store=sys.argv[1], auth=APIKeyAuthenticator(keys), **options)
