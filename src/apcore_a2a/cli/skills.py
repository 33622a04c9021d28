"""Skills at the command line: hints for missing or mistyped names, and shell completion.

For completion, the skills of recently called agents are stored in the user's cache directory, because a shell that
completes a word must not wait for the network. Skills are public names. Nothing else is stored.
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
MAX_SKILLS: Final = 500  # maximum per agent
MAX_BYTES: Final = 2_000_000  # maximum size of a cache file that is read: another program could have written it
_NOT_FOUND: Final = re.compile(r"skill not found: (\S+)", re.IGNORECASE)

Known = dict[str, list[str]]
"""Skills by agent, the most recently called agent last."""


# ---- hints ----------------------------------------------------------------------------------------------------------


def is_about_skill(error: A2AError) -> bool:
    """Return whether an agent of any implementation reports a missing or unknown skill."""
    text = error.message.lower()
    return "skillid" in text or "skill not found" in text


def skill_hint(error: A2AError, card: AgentCard) -> str:
    """Return the hint that names matching skills."""
    asked = _NOT_FOUND.search(error.message)
    advice = advise([clean_line(skill.id) for skill in card.skills], asked[1] if asked else "")
    if not advice:
        return "Choose a skill with --skill"
    return f"Choose a skill with --skill: {advice}"


# ---- completion -----------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Return the path of the cache, following the conventions of the platform."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "apcore-a2a" / "skills.json"


def remember_skills(agent: str, card: AgentCard) -> None:
    """Store the skills of an agent for later completions, if possible."""
    if "@" in agent:
        return  # the address may contain a password
    skills = [clean_line(skill.id, MAX_LENGTH) for skill in card.skills[:MAX_SKILLS]]
    known = read_known()
    if known.get(agent) == skills and list(known)[-1] == agent:
        return  # unchanged: no need to write
    known.pop(agent, None)
    known[agent] = skills
    for oldest in list(known)[:-MAX_AGENTS]:
        del known[oldest]
    path = cache_file()
    # A home directory that cannot be written must not make the command fail. Then there is no completion.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode(known))
        unfinished.replace(path)  # atomically: two commands may end at the same time


def read_known() -> Known:
    """Return the cached skills, or none if the cache cannot be read."""
    try:
        path = cache_file()
        if path.stat().st_size > MAX_BYTES:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, *NOT_JSON):
        return {}


def complete_skill(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the skills of the agent on the command line, or of the most recently called agent."""
    known = read_known()
    words = ctx.params.get("words") or ()
    named = [word for word in (ctx.params.get("agent_card"), *words) if word in known]
    agent = named[0] if named else next(reversed(known), "")
    return [CompletionItem(skill) for skill in known.get(agent, []) if skill.startswith(incomplete)]
