"""What `send`, `stream`, `task` and `chat` print of an answer: at a terminal, with `-o raw`, and of a failure."""

import json
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.cli import main
from apcore_a2a.cli.rendering import age, progress_text, seconds_text
from apcore_a2a.protocol.model import Message, Part, Role
from tests.cli.conftest import EVIL, Terminal, elsewhere, scripted
from tests.cli.functions import FUNCTIONS
from tests.cli.pseudo_terminal import at_terminal
from tests.client import scripted as peer
from tests.interaction.serving import serving

# ---- at a terminal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["send", "stream"])
def test_a_person_sees_the_answer_and_then_one_line_with_state_time_and_ids(command: str, functions: str) -> None:
    with at_terminal(command, functions, "a ship", "--skill", "tell") as person:
        code = person.ends()

    assert code == 0
    answer, rest = person.screen.splitlines()[-2:]
    assert answer == "Once there was a ship"
    assert rest.startswith("COMPLETED in ") and " s · task " in rest and " · context " in rest
    assert "Artifact" not in person.screen


def test_the_line_below_the_answer_is_dim_and_no_color_turns_that_off(functions: str) -> None:
    arguments = ("send", functions, "--skill", "add", "a=2", "b=3")
    with at_terminal(*arguments, TERM="xterm") as person:
        person.sees("5\n\x1b\\[2mCOMPLETED in")
    with at_terminal(*arguments, TERM="xterm", NO_COLOR="1") as person:
        person.sees("5\nCOMPLETED in")


def test_an_output_format_that_is_given_also_holds_at_a_terminal(functions: str) -> None:
    with at_terminal("send", functions, "a ship", "-o", "text") as person:
        person.sees("Text:\n  Once there was a ship\n\nTask: ")
    with at_terminal("send", functions, "a ship", A2ACLI_OUTPUT="text") as person:
        person.sees("Text:\n  Once there was a ship\n\nTask: ")


def test_a_person_sees_tasks_on_one_line_each_with_what_was_said(terminal: Terminal, functions: str) -> None:
    terminal("send", functions, "the harbour at night", "--skill", "tell")
    terminal("send", functions, "--skill", "add", "a=2", "b=3")

    with at_terminal("tasks", functions, "--limit", "2") as person:
        assert person.ends() == 0

    lines = person.screen.splitlines()
    assert lines[2].startswith("Tasks: 2 of ")
    assert "COMPLETED" in lines[0] and " ago " in lines[0] and lines[0].endswith('add {"a":2,"b":3}')
    assert "tell the harbour" in lines[1]


def test_a_task_that_was_sent_is_shown_with_its_age(terminal: Terminal, functions: str) -> None:
    task_id = terminal("send", functions, "a ship").fields["Task"]

    with at_terminal("task", functions, task_id) as person:
        person.sees(rf"Once there was a ship\nCOMPLETED \d.* ago · task {task_id}")


def test_an_approval_shows_the_call_before_the_answer_to_it(terminal: Terminal, paying: str) -> None:
    with at_terminal("send", paying, "--data", '{"a": 1, "b": 2}') as person:
        person.sees('Approval required.*\nIt would run: pay {"a":1,"b":2}\nINPUT_REQUIRED')
        person.sees("--task-id [-0-9a-f]+ approve\n.*--task-id [-0-9a-f]+ reject\n")
    ran = terminal("send", paying, "--data", '{"a": 1, "b": 2}')
    assert ran.fields["Call"] == 'pay {"a":1,"b":2}'


# ---- only the answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["send", "stream"])
def test_raw_is_only_the_text_or_the_data(command: str, terminal: Terminal, functions: str) -> None:
    def raw(*arguments: str) -> str:
        return terminal(command, functions, *arguments, "-o", "raw").out

    assert raw("a ship") == "Once there was a ship\n"
    assert raw("--skill", "add", "a=2", "b=3") == "5\n"
    assert json.loads(raw("--skill", "say", "text=x", "loud=true")) == {"said": "x", "loud": True}


def test_raw_writes_the_bytes_of_a_file_that_is_the_whole_answer(
    functions: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(SystemExit):
        main(["send", functions, "--skill", "draw", "now", "-o", "raw"])
    assert capfdbinary.readouterr().out == b"\x89PNG\x00\xff"
    with at_terminal("send", functions, "--skill", "draw", "now", "-o", "raw") as person:
        person.sees("File: .*6 bytes")


def test_raw_prints_no_failure_as_an_answer(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "fail", "-o", "raw")

    assert (ran.code, ran.out, ran.err) == (0, "", "The task failed: not today\n")


def test_raw_leaves_out_a_remark_beside_the_artifact(terminal: Terminal) -> None:
    with scripted() as server:
        artifact = {"artifactId": "a-1", "parts": [{"text": "the answer"}]}
        done = peer.task("COMPLETED", artifacts=[artifact])
        done["status"]["message"] = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "All done!"}]}
        server.on(peer.CARD, peer.respond(peer.card(server.url, capabilities={"streaming": False})))
        server.on("/", peer.result({"task": done}))

        assert terminal("send", server.url, "hi", "-o", "raw").out == "the answer\n"


def test_an_answer_that_is_only_a_status_message_is_the_answer(terminal: Terminal) -> None:
    with scripted() as server:
        done = peer.task("COMPLETED")
        done["status"]["message"] = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Sunny"}]}
        server.on(peer.CARD, peer.respond(peer.card(server.url, capabilities={"streaming": False})))
        server.on("/", peer.result({"task": done}))

        assert terminal("send", server.url, "hi", "-o", "raw").out == "Sunny\n"


def test_texts_of_statuses_are_the_answer_where_there_is_nothing_else(terminal: Terminal) -> None:
    def working(text: str) -> dict[str, Any]:
        change = peer.status("WORKING")
        said = {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}
        change["statusUpdate"]["status"]["message"] = said
        return change

    with scripted() as server:
        server.on(peer.CARD, peer.respond(peer.card(server.url)))
        texts = [working("It is"), working("It is sunny."), working("And warm.")]
        server.on("/", peer.stream({"task": peer.task("WORKING")}, *texts, peer.status("COMPLETED")))

        assert terminal("stream", server.url, "hi", "-o", "raw").out == "It is sunny.\n\nAnd warm.\n"


def test_raw_text_has_no_control_characters(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "evil", "-o", "raw")

    assert "\x1b" not in ran.out and "\x9b" not in ran.out and EVIL not in ran.out


def test_the_error_for_an_unknown_format_names_the_formats(terminal: Terminal, url: str) -> None:
    ran = terminal("send", url, "hello", "-o", "yaml")

    assert ran.code == 2
    assert "'yaml' is not text, json, raw." in ran.err


# ---- inputs by name -------------------------------------------------------------------------------------------------


def test_inputs_have_the_types_of_the_schema(terminal: Terminal, functions: str) -> None:
    words = ["kind=b", "on=true", "tags=x", "tags=y", "size=2.5", 'more={"n":1}']
    ran = terminal("send", functions, "--skill", "pick", *words, "-o", "raw")

    assert ran.json == {"kind": "b", "on": True, "tags": ["x", "y"], "size": 2.5, "more": {"n": 1}}
    short = terminal("send", functions, "--skill", "pick", "kind=a", "on=false", 'tags=["x"]', "size=null", "-o", "raw")
    assert short.json["tags"] == ["x"]
    assert short.json["size"] is None


def test_an_input_is_read_from_a_file(terminal: Terminal, functions: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file")

    ran = terminal("send", functions, "--skill", "say", f"text=@{tmp_path}/text", "-o", "raw")
    assert ran.json["said"] == "from a file"
    assert terminal("send", functions, "--skill", "say", "text=@@home", "-o", "raw").json["said"] == "@home"
    missing = terminal("send", functions, "--skill", "say", f"text=@{tmp_path}/none")
    assert (missing.code, "cannot read" in missing.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a=two", "b=3"], "a=two: 'two' is not integer."),
        (["a=2", "bb=3"], "add has no input 'bb'. Did you mean 'b'? It has: a, b."),
        (["a=2", "a=3", "b=1"], "a is given 2 times, and is not an array."),
    ],
)
def test_inputs_that_do_not_fit_are_rejected_before_anything_is_sent(
    words: list[str], reason: str, terminal: Terminal, functions: str
) -> None:
    before = terminal("tasks", functions, "--json").json["totalSize"]

    ran = terminal("send", functions, "--skill", "add", *words)

    assert (ran.code, reason in ran.err) == (2, True), ran.err
    assert terminal("tasks", functions, "--json").json["totalSize"] == before


def test_a_wrong_choice_names_the_choices(terminal: Terminal, functions: str) -> None:
    ran = terminal("send", functions, "--skill", "pick", "kind=c", "on=true", "tags=x")
    assert """'c' is not "a" or "b".""" in ran.err
    ran = terminal("send", functions, "--skill", "pick", "kind=a", "on=1", "tags=x")
    assert "'1' is not true or false." in ran.err


def test_inputs_need_a_skill_with_a_schema(terminal: Terminal, functions: str, url: str) -> None:
    unclear = terminal("send", functions, "a=2", "b=3")
    unknown = terminal("send", functions, "--skill", "ad", "a=2", "b=3")
    without = terminal("send", url, "--skill", "play", "a=2", "b=3")
    words = terminal("send", functions, "hello", "there")

    assert [ran.code for ran in (unclear, unknown, without, words)] == [2, 2, 2, 2]
    assert "Select the skill for these inputs with --skill: the skills are: add, tell" in unclear.err
    assert "did you mean add?" in unknown.err
    assert "The card does not contain the input schema of play. Pass the inputs with --data." in without.err
    assert "Put a text with spaces in quotes" in words.err


def test_a_text_that_only_looks_like_an_input_stays_a_text(terminal: Terminal, functions: str, url: str) -> None:
    assert terminal("send", functions, "x=1", "--skill", "tell", "-o", "raw").out == "Once there was x=1\n"
    asked = terminal("send", url, "ask").fields["Task"]
    assert terminal("send", url, "--task-id", asked, "a=1").fields["Task"] == asked


def test_chat_reads_inputs_by_name_too(terminal: Terminal, functions: str) -> None:
    ran = terminal("chat", functions, "--skill", "add", stdin=b"a=2 b=3\na=x b=3\n/skill tell\nit's late\n")

    assert ran.out == "5\nOnce there was it's late\n"
    assert "Error: a=x: 'x' is not integer." in ran.err


# ---- signatures -----------------------------------------------------------------------------------------------------


def test_skills_are_listed_as_signatures(terminal: Terminal, functions: str) -> None:
    lines = terminal("skills", functions).out.splitlines()

    assert lines[:4] == [
        "add(a: integer, b: integer) → integer",
        "  Add two numbers.",
        "tell(text) → string",
        "  Tell a story, word by word.",
    ]
    assert (
        'pick(kind: "a" or "b", on: boolean, tags: array of string, size: number or null = null, '
        "more: object or null = null) → object"
    ) in lines


# ---- progress and failures ------------------------------------------------------------------------------------------


def test_progress_is_a_share(terminal: Terminal, functions: str) -> None:
    ran = terminal("chat", functions, "--skill", "work", stdin=b"steps=2\n")

    assert ran.out == "done\n"
    assert "… 50 % step 1\n" in ran.err and "… 100 %\n" in ran.err


@pytest.mark.parametrize(
    ("done", "text", "shown"),
    [(0.5, "half", "50 % half"), (0.5, "50%", "50 %"), (None, "Working", "Working"), (True, "x", "x"), ("a", "x", "x")],
)
def test_the_share_of_a_progress_message(done: object, text: str, shown: str) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text=text),), metadata={"apcore.progress": done})
    assert progress_text(message) == shown


def test_an_internal_error_shows_its_reference_and_where_to_look(
    terminal: Terminal, functions: str, caplog: pytest.LogCaptureFixture
) -> None:
    for output in ("text", "raw"):
        ran = terminal("send", functions, "--skill", "fail", "x=1", "-o", output)
        reference = ran.err.partition("Reference ")[2].partition(":")[0]
        assert f"Reference {reference}: the agent's log has the exception under it" in ran.err
        assert any(getattr(record, "reference", "") == reference for record in caplog.records)
        assert "ZeroDivisionError" not in ran.err + ran.out


def test_during_development_an_internal_error_shows_the_exception_and_its_line(terminal: Terminal) -> None:
    with elsewhere(serving(FUNCTIONS, card=None, host="127.0.0.1", show_exceptions=True)) as address:
        ran = terminal("send", address, "--skill", "fail", "x=1", "-o", "raw")

    assert "  ZeroDivisionError: integer division or modulo by zero\n" in ran.err
    assert "tests/cli/functions.py:" in ran.err and ", in fail: return x // 0\n" in ran.err
    assert "Reference" not in ran.err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (-3, "0.0 s"),
        (12, "12 s"),
        (119, "119 s"),
        (600, "10 min"),
        (9000, "2 h"),
        (2e6, "23 days"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_time_that_cannot_be_read_is_shown_as_it_is() -> None:
    assert age("yesterday\x1b[31m") == "yesterday"
    assert age("2020-01-01T00:00:00").endswith(" days ago")
