"""`task`, `card` and `push`, in their long and short forms."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import DeliveryLimits
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.cli.conftest import Terminal, elsewhere, hosted, scripted
from tests.client.scripted import CARD, card, respond, status, stream
from tests.fakes import COMPLETED, ScriptedAgent


def begin(terminal: Terminal, url: str, text: str) -> str:
    return str(terminal("send", url, text, "--async", "--json").json["task"]["id"])


def test_every_form_of_the_card_command_shows_the_card(terminal: Terminal, url: str) -> None:
    shown = {
        terminal("card", url).out,
        terminal("card", "get", url).out,
        terminal("card", "get", "-a", url).out,
        terminal("card", "--url", url).out,
        terminal("card", url.removeprefix("http://")).out,
        terminal("card", f"{url}/.well-known/agent-card.json").out,
    }

    assert len(shown) == 1
    (text,) = shown
    assert text.startswith("Agent: scripted\nDescription: Does what a test wrote.\nVersion: 1.2.3\n")
    assert "Capabilities: streaming\n" in text
    assert "Skill: play: Plays a script.\n" in text


def test_a_card_file_works_like_a_card_on_the_network(terminal: Terminal, url: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    shown = terminal("card", url, "--json").json
    shown["supportedInterfaces"].append({"url": "agent:50051", "protocolBinding": "GRPC", "protocolVersion": "1.0"})
    path.write_text(json.dumps(shown))

    assert terminal("card", str(path), "--json").json["name"] == "scripted"
    assert terminal("send", f"file://{path}", "hello").fields["State"] == "COMPLETED"


def test_the_environment_names_the_agent_and_an_argument_overrides_it(
    terminal: Terminal, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2ACLI_AGENT_CARD", url)
    assert terminal("send", "hello").fields["State"] == "COMPLETED"

    monkeypatch.setenv("A2ACLI_AGENT_CARD", "http://127.0.0.1:9")
    assert terminal("send", url, "hello").fields["State"] == "COMPLETED"


def test_skills_are_listed(terminal: Terminal, url: str) -> None:
    assert terminal("skills", url).out.startswith("play(text) → text\n  Plays a script.\n  Tags: test\n")
    assert [skill["id"] for skill in terminal("skills", url, "--json").json["skills"]] == ["play"]


def test_every_form_of_the_task_command_shows_the_task(terminal: Terminal, url: str) -> None:
    task_id = terminal("send", url, "hello").fields["Task"]

    shown = {
        terminal("task", url, task_id).out,
        terminal("task", "get", url, task_id).out,
        terminal("task", "get", "--agent-card", url, task_id).out,
    }

    assert len(shown) == 1
    assert terminal("task", url, task_id, "--json").json["artifacts"][0]["parts"][0]["text"] == "Hello,\nworld"


def test_the_history_is_shown_on_request(terminal: Terminal, url: str) -> None:
    task_id = terminal("send", url, "hello").fields["Task"]

    assert "Role: user" in terminal("task", url, task_id, "--verbose").out
    assert "history" not in terminal("task", url, task_id, "--history", "0", "--json").json


def test_waiting_ends_when_the_task_waits_for_input(terminal: Terminal, url: str) -> None:
    task_id = begin(terminal, url, "ask")

    ran = terminal("task", "get", url, task_id, "--wait", "--timeout", "5s")

    assert (ran.code, ran.fields["State"]) == (0, "INPUT_REQUIRED")


def test_tasks_are_listed_filtered_and_paged(terminal: Terminal, url: str) -> None:
    context = terminal("send", url, "hello").fields["Context"]
    terminal("send", url, "ask")
    terminal("send", url, "hello", "--context-id", context)

    assert terminal("tasks", url, "--json").json["totalSize"] == 3
    assert terminal("task", "list", url, "--state", "input-required", "--json").json["totalSize"] == 1
    assert terminal("tasks", url, "--context-id", context, "--json").json["totalSize"] == 2
    page = terminal("tasks", url, "--limit", "2")
    assert page.fields["Tasks"] == "2 of 3"
    rest = terminal("tasks", url, "--limit", "2", "--page-token", page.fields["Page-Token"])
    assert rest.fields["Tasks"] == "1 of 3"
    assert len(terminal("tasks", url, "--limit", "1", "--all", "--json").json["tasks"]) == 3


def test_a_task_is_cancelled_once(terminal: Terminal, url: str) -> None:
    task_id = begin(terminal, url, "hang")

    first = terminal("cancel", url, task_id)
    second = terminal("task", "cancel", url, task_id, "--json")

    assert (first.code, first.fields["State"]) == (0, "CANCELED")
    assert (second.code, second.json["error"]["code"]) == (1, "TaskNotCancelableError")


@pytest.mark.parametrize("flags", [(), ("--json", "--stream"), ("--json",)], ids=["text", "jsonl", "json"])
def test_subscribe_prints_the_events_until_the_task_ends(terminal: Terminal, url: str, flags: tuple[str, ...]) -> None:
    task_id = begin(terminal, url, "hang")
    command = [sys.executable, "-m", "apcore_a2a", "subscribe", url, task_id, "--debug", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "a stream" not in process.stderr.readline():
            pass
        assert terminal("cancel", url, task_id).code == 0
        out, _ = process.communicate(timeout=5)

    assert process.returncode == 0
    if flags:
        document = out
        if "--stream" in flags:
            document = out.splitlines()[-1]
        last = json.loads(document)
        assert last.get("statusUpdate", last)["status"]["state"] == "TASK_STATE_CANCELED"
    else:
        assert [line.partition(": ")[2] for line in out.splitlines() if line.startswith("State")][-1] == "CANCELED"
        assert out.count(f"Task: {task_id}\n") == 2  # the first and the last line


def test_artifacts_of_a_finished_task_are_downloaded(terminal: Terminal, url: str, tmp_path: Path) -> None:
    task_id = terminal("send", url, "files").fields["Task"]

    ran = terminal("task", "download", url, task_id, "--save", str(tmp_path / "d"))

    assert ran.code == 0
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"escape.png", "bundle.json"}


@pytest.mark.parametrize("push", [("push",), ("task", "push-config")], ids=" ".join)
def test_webhooks_are_managed(terminal: Terminal, peer: Callable[[str], str], push: tuple[str, ...]) -> None:
    url = peer("sdk1")
    task_id = terminal("send", url, "ask").fields["Task"]

    made = terminal(*push, "create", url, task_id, "https://example.com/hook", "--id", "mine", "--push-token", "s3cret")
    shown = terminal(*push, "get", url, task_id, "mine", "--json")
    listed = terminal(*push, "list", url, task_id)
    gone = terminal(*push, "delete", url, task_id, "mine")

    assert made.code == 0
    assert (made.fields["Config"], made.fields["URL"]) == ("mine", "https://example.com/hook")
    assert "s3cret" not in made.out
    assert shown.json["url"] == "https://example.com/hook"
    assert listed.fields["Configs"] == "1"
    assert (gone.code, gone.fields["Deleted"]) == (0, "mine")
    assert terminal(*push, "list", url, task_id).fields["Configs"] == "0"


@pytest.mark.parametrize("transport", ["jsonrpc", "rest"])
def test_agents_of_other_implementations_are_called_over_each_binding(
    terminal: Terminal, peer: Callable[[str], str], transport: str
) -> None:
    ran = terminal("send", peer("sdk1"), "echo Grüße", "--transport", transport, "--debug")

    assert (ran.code, ran.fields["State"]) == (0, "COMPLETED")
    assert "Grüße" in ran.out
    assert ("/rest/message:stream" in ran.err) is (transport == "rest")


def test_a_0_3_agent_is_called_with_a_note_about_its_version(terminal: Terminal, peer: Callable[[str], str]) -> None:
    url = peer("sdk03")

    noted = terminal("send", url, "echo old")
    asked = terminal("send", url, "echo old", "--a2a-version", "0.3")

    assert noted.fields["State"] == asked.fields["State"] == "COMPLETED"
    assert "only supports A2A 0.3" in noted.err
    assert asked.err == ""


def test_the_extended_card_is_shown_on_request(terminal: Terminal, peer: Callable[[str], str]) -> None:
    ran = terminal("card", peer("sdk1"), "--extended", "--token", "any")

    assert ran.fields["Agent"] == "sdk1, extended"


def test_dead_letters_are_listed_and_redelivered(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DEFAULT_LIMITS", DeliveryLimits(retry_delays=()))
    agent = ScriptedAgent({"hello": (COMPLETED,)})
    with elsewhere(WebhookReceiver((500, 500, 200))) as hook:
        with hosted(agent, push_notifications=True, allow_insecure_webhooks=True) as url:
            task_id = begin(terminal, url, "hello")
            terminal("push", "create", url, task_id, hook.url, "--id", "w")
            found = terminal("push", "dead", url, "--json").json["webhooks"]
            while not found:  # deliveries are still being retried
                found = terminal("push", "dead", url, "--json").json["webhooks"]
            assert (found[0]["taskId"], found[0]["id"], found[0]["reason"]) == (task_id, "w", "HTTP 500")
            shown = terminal("push", "dead", url, task_id)
            assert (shown.fields["State"], shown.fields["Webhooks"]) == ("failed", "1")
            again = terminal("push", "redeliver", url, task_id, "w", "--json").json["webhooks"]
            assert [webhook["state"] for webhook in again] == ["active"]
            assert terminal("push", "redeliver", url, "unknown").code == 1
            assert terminal("push", "redeliver", url, task_id, "unknown").code == 1


def test_a_stream_that_begins_with_a_status_shows_task_and_context(terminal: Terminal) -> None:
    with scripted() as server:
        server.on(CARD, respond(card(server.url))).on("/", stream(status("WORKING"), status("COMPLETED")))
        ran = terminal("subscribe", server.url, "t-1")

    assert (ran.fields["Task"], ran.fields["Context"]) == ("t-1", "c-1")


def test_an_agent_without_webhook_status_is_reported(terminal: Terminal, url: str) -> None:
    ran = terminal("push", "dead", url)
    assert ran.code != 0
    assert "has no webhook status" in ran.err
