"""The `Call` of a running function: progress, questions, and files."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apcore_a2a import AgentError, Call, Question, ask
from apcore_a2a.agent import Remember
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import Event, Message, Part, Role, StatusUpdate, TaskState
from apcore_a2a.protocol.questions import questions_of, to_answers
from tests.conversations import contents, make_call, talk_to, text_of


def statuses(events: list[Event]) -> list[tuple[str, object]]:
    """Return the progress texts of the events."""
    said: list[tuple[str, object]] = []
    for event in events:
        if isinstance(event, StatusUpdate) and event.status.message is not None:
            metadata = event.status.message.metadata or {}
            said.append((event.text, metadata.get(PROGRESS)))
    return said


async def test_progress_is_a_status_of_the_working_task() -> None:
    async def work(steps: int, call: Call) -> str:
        for step in range(steps):
            call.progress(step / steps, f"step {step}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        call.progress()
        await asyncio.sleep(0)
        return "done"

    async with talk_to(work) as user:
        events = await user.stream(Part(data={"steps": 2}))
    assert statuses(events) == [("step 0", 0.0), ("step 1", 0.5), ("Working", None)]


async def test_progress_is_published_from_a_thread_while_the_function_is_busy() -> None:
    told = threading.Event()

    def work(steps: int, call: Call) -> str:
        call.progress(0.25)
        assert told.wait(5)
        return "done"

    async with talk_to(work) as user:
        task = await user.task(Part(data={"steps": 2}), now=True)
        async with asyncio.timeout(5):
            async for seen in user.watch(task):
                if seen.status.text == "25%":
                    told.set()
        task = await user.look(task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "done")


async def test_unread_progress_is_coalesced_and_not_kept_in_the_history() -> None:
    async def work(steps: int, call: Call) -> str:
        for step in range(steps):
            call.progress(step / steps)
        await asyncio.sleep(0)
        return "done"

    async with talk_to(work) as user:
        events = await user.stream(Part(data={"steps": 1000}))
        task = await user.task(Part(data={"steps": 1000}))
    assert statuses(events) == [("100%", 0.999)]
    assert [message.role for message in task.history] == [Role.USER]


async def test_progress_and_pieces_keep_their_order() -> None:
    async def work(call: Call) -> AsyncIterator[str]:
        call.progress(0.1, "first")
        yield "a"
        call.progress(0.2, "second")
        yield "b"

    async with talk_to(work) as user:
        events = await user.stream("go")
    shown = [event.text for event in events if not isinstance(event, Message) and event.text]
    assert shown == ["first", "a", "second", "b"]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
async def test_progress_outside_zero_to_one_is_rejected(share: float) -> None:
    async def work(call: Call) -> str:
        with pytest.raises(ValueError, match="progress is a fraction from 0 to 1"):
            call.progress(share)
        return "done"

    async with talk_to(work) as user:
        assert (await user.task("go")).text == "done"


def test_only_a_running_function_has_controls() -> None:
    with pytest.raises(RuntimeError, match="work only while a function agent runs"):
        make_call().progress(0.5)
    with pytest.raises(RuntimeError, match="work only while a function agent runs"):
        make_call().ask("?")
    with pytest.raises(RuntimeError, match="work only while a function agent runs"):
        make_call().ask_all(SEATS)


async def test_the_call_has_the_text_and_the_files_of_the_message() -> None:
    async def look(call: Call) -> str:
        return f"{call.text} {[file.filename for file in call.files]}"

    parts = (Part(text="see"), Part(raw=b"1", filename="a.txt"), Part(url="https://example.com/b", filename="b"))
    async with talk_to(look) as user:
        task = await user.task(Message(message_id="m", role=Role.USER, parts=parts))
    assert task.text == "see ['a.txt', 'b']"


async def test_a_cancelled_function_is_stopped_with_its_run() -> None:
    began = asyncio.Event()
    ended = asyncio.Event()

    async def work(call: Call) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with talk_to(work) as user:
        task = await user.task("go", now=True)
        await asyncio.wait_for(began.wait(), 5)
        task = await user.cancel(task)
        await asyncio.wait_for(ended.wait(), 5)
    assert task.status.state is TaskState.CANCELED


@pytest.mark.parametrize(
    "error",
    [
        AgentError("No"),
        ValueError("secret"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
    ],
)
async def test_a_failure_ends_the_task_as_it_does_without_a_call(error: BaseException) -> None:
    async def fail(call: Call) -> str:
        raise error

    async with talk_to(fail) as user:
        task = await user.task("go")
    assert task.status.state is TaskState.FAILED
    assert text_of(task) == ("No" if isinstance(error, AgentError) else "Internal error")


# ---- asking ----------------------------------------------------------------------------------------------------------


async def book(seats: int, call: Call) -> dict[str, Any]:
    city = call.ask("Which city?").text
    day = call.ask({"question": "Which day?", "city": city}).text
    return {"seats": seats, "city": city, "day": day}


def book_on_a_thread(seats: int, call: Call) -> dict[str, Any]:
    city = call.ask("Which city?").text
    day = call.ask({"question": "Which day?", "city": city}).text
    return {"seats": seats, "city": city, "day": day}


@pytest.mark.parametrize("function", [book, book_on_a_thread])
async def test_a_function_asks_and_continues_with_the_answers(function: Any) -> None:
    async with talk_to(function) as user:
        task = await user.task(Part(data={"seats": 2}))
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Which city?")
        task = await user.task("Rome", task=task)
        assert task.status.state is TaskState.INPUT_REQUIRED
        assert task.status.message is not None
        assert task.status.message.data == {"question": "Which day?", "city": "Rome"}
        task = await user.task("Monday", task=task)
    assert task.status.state is TaskState.COMPLETED
    assert task.data == {"seats": 2, "city": "Rome", "day": "Monday"}


async def test_a_function_of_text_is_called_again_with_its_first_text() -> None:
    async def greet(text: str, call: Call) -> str:
        name = call.ask("Your name?").text
        return f"{text}, {name}"

    async with talk_to(greet) as user:
        task = await user.task("Good morning")
        task = await user.task("Ada", task=task)
    assert task.text == "Good morning, Ada"


async def test_artifacts_made_before_the_question_are_replaced_and_not_duplicated() -> None:
    async def write(text: str, call: Call) -> AsyncIterator[str | dict[str, str]]:
        yield "Dear "
        yield {"kind": "letter"}
        name = call.ask("To which person?").text
        yield name

    async with talk_to(write) as user:
        task = await user.task("write")
        assert contents(task) == [["Dear "], [{"kind": "letter"}]]
        task = await user.task("Ada", task=task)
    assert contents(task) == [["Dear Ada"], [{"kind": "letter"}]]


async def test_except_exception_does_not_catch_a_question() -> None:
    async def careful(text: str, call: Call) -> str:
        try:
            return call.ask("Sure?").text
        except Exception:
            return "swallowed"

    async with talk_to(careful) as user:
        task = await user.task("go")
        assert task.status.state is TaskState.INPUT_REQUIRED
        task = await user.task("yes", task=task)
    assert task.text == "yes"


async def test_a_typed_function_can_return_its_question() -> None:
    async def order(item: str, count: int, call: Call) -> Any:
        if not call.resumed:
            return ask("Really?")
        return f"{count} {item}: {call.text}"

    async with talk_to(order) as user:
        task = await user.task(Part(data={"item": "tea", "count": 2}))
        task = await user.task("yes", task=task)
    assert task.text == "2 tea: yes"


async def test_a_memo_of_the_function_itself_is_not_a_paused_run() -> None:
    async def count(text: str, call: Call) -> AsyncIterator[Any]:
        number = (call.memo or {"number": 0})["number"] + 1
        yield Remember({"number": number})
        yield ask(f"{number}: {text}")

    async with talk_to(count) as user:
        task = await user.task("a")
        task = await user.task("b", task=task)
    assert text_of(task) == "2: b"


async def test_a_question_can_be_asked_in_a_task_group() -> None:
    async def greet(call: Call) -> str:
        async def name() -> str:
            return call.ask("Your name?").text

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(name())
        return f"Hello, {asked.result()}"

    async with talk_to(greet) as user:
        task = await user.task("?")
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Your name?")
        task = await user.task("Ada", task=task)
    assert contents(task) == [["Hello, Ada"]]


async def test_a_question_does_not_hide_an_error_in_the_same_task_group() -> None:
    async def greet(call: Call) -> str:
        async def fail() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("cannot tidy up")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(0)
            call.ask("Your name?")
        return ""

    async with talk_to(greet) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "Internal error")


# ---- an answer belongs to its question -------------------------------------------------------------------------------


async def test_an_answer_is_not_used_for_another_question() -> None:
    payees = iter(["ALICE", "MALLORY", "MALLORY"])
    paid: list[str] = []

    async def pay(amount: int, call: Call) -> str:
        payee = next(payees)
        if call.ask(f"Send {amount} to {payee}?").text == "yes":
            paid.append(payee)
        return f"{paid}"

    async with talk_to(pay) as user:
        task = await user.task(Part(data={"amount": 5}))
        assert text_of(task) == "Send 5 to ALICE?"
        task = await user.task("yes", task=task)
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Send 5 to MALLORY?")
        assert paid == []
        task = await user.task("no", task=task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "[]")


async def test_answers_after_a_changed_question_are_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    texts = {"first": "Which city?"}

    async def book(seats: int, call: Call) -> str:
        answers = [call.ask(texts["first"]).text, call.ask("Sure?").text, call.ask("Which day?").text]
        return " ".join(answers)

    async with talk_to(book) as user:
        task = await user.task(Part(data={"seats": 2}))
        task = await user.task("Rome", task=task)
        task = await user.task("yes", task=task)
        assert text_of(task) == "Which day?"
        texts["first"] = "Which country?"  # as after a deployment
        task = await user.task("Monday", task=task)
        assert text_of(task) == "Which country?"
        for answer, question in [("Italy", "Sure?"), ("of course", "Which day?")]:
            task = await user.task(answer, task=task)
            assert text_of(task) == question
        task = await user.task("Tuesday", task=task)
    assert task.text == "Italy of course Tuesday"
    warnings = [record for record in caplog.records if "question changed" in record.getMessage()]
    assert [vars(record)["dropped_answers"] for record in warnings] == [3]


async def test_only_the_content_of_a_question_counts() -> None:
    async def greet(text: str, call: Call) -> str:
        parts = (Part(data={"b": 1, "a": 2}), Part(raw=b"picture"))
        # Each run makes a message with another id, and the order of the keys of an object has no meaning.
        if call.resumed:
            parts = (Part(data={"a": 2, "b": 1}), Part(raw=b"picture"))
        return call.ask(Message(message_id=str(id(parts)), role=Role.AGENT, parts=parts)).text

    async with talk_to(greet) as user:
        task = await user.task("hello")
        task = await user.task("Ada", task=task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "Ada")


async def test_another_file_or_other_metadata_make_another_question() -> None:
    questions = iter(
        [
            Message(message_id="1", role=Role.AGENT, parts=(Part(raw=b"contract"),)),
            Message(message_id="2", role=Role.AGENT, parts=(Part(raw=b"another"),)),
            Message(message_id="3", role=Role.AGENT, parts=(Part(raw=b"another"),), metadata={"amount": 5}),
        ]
    )

    async def sign(text: str, call: Call) -> str:
        return call.ask(next(questions)).text

    async with talk_to(sign) as user:
        task = await user.task("hello")
        task = await user.task("yes", task=task)
        assert task.status.state is TaskState.INPUT_REQUIRED
        task = await user.task("yes", task=task)
    assert task.status.state is TaskState.INPUT_REQUIRED


# ---- questions with structure ---------------------------------------------------------------------------------------

SEATS = Question(id="seats", text="How many?", schema={"type": "integer"})
PAY = Question(id="pay", text="Pay 5?", kind="approval", tool="pay", arguments={"amount": 5})


async def test_several_questions_are_answered_at_once() -> None:
    async def book(city: str, call: Call) -> dict[str, Any]:
        return {"city": city, **call.ask_all(SEATS, PAY)}

    async with talk_to(book) as user:
        task = await user.task("Rome")
        assert questions_of(task.status.message) == [SEATS, PAY]
        task = await user.task(to_answers({"seats": 2, "pay": True}), task=task)
    assert (task.status.state, task.data) == (TaskState.COMPLETED, {"city": "Rome", "seats": 2, "pay": True})


async def test_an_answer_that_does_not_fit_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    async def book(city: str, call: Call) -> str:
        seats = call.ask_all(SEATS)["seats"]
        name = call.ask("Your name?").text
        return f"{seats} {name}"

    async with talk_to(book) as user:
        task = await user.task("Rome")
        task = await user.task("two", task=task)
        assert task.status.text == "The answer does not fit. expected an integer.\nHow many?"
        assert questions_of(task.status.message) == [SEATS]
        task = await user.task("2", task=task)
        assert text_of(task) == "Your name?"
        task = await user.task("Ada", task=task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "2 Ada")
    assert caplog.records == []  # no answer was dropped


async def test_an_answer_to_other_questions_is_not_used() -> None:
    amount = [5]

    async def buy(city: str, call: Call) -> str:
        asked = Question(id="pay", text="Pay?", kind="approval", tool="pay", arguments={"amount": amount[0]})
        return str(call.ask_all(asked))

    async with talk_to(buy) as user:
        task = await user.task("Rome")
        amount[0] = 5000
        task = await user.task("approve", task=task)
        assert task.status.state is TaskState.INPUT_REQUIRED
        task = await user.task("approve", task=task)
    assert task.text == "{'pay': True}"


async def test_a_question_is_asked_with_its_schema() -> None:
    async def book(text: str, call: Call):  # type: ignore[no-untyped-def]  # a function for one test
        return text if call.resumed else ask(SEATS)

    async with talk_to(book) as user:
        task = await user.task("Rome")
        assert questions_of(task.status.message) == [SEATS]
        task = await user.task("2", task=task)
    assert task.text == "2"
