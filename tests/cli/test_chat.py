"""`chat`: a conversation, at a terminal and through a pipe."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace

from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.cli.answers import AnswerPrinter
from apcore_a2a.cli.chat import ChatCommand, parse_line
from apcore_a2a.protocol.card import AgentCapabilities
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part
from tests.cli.conftest import Terminal, hosted, scripted
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D, UP, at_terminal
from tests.client.scripted import CARD as CARD_PATH
from tests.client.scripted import Request, artifact, card, error, respond, result, status, stream, task
from tests.fakes import PATIENCE, ScriptedAgent
from tests.interaction.serving import CARD

# ---- parsing of lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("  ", []),
        ("hello", [Part(text="hello")]),
        ("/skill text.stats ", ChatCommand("skill", "text.stats")),
        ("//etc/hosts", [Part(text="/etc/hosts")]),
        ('{"a": 12345678901234567890}', [Part(data={"a": 12345678901234567890}, media_type="application/json")]),
        ("{curly", [Part(text="{curly")]),
        ("me@home is @@you", [Part(text="me@home is @you")]),
    ],
)
def test_a_line_is_a_command_or_a_message(line: str, meant: object) -> None:
    assert parse_line(line) == meant


def test_files_named_in_a_line_are_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("A")
    Path("b c.txt").write_text("B")
    meant = parse_line('compare @a.txt with @"b c.txt"')

    assert isinstance(meant, list)
    assert [(part.text or part.filename, part.raw) for part in meant[1:]] == [("a.txt", b"A"), ("b c.txt", b"B")]
    assert str(meant[0].text).split() == ["compare", "with"]
    with pytest.raises(click.UsageError, match="cannot read nofile: No such file"):
        parse_line("look at @nofile")


def test_text_is_printed_once_for_every_way_of_streaming_it(capsys: pytest.CaptureFixture[str]) -> None:
    def piece(text: str, *, append: bool = False, name: str = "a") -> ArtifactUpdate:
        return ArtifactUpdate(artifact=Artifact(artifact_id=name, parts=[Part(text=text)]), append=append)

    def data(**value: Any) -> ArtifactUpdate:
        return ArtifactUpdate(artifact=Artifact(artifact_id="d", parts=[Part(data=value)]))

    printer = AnswerPrinter()
    for event in (
        piece("One"),
        piece(", two", append=True),
        piece("One, two, three"),
        piece("Other"),
        piece("B", name="b"),
    ):
        printer.print(event)
    for event in (data(story="It was"), data(story="It was once")):
        printer.print(event)
    printer.end()
    assert capsys.readouterr().out == "One, two, three\nOther\nB\nIt was once\n"


# ---- through a pipe -------------------------------------------------------------------------------------------------


def test_chat_through_a_pipe_prints_only_the_answers(terminal: Terminal, url: str, agent: ScriptedAgent) -> None:
    ran = terminal("chat", url, stdin=b"hello\n\nhello\n")

    assert (ran.code, ran.out) == (0, "Hello,\nworld\nHello,\nworld\n")
    assert len({call.task.context_id for call in agent.calls}) == 1
    assert f"Resume: apcore-a2a chat {url} --context {agent.calls[0].task.context_id}" in ran.err


def test_the_next_line_answers_the_task_that_waits_for_input(
    terminal: Terminal, url: str, agent: ScriptedAgent
) -> None:
    ran = terminal("chat", url, stdin=b"ask\nhello\n")

    assert ran.out.startswith("What next?\n")
    assert len({call.task.id for call in agent.calls}) == 1


def test_chat_works_with_agents_that_do_not_stream_or_reply_with_messages(terminal: Terminal, replying: str) -> None:
    assert terminal("chat", replying, stdin=b"hello\n").out == "Hi!\n"
    card = replace(CARD, capabilities=AgentCapabilities(streaming=False))
    with hosted(ScriptedAgent({"ask": ()}), card=card) as url:
        ran = terminal("chat", url, stdin=b"hello\n")
    assert (ran.code, ran.out) == (0, "")
    assert "Completed without output" in ran.err


def test_chat_sanitizes_control_characters_of_the_agent(terminal: Terminal, url: str) -> None:
    ran = terminal("chat", url, stdin=b"evil\n")

    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ran.out)


def test_chat_reports_how_a_task_ended_and_continues(terminal: Terminal, url: str) -> None:
    ran = terminal(
        "chat", url, stdin=b"fail\n/nonsense\n/help\n/tasks\n/cancel\n/new\n/skill x\n/skills\nhello\n/exit\nhello\n"
    )

    assert "The task failed: not today\n" in ran.err
    assert "No such command: /nonsense" in ran.err
    assert "/tasks" in ran.err and "  FAILED  " in ran.err
    assert "The card has no skill x: the skills are: play" in ran.err
    assert ran.out == "Hello,\nworld\n"


def test_chat_reports_an_unreachable_agent_like_other_commands(terminal: Terminal) -> None:
    ran = terminal("chat", "http://127.0.0.1:1", stdin=b"hello\n")

    assert ran.code == 3
    assert ran.err.startswith("Error: ")


def test_chat_reports_a_rejected_message_and_exits_with_1(terminal: Terminal, paying: str) -> None:
    ran = terminal("chat", paying, "--skill", "pya", stdin=b"hello\n")

    assert ran.code == 1
    assert "Skill not found: pya" in ran.err
    assert "Hint: Choose a skill with /skill: did you mean pay?" in ran.err


def test_chat_asks_for_an_approval_and_shows_the_inputs(terminal: Terminal, paying: str) -> None:
    ran = terminal("chat", paying, stdin=b'{"a": 1, "b": 2}\nperhaps\ny\n{"a": 1, "b": 3}\nn\n')

    assert 'It would run: pay {"a":1,"b":2}\nApprove this call? [y/n]' in ran.err
    assert "'perhaps' is not y (approve) or n (reject)" in ran.err
    assert ran.out == '{\n  "sum": 3\n}\n'
    assert "The agent rejected the task" in ran.err


def test_artifacts_are_saved(terminal: Terminal, url: str, tmp_path: Path) -> None:
    ran = terminal("chat", url, "--save", str(tmp_path / "out"), stdin=b"files\n")

    assert "Saved: " in ran.err
    assert (tmp_path / "out" / "escape.png").read_bytes() == b"\x89PNG"


def test_a_conversation_is_resumed_with_the_task_that_waits(terminal: Terminal, url: str, agent: ScriptedAgent) -> None:
    first = terminal("chat", url, stdin=b"hello\nask\n")
    context = first.err.rpartition("--context ")[2].strip()
    second = terminal("chat", url, "--context", context, stdin=b"hello\n")

    assert "> hello\nHello,\nworld\n> ask\nWhat next?\n" in second.err
    assert second.out == "Hello,\nworld\n"
    assert agent.calls[-1].task.id == agent.calls[1].task.id
    unknown = terminal("chat", url, "--context", "unknown", stdin=b"")
    assert "The agent has no tasks of this conversation" in unknown.err


def test_a_conversation_is_resumed_without_support_for_listing_tasks(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD_PATH, respond(card(server.url)))
        server.on(
            "/", error(-32601), stream({"task": task("WORKING")}, artifact("Hi", append=False), status("COMPLETED"))
        )
        ran = terminal("chat", server.url, "--context", "c-1", stdin=b"hello\n")
        sent = server.asked("/")[-1].json["params"]["message"]

    assert (ran.code, ran.out) == (0, "Hi\n")
    assert "cannot list earlier messages" in ran.err
    assert sent["contextId"] == "c-1"


def test_an_incomplete_line_is_ended_before_the_error(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD_PATH, respond(card(server.url)))
        server.on("/", stream({"task": task("WORKING")}, artifact("Once there was"), {"nonsense": 1}), error(-32001))
        ran = terminal("chat", server.url, stdin=b"hello\n")

    assert (ran.code, ran.out) == (1, "Once there was\n")


# ---- at a terminal --------------------------------------------------------------------------------------------------


def test_ctrl_c_cancels_the_task_and_a_second_one_exits(url: str) -> None:
    with at_terminal("chat", url) as person:
        person.sees("> ")
        person.type("think\n")
        person.sees("… thinking")
        person.interrupts("The task is canceled")
        person.sees("> ")
        person.type("hello\n")
        person.sees("Hello,\nworld\n")
        person.sees("> ")
        person.interrupts("Press Ctrl-C again")
        person.sees("> ")
        person.interrupts("Resume: apcore-a2a chat")
        assert person.ends() == 0


def test_ctrl_c_cancels_the_task_of_an_agent_that_does_not_stream_and_answers_early() -> None:
    looked = threading.Event()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        method = request.json["method"]
        if method == "SendMessage":
            await result({"task": task("WORKING")})(request, writer)
        elif method == "CancelTask":
            await result(task("CANCELED"))(request, writer)
        else:
            await result(task("WORKING"))(request, writer)
            looked.set()

    with scripted() as server:
        server.on(CARD_PATH, respond(card(server.url, capabilities={"streaming": False}))).on("/", answer)
        with at_terminal("chat", server.url) as person:
            person.sees("> ")
            person.type("hi\n")
            assert looked.wait(PATIENCE)
            person.type(CTRL_C)
            person.sees("The task is canceled")


def test_the_arrow_keys_recall_lines_of_earlier_conversations(url: str, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path), "TERM": "xterm"}
    with at_terminal("chat", url, **cache) as person:
        person.sees("> ")
        person.type("hello\n")
        person.sees("world\n")
        person.sees("> ")
        person.type(CTRL_D)
        assert person.ends() == 0
    with at_terminal("chat", url, **cache) as person:
        person.sees("> ")
        person.type(f"{UP}\n")
        person.sees("world\n")
        person.sees("> ")
        person.type(CTRL_D)
        assert person.ends() == 0
    assert (tmp_path / "apcore-a2a" / "chat_history").stat().st_mode & 0o077 == 0


def test_data_is_shown_while_it_changes_and_printed_when_complete() -> None:
    async def count(text: str) -> AsyncIterator[ArtifactUpdate]:
        for step in (1, 2, 3):
            yield ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(data={"step": step})]))

    with hosted(as_agent(count)) as url, at_terminal("chat", url) as person:
        person.sees("> ")
        person.type("go\n")
        person.sees('… {"step":1}')
        person.sees('"step": 3')
        person.sees("> ")
        assert '"step": 3' not in person.screen  # only once
        person.type(CTRL_D)
        assert person.ends() == 0


def test_an_approval_at_a_terminal(paying: str) -> None:
    with at_terminal("chat", paying) as person:
        person.sees("> ")
        person.type('{"a": 1, "b": 2}\n')
        person.sees(r'It would run: pay \{"a":1,"b":2\}\s+Approve this call\? \[y/n\] ')
        person.type("y\n")
        person.sees('"sum": 3')
        person.sees("> ")
        person.type(CTRL_D)
        assert person.ends() == 0
