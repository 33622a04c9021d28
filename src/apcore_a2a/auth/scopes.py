"""The OAuth 2.0 scopes that a caller needs for each skill, and an agent that enforces them.

Invariant: a caller without the scopes of a skill gets the same error as for an unknown task. The log has the reason.
The scopes are checked before a task is created, and again for each message to an existing task.
"""

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from apcore_a2a.agent import Admission, Agent, AgentEvent, Call, Caller
from apcore_a2a.errors import AccessDeniedError

logger = logging.getLogger(__name__)


class SkillScopes:
    """The scopes by pattern of skill ids: `{"payments.*": ["payments:write"]}`.

    A skill needs the scopes of all patterns that match.

    Raises:
        ValueError: a pattern names no scope.
    """

    def __init__(self, by_pattern: Mapping[str, Sequence[str]]) -> None:
        self._by_pattern: dict[str, frozenset[str]] = {}
        for pattern, scopes in by_pattern.items():
            if isinstance(scopes, str):  # one scope, not a sequence of letters
                scopes = [scopes]
            if not scopes or not all(scopes):
                raise ValueError(f"skill_scopes must name a scope for {pattern!r}; omit the pattern to require none")
            self._by_pattern[pattern] = frozenset(scopes)

    def __bool__(self) -> bool:
        return bool(self._by_pattern)

    def required(self, skill: str) -> frozenset[str]:
        """Return the scopes that a caller needs for a skill, whether or not the skill exists."""
        scopes: frozenset[str] = frozenset()
        for pattern, more in self._by_pattern.items():
            if fnmatchcase(skill, pattern):
                scopes |= more
        return scopes

    def permits(self, caller: Caller, skill: str) -> bool:
        return self.required(skill) <= frozenset(caller.scopes)

    def unused(self, skills: Iterable[str]) -> list[str]:
        """Return the patterns that match none of these skills, which may be misspelt."""
        ids = list(skills)
        return [pattern for pattern in self._by_pattern if not any(fnmatchcase(id, pattern) for id in ids)]


class ScopedAgent:
    """An agent that accepts messages only from callers with the required scopes.

    If the agent has a method `skill_of(call)`, the caller needs the scopes of the skill that it returns. In any other
    agent, a message may reach every skill on the card, so the caller needs the scopes of all of them.
    """

    def __init__(self, agent: Agent, scopes: SkillScopes, skills: Sequence[str]) -> None:
        self.may_reply = agent.may_reply
        self._agent = agent
        self._scopes = scopes
        self._skills = tuple(skills)

    def protect(self, skills: Sequence[str]) -> None:
        """Require the scopes of these skills from now on, for an agent that knows its skills only when it is open."""
        self._skills = tuple(skills)

    def __getattr__(self, name: str) -> Any:  # Any: the optional methods of an agent, such as `cancel`
        return getattr(self._agent, name)

    async def admit(self, call: Call) -> Admission:
        for skill in self._skills_of(call):
            missing = self._scopes.required(skill) - frozenset(call.caller.scopes)
            if missing:
                reason = f"missing scopes: {' '.join(sorted(missing))}"
                details = {"skill": skill, "caller": call.caller.id, "issuer": call.caller.issuer, "reason": reason}
                logger.warning("call denied by scope", extra=details)
                raise AccessDeniedError(reason)
        return await self._agent.admit(call)

    def _skills_of(self, call: Call) -> tuple[str, ...]:
        skill_of = getattr(self._agent, "skill_of", None)
        if skill_of is None:
            return self._skills
        return (skill_of(call),)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self._agent.run(call)
