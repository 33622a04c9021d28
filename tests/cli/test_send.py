"""`send` and `stream`: the message, the output, saved files, and the exit code."""

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from apcore_a2a.cli.output import save_artifacts
from apcore_a2a.protocol.card import AgentCapabilities
from apcore_a2a.protocol.model import Artifact, Part, TaskState
from tests.cli.conftest import Terminal, hosted, interruptible, scripted
from tests.cli.pseudo_terminal import at_terminal
from tests.client import scripted as peer
from tests.fakes import ScriptedAgent
from tests.interaction.serving import CARD


def sent(agent: ScriptedAgent) -> list[dict[str, object]]:
    """Return the parts of the last message that the agent received."""
    return [part.to_dict() for part in agent.calls[-1].message.parts]


def test_send_waits_for_the_task_of_an_early_answer(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url, capabilities={"streaming": False})))
        working = peer.result(peer.task("WORKING"))
        server.on("/", peer.result({"task": peer.task("SUBMITTED")}), working, peer.result(peer.task("COMPLETED")))

        ran = terminal("send", server.url, "hi", "--poll-interval", "0.01")

    assert (ran.code, ran.fields["State"]) == (0, "COMPLETED")


def test_unreadable_parts_of_an_answer_are_reported(terminal: Terminal, caplog: pytest.LogCaptureFixture) -> None:
    with scripted() as server:
        artifact = {"artifactId": "a-1", "parts": [{"text": "hello"}, {"video": 1}]}
        server.on(peer.CARD, peer.respond(peer.card(server.url, capabilities={"streaming": False})))
        server.on("/", peer.result({"task": peer.task("COMPLETED", artifacts=[artifact])}))

        ran = terminal("send", server.url, "hi")

    assert (ran.code, ran.out.startswith("Artifact: a-1\nText:\n  hello\n\nTask: ")) == (0, True)
    assert "parts of the agent's answer cannot be read and were left out: task.artifacts[0].parts[1]" in caplog.text


def test_an_update_without_a_task_id_belongs_to_the_previous_task(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url)))
        events = peer.stream({"task": peer.task("WORKING")}, peer.status("COMPLETED", taskId=""))
        server.on("/", events, peer.result(peer.task()))

        ran = terminal("send", server.url, "hi")

    assert (ran.code, ran.fields["Task"]) == (0, "t-1")
    assert server.asked("/")[-1].json["params"]["id"] == "t-1"


def test_a_message_is_sent_and_its_task_waited_for(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "hello")

    assert (ran.code, ran.err) == (0, "")
    assert ran.fields["State"] == "COMPLETED"
    assert ran.fields["Task"] and ran.fields["Context"]
    assert ran.out.startswith("Artifact: out\nText:\n  Hello,\n  world\n\nTask: ")


def test_json_is_one_send_message_response(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "hello", "-o", "json")

    assert ran.code == 0
    assert list(ran.json) == ["task"]
    assert ran.json["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert terminal("send", url, "hello", "--json").json.keys() == {"task"}


def test_streamed_json_is_one_event_per_line_and_the_last_has_the_state(terminal: Terminal, url: str) -> None:
    streamed = terminal("send", url, "hello", "-o", "json", "--stream")
    short = terminal("stream", url, "hello", "--json")

    for ran in (streamed, short):
        assert ran.code == 0
        assert [next(iter(event)) for event in ran.lines] == [
            "task",
            "statusUpdate",
            "artifactUpdate",
            "artifactUpdate",
            "statusUpdate",
        ]
        assert ran.lines[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_streamed_text_grows_in_one_block_and_ends_with_the_ids(terminal: Terminal, url: str) -> None:
    ran = terminal("stream", url, "hello")

    assert ran.out.count("Artifact: out") == 1
    assert "Text:\n  Hello,\n  world\n\n" in ran.out
    assert [line.partition(":")[0] for line in ran.out.splitlines()[-3:]] == ["Task", "Context", "State"]


def test_a_direct_reply_is_printed_as_a_message(terminal: Terminal, replying: str) -> None:
    plain = terminal("send", replying, "hi")
    as_json = terminal("send", replying, "hi", "--json")
    streamed = terminal("send", replying, "hi", "--json", "--stream")

    assert plain.fields["Role"] == "agent"
    assert "Text:\n  Hi!\n" in plain.out
    assert list(as_json.json) == ["message"]
    assert [list(line) for line in streamed.lines] == [["message"]]


def test_a_task_that_waits_for_input_prints_the_command_for_the_reply(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "ask")

    assert ran.code == 0
    assert ran.fields["State"] == "INPUT_REQUIRED"
    assert ran.fields["Next"] == f"apcore-a2a send {url} --task-id {ran.fields['Task']} 'your reply'"
    assert "What next?" in ran.out
    assert "waits for your reply" in ran.err

    replied = terminal("send", url, "--task-id", ran.fields["Task"], "hello")
    assert (replied.fields["Task"], replied.fields["State"]) == (ran.fields["Task"], "COMPLETED")


def test_the_note_on_a_waiting_task_goes_to_standard_error_with_json(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "ask", "--json")

    assert ran.json["task"]["status"]["state"] == TaskState.INPUT_REQUIRED
    assert f"Next: apcore-a2a send {url}" in ran.err


def test_a_task_that_needs_authorization_is_not_waited_for(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "login")

    assert (ran.code, ran.fields["State"]) == (0, "AUTH_REQUIRED")
    assert ran.fields["Next"].endswith("--wait")


def test_a_failed_task_exits_with_0_and_a_warning(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "fail")

    assert (ran.code, ran.fields["State"]) == (0, "FAILED")
    assert "not today" in ran.out
    assert ran.err == "Warning: the task failed (FAILED)\n"


def test_async_returns_without_waiting(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "hang", "--async", "--json")

    assert ran.code == 0
    assert ran.json["task"]["id"] and ran.json["task"]["contextId"]
    assert ran.json["task"]["status"]["state"] != TaskState.COMPLETED


def test_a_timeout_exits_with_5_and_the_task_keeps_running(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "hang", "--timeout", "300ms", "--json")

    assert ran.code == 5
    assert ran.json["error"]["code"] == "A2ACLI_ERR_TIMEOUT"
    assert "keeps running: apcore-a2a task get" in ran.err
    assert terminal("tasks", url, "--state", "working", "--json").json["totalSize"] == 1


def test_ctrl_c_stops_waiting_and_prints_how_to_find_the_task(url: str) -> None:
    with interruptible("stream", url, "hang") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("State: WORKING"):
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)

    assert process.returncode == 130
    assert f"keeps running: apcore-a2a task get {url}" in err
    assert "Traceback" not in err


def test_parts_keep_their_order_and_their_media_types(
    terminal: Terminal, url: str, agent: ScriptedAgent, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\x01")
    (tmp_path / "b.json").write_text('{"b": 2}')
    (tmp_path / "c.txt").write_text("from a file")

    ran = terminal(
        *("send", url, "first", "--data", '{"a": 1}', "--file", str(tmp_path / "a.bin"), "--media-type", "image/x"),
        *("--text", f"@{tmp_path / 'c.txt'}", "--data", str(tmp_path / "b.json"), "--text", "@@home"),
        *("--file", "https://example.com/doc.pdf"),
    )

    assert ran.code == 0
    assert sent(agent) == [
        {"text": "first"},
        {"data": {"a": 1}, "mediaType": "application/json"},
        {"raw": "AAE=", "filename": "a.bin", "mediaType": "image/x"},
        {"text": "from a file"},
        {"data": {"b": 2}, "mediaType": "application/json"},
        {"text": "@home"},
        {"url": "https://example.com/doc.pdf", "filename": "doc.pdf", "mediaType": "application/pdf"},
    ]


def test_standard_input_is_text_or_data(terminal: Terminal, url: str, agent: ScriptedAgent) -> None:
    terminal("send", url, "-", stdin=b"piped")
    assert sent(agent) == [{"text": "piped"}]
    terminal("send", url, "--data", "-", stdin=b'{"piped": true}')
    assert sent(agent) == [{"data": {"piped": True}, "mediaType": "application/json"}]


def test_skill_metadata_and_context_are_sent_with_the_message(
    terminal: Terminal, url: str, agent: ScriptedAgent
) -> None:
    first = terminal("send", url, "hello", "--json").json["task"]

    terminal("send", url, "hello", "--skill", "play", "--metadata", '{"k": 1}', "--context-id", first["contextId"])

    call = agent.calls[-1]
    assert call.message.metadata == {"skillId": "play"}
    assert call.request.metadata == {"k": 1}
    assert call.task.context_id == first["contextId"]


def test_artifacts_are_saved_only_in_the_directory_of_the_caller(terminal: Terminal, url: str, tmp_path: Path) -> None:
    out = tmp_path / "out"

    first = terminal("send", url, "files", "--save", str(out))
    again = terminal("stream", url, "files", "--save", str(out))
    text = terminal("send", url, "hello", "--save", str(out))

    assert (first.code, again.code) == (0, 0)
    assert {path.name for path in out.iterdir()} == {
        *("escape.png", "escape-1.png", "bundle.json", "bundle-1.json"),
        "out.txt",
    }
    assert (out / "escape.png").read_bytes() == b"\x89PNG"
    assert (out / "out.txt").read_text() == "Hello,\nworld"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert f"Saved: {out / 'out.txt'}" in text.out
    assert "far.txt (unknown type) at https://example.com/far.txt" in first.out


@pytest.mark.parametrize("name", [f"{'报' * 300}.txt", "a." + "b" * 300, "c" * 300])
def test_a_file_name_is_truncated_to_the_limit_of_file_systems(tmp_path: Path, name: str) -> None:
    artifact = Artifact(artifact_id="a", parts=[Part(raw=b"x", filename=name)])
    for _ in range(2):
        save_artifacts([artifact], str(tmp_path))

    found = [path.name for path in tmp_path.iterdir()]
    assert len(found) == 2
    assert all(path.endswith(".txt") for path in found) == name.endswith(".txt")


@pytest.mark.parametrize("words", [("send",), ("stream",), ("send", "--verbose")])
def test_remote_text_cannot_control_the_terminal_or_forge_a_field(
    terminal: Terminal, url: str, words: tuple[str, ...]
) -> None:
    ran = terminal(*words, url, "evil")

    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(ran.out + ran.err)
    assert ran.fields["Task"] != "t-forged"
    assert "Text:\n  redesrever\n  Task: t-forged\n" in ran.out
    assert "\\u009b2J\\u202e" in ran.out  # data is complete, with control characters escaped


def test_json_contains_all_remote_text_with_control_characters_escaped(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "evil", "--json")

    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(ran.out)
    assert ran.json["task"]["artifacts"][0]["parts"][0]["text"].startswith("\x1b]0;owned")


def test_send_and_stream_wait_for_an_agent_that_does_not_stream(terminal: Terminal, agent: ScriptedAgent) -> None:
    with hosted(agent, card=replace(CARD, capabilities=AgentCapabilities(streaming=False))) as url:
        plain = terminal("send", url, "hello")
        streamed = terminal("stream", url, "hello", "--json")

    assert plain.fields["State"] == "COMPLETED"
    assert [list(line) for line in streamed.lines] == [["task"]]
    assert "does not stream" in streamed.err


@pytest.mark.parametrize("command", ["send", "stream"])
@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "not streaming"])
def test_the_task_is_named_when_its_agent_fails_while_it_runs(
    terminal: Terminal, command: str, *, streaming: bool
) -> None:
    begun = {"task": peer.task("WORKING")}
    answer = peer.stream(begun, end=False) if streaming else peer.result(begun)
    with scripted() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url, capabilities={"streaming": streaming})))
        server.on("/", answer, peer.respond({}, 401))
        ran = terminal(command, server.url, "hi", "--json")

    assert (ran.code, ran.lines[-1]["error"]["code"]) == (4, "A2ACLI_ERR_CREDENTIALS_MISSING")
    assert f"Task t-1 may keep running: apcore-a2a task get {server.url} t-1 --wait" in ran.err


def test_artifacts_that_cannot_be_saved_leave_one_document_on_standard_output(
    terminal: Terminal, url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no directory")
    ran = terminal("send", url, "files", "--json", "--save", str(tmp_path / "file" / "out"))

    assert (ran.code, ran.json["task"]["status"]["state"]) == (1, "TASK_STATE_COMPLETED")
    assert ran.err.startswith("Error: Artifacts not saved: ")


def test_at_a_terminal_the_task_is_named_on_a_line_of_its_own(url: str) -> None:
    with at_terminal("send", url, "hang", TERM="xterm") as person:
        person.sees("working")
        person.interrupts(r"\x1b\[2KTask \S+ keeps running: apcore-a2a task get")
        assert person.ends() == 130
