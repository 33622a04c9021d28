"""Which skill a message is for, as far as the message says it, and what is answered when it does not."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from apcore_a2a.agent import Call
from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.skill_names import advise

SKILL_ID: Final = "skillId"
FIELD: Final = "metadata.skillId"
MISSING: Final = "Missing required parameter: metadata.skillId"
NO_TEXT: Final = "expected string"


def named_skill(call: Call) -> str:
    """The id of the skill that the message names, else the request; empty if neither does."""
    return first_skill_id(call.message.metadata, call.request.metadata)


def first_skill_id(*metadata: Mapping[str, Any] | None) -> str:
    """The first id that is named; empty if there is none.

    Raises:
        InvalidParamsError: what stands there is no text. To run another skill in its place would be worse.
    """
    for each in metadata:
        skill = (each or {}).get(SKILL_ID)
        if skill is None or skill == "":
            continue
        if not isinstance(skill, str):
            raise InvalidParamsError(f"Invalid parameter {FIELD}: {NO_TEXT}", [Violation(FIELD, NO_TEXT)])
        return skill
    return ""


def missing_skill(known: Iterable[str]) -> InvalidParamsError:
    """The error for a message that could be for any of several skills."""
    return InvalidParamsError(MISSING, [Violation(FIELD, f"{MISSING}; {advise(known)}", "required")])
