"""Skills as a person at a terminal meets them: in a hint when one is missing or mistyped, and behind the tab key.

For the tab key, the skills of the agents called last are kept in the user's cache directory: a shell that completes a
word must not wait for a network. They are names that agents publish; nothing else is kept.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec
from click.shell_completion import CompletionItem

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli.options import NOT_JSON
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.card import MAX_LENGTH, AgentCard, advise

MAX_AGENTS: Final = 20
MAX_SKILLS: Final = 500  # of one agent
MAX_BYTES: Final = 2_000_000  # of a cache that we read: nobody but us writes there, but somebody could
_NOT_FOUND: Final = re.compile(r"skill not found: (\S+)", re.IGNORECASE)

Known = dict[str, list[str]]
"""The skills by agent, the agent called last at the end."""


# ---- hints ----------------------------------------------------------------------------------------------------------


def is_about_skill(error: A2AError) -> bool:
    """Whether an agent, whoever wrote it, complains that a skill is missing or unknown."""
    text = error.message.lower()
    return "skillid" in text or "skill not found" in text


def skill_hint(error: A2AError, card: AgentCard) -> str:
    """What to add to the command."""
    asked = _NOT_FOUND.search(error.message)
    advice = advise([clean_line(skill.id) for skill in card.skills], asked[1] if asked else "")
    if not advice:
        return "Choose a skill with --skill"
    return f"Choose a skill with --skill: {advice}"


# ---- completion -----------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where the skills are kept, as the platform has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "apcore-a2a" / "skills.json"


def remember_skills(agent: str, card: AgentCard) -> None:
    """Keep the skills of an agent for the next completion, if that is possible."""
    if "@" in agent:
        return  # there may be a password in the address
    skills = [clean_line(skill.id, MAX_LENGTH) for skill in card.skills[:MAX_SKILLS]]
    known = read_known()
    if known.get(agent) == skills and list(known)[-1] == agent:
        return  # nothing new: no need to write
    known.pop(agent, None)
    known[agent] = skills
    for oldest in list(known)[:-MAX_AGENTS]:
        del known[oldest]
    path = cache_file()
    # A home that cannot be written is no reason to fail: then there is no completion.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode(known))
        unfinished.replace(path)  # as a whole: two commands may end at once


def read_known() -> Known:
    """What was kept; nothing if it cannot be read."""
    try:
        path = cache_file()
        if path.stat().st_size > MAX_BYTES:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, *NOT_JSON):
        return {}


def complete_skill(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The skills of the agent that the line names, or of the one called last."""
    known = read_known()
    words = ctx.params.get("words") or ()
    named = [word for word in (ctx.params.get("agent_card"), *words) if word in known]
    agent = named[0] if named else next(reversed(known), "")
    return [CompletionItem(skill) for skill in known.get(agent, []) if skill.startswith(incomplete)]
