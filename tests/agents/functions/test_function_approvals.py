"""Functions that require approval: the caller is asked, and exactly the approved call runs."""

import pytest

from apcore_a2a import Call, async_serve, skill
from apcore_a2a.protocol.model import Message, Part, Role, TaskState
from tests.conversations import talk_to, text_of

GUARDED = {"requires_approval": True, "destructive": True}


def guarded(ran: list[str]):  # type: ignore[no-untyped-def]  # a function for one test
    @skill(annotations=GUARDED)
    async def delete(name: str, force: bool = False) -> str:
        """Deletes."""
        ran.append(name)
        return f"deleted {name}"

    return delete


async def test_the_caller_is_asked_before_the_function_runs() -> None:
    ran: list[str] = []
    async with talk_to(guarded(ran)) as user:
        task = await user.task(Part(data={"name": "a"}))
        assert (task.status.state, ran) == (TaskState.INPUT_REQUIRED, [])
        assert task.status.text == 'Approval required for skill delete. Reply "approve" or "reject".'
        assert task.status.message is not None
        assert task.status.message.metadata is not None
        assert task.status.message.metadata["skillId"] == "delete"
        assert task.status.message.metadata["approvalId"]
        task = await user.task(Part(data={"approved": True, "name": "b"}), task=task)
    assert (task.status.state, task.text, ran) == (TaskState.COMPLETED, "deleted a", ["a"])


async def test_a_rejection_ends_the_task_and_any_other_reply_asks_again() -> None:
    ran: list[str] = []
    async with talk_to(guarded(ran)) as user:
        task = await user.task(Part(data={"name": "a"}))
        task = await user.task("what would it do?", task=task)
        assert task.status.state is TaskState.INPUT_REQUIRED
        task = await user.task("no", task=task)
    assert (task.status.state, ran) == (TaskState.REJECTED, [])


async def test_a_first_message_cannot_approve_itself() -> None:
    ran: list[str] = []
    message = Message(
        message_id="m",
        role=Role.USER,
        parts=(Part(data={"name": "a"}), Part(data={"approved": True}), Part(text="approve")),
    )
    async with talk_to(guarded(ran)) as user:
        task = await user.task(message)
    assert (task.status.state, ran) == (TaskState.INPUT_REQUIRED, [])


async def test_a_function_can_ask_after_its_approval() -> None:
    @skill(annotations=GUARDED)
    async def delete(name: str, call: Call) -> str:
        return f"{name}: {call.ask('Why?').text}"

    async with talk_to(delete) as user:
        task = await user.task("a")
        task = await user.task("hm", task=task)
        task = await user.task("approve", task=task)
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Why?")
        task = await user.task("approve", task=task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "a: approve")


class Door:
    """An authenticator that accepts every request."""

    async def authenticate(self, headers):  # type: ignore[no-untyped-def]  # a test's own
        return None


@pytest.mark.parametrize(("auth", "shown"), [(None, ["plain", "delete"]), (Door(), ["plain"])])
async def test_a_skill_that_requires_approval_is_on_the_extended_card_if_there_is_one(
    auth: object, shown: object
) -> None:
    async def plain(a: int) -> int:
        return a

    app = await async_serve([plain, guarded([])], auth=auth)  # type: ignore[arg-type]  # None, or with its method
    assert [each.id for each in app.cards.card.skills] == shown
