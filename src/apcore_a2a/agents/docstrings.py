"""What a docstring in Google's style says: the description, and a text for each parameter."""

import inspect
import re
from typing import Final

from msgspec import Struct

_SECTION: Final = re.compile(r"^(?P<name>[A-Z][A-Za-z ]*):\s*$")
_PARAMETERS: Final = ("Args", "Arguments", "Parameters")
_PARAMETER: Final = re.compile(r"^\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")


class Documentation(Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = {}


def read_docstring(docstring: str | None) -> Documentation:
    r"""The parts of a docstring that others may want to read.

    Example:
        >>> read_docstring("Adds.\n\nArgs:\n    a: The first number,\n        of two.\n    b (int): The other.")
        Documentation(description='Adds.', parameters={'a': 'The first number, of two.', 'b': 'The other.'})
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    description: list[str] = []
    section = ""
    in_section: dict[str, list[str]] = {}
    for line in lines:
        header = _SECTION.match(line)
        if header is not None:
            section = header["name"]
        elif section:
            in_section.setdefault(section, []).append(line)
        else:
            description.append(line)
    parameters: dict[str, str] = {}
    for name in _PARAMETERS:
        parameters |= _read_parameters(in_section.get(name, []))
    return Documentation("\n".join(description).strip(), parameters)


def _read_parameters(lines: list[str]) -> dict[str, str]:
    """The parameters of a section: each begins where the first one does, and goes on further in."""
    found: dict[str, list[str]] = {}
    name = ""
    margin: int | None = None
    for line in lines:
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        if margin is None:
            margin = indent
        begins = _PARAMETER.match(text)
        if indent <= margin and begins is not None:
            name = begins["name"]
            found[name] = [begins["text"]]
        elif name:
            found[name].append(text)
    return {name: " ".join(texts).strip() for name, texts in found.items()}
