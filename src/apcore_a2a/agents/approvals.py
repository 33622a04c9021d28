"""The status of a task that waits for an approval, and the reading of the reply, for functions and apcore modules."""

from typing import Final

from apcore_a2a.agents.content import agent_message
from apcore_a2a.protocol.model import Message, StatusUpdate, TaskState, TaskStatus

ANSWERS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}


def read_answer(message: Message) -> bool | None:
    """Whether a reply approves the call. None if it neither approves nor rejects."""
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get("approved"), bool):
            return bool(part.data["approved"])
        if isinstance(part.text, str):
            word = part.text.strip().lower()
            if word in ANSWERS:
                return ANSWERS[word]
    return None


def approval_required(what: str, *, skill_id: str, approval_id: str | None) -> StatusUpdate:
    """Return the INPUT_REQUIRED status that asks the caller to approve or reject a call of `what`."""
    text = f'Approval required for {what}. Reply "approve" or "reject".'
    message = agent_message(text, metadata={"approvalId": approval_id, "skillId": skill_id})
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message))


def rejected(text: str) -> StatusUpdate:
    """Return the REJECTED status that ends a task without approval. FAILED would suggest a run, and a useful retry."""
    return StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message(text)))
