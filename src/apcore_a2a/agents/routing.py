"""Which skill a message is for, as far as the message says it, and what is answered when it does not."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from apcore_a2a.agent import Call
from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.skill_names import advise

SKILL_ID: Final = "skillId"
MISSING: Final = "Missing required parameter: metadata.skillId"


def named_skill(call: Call) -> str:
    """The id of the skill that the message names, else the request; empty if neither does."""
    return first_skill_id(call.message.metadata, call.request.metadata)


def first_skill_id(*metadata: Mapping[str, Any] | None) -> str:
    for each in metadata:
        skill = (each or {}).get(SKILL_ID)
        if isinstance(skill, str) and skill:
            return skill
    return ""


def missing_skill(known: Iterable[str]) -> InvalidParamsError:
    """The error for a message that could be for any of several skills."""
    return InvalidParamsError(MISSING, [Violation("metadata.skillId", f"{MISSING}; {advise(known)}", "required")])
