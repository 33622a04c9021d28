"""What a task says that waits for an approval, and how a reply is read; for functions and apcore modules alike."""

from typing import Final

from apcore_a2a.agents.content import agent_message
from apcore_a2a.protocol.model import Message, StatusUpdate, TaskState, TaskStatus

ANSWERS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}


def read_answer(message: Message) -> bool | None:
    """Whether a reply approves; None if it says neither yes nor no."""
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get("approved"), bool):
            return bool(part.data["approved"])
        if isinstance(part.text, str):
            word = part.text.strip().lower()
            if word in ANSWERS:
                return ANSWERS[word]
    return None


def approval_required(what: str, *, skill_id: str, approval_id: str | None) -> StatusUpdate:
    """Wait for the caller's yes or no to a call of what is named."""
    text = f'Approval required for {what}. Reply "approve" or "reject".'
    message = agent_message(text, metadata={"approvalId": approval_id, "skillId": skill_id})
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=message))


def rejected(text: str) -> StatusUpdate:
    """The end of a task that was not approved. It is not FAILED: nothing was run, and trying again will not help."""
    return StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message(text)))
