"""Skills at the command line: the hint that lists them, and completion."""

import json
from pathlib import Path

import click
import pytest

from apcore_a2a.agents.apcore.agent import ModuleAgent
from apcore_a2a.agents.apcore.executor import open_modules
from apcore_a2a.app.serve import build
from apcore_a2a.cli.completion import MAX_AGENTS, cache_file, complete_skill, read_known, remember_skills
from apcore_a2a.cli.send import send
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill
from tests.cli.conftest import Terminal, hosted
from tests.modules import Add, registry


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def card_of(*skills: str) -> AgentCard:
    return AgentCard(
        name="x",
        description="",
        version="1",
        supported_interfaces=(),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=tuple(AgentSkill(id=skill, name=skill, description="", tags=()) for skill in skills),
    )


def complete(*words: str, incomplete: str = "") -> list[str]:
    context = click.Context(send)
    context.params = {"words": words}
    return [item.value for item in complete_skill(context, send.params[0], incomplete)]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_a_hint_lists_the_skills_if_one_is_missing_or_mistyped(terminal: Terminal, version: str) -> None:
    modules = registry(math__add=Add(), math__sub=Add())
    card = build(modules, {}).cards.card
    with hosted(ModuleAgent(open_modules(modules)), card=card) as url:
        missing = terminal("send", url, "--data", "{}", "--a2a-version", version)
        typo = terminal("send", url, "--data", "{}", "--skill", "math.ad", "--a2a-version", version, "--json")

    assert missing.code == 1
    assert "\nHint: Choose a skill with --skill: the skills are: math.add, math.sub\n" in missing.err
    assert typo.json["error"]["hint"].startswith("Choose a skill with --skill: did you mean math.add? The skills are")


def test_completion_uses_the_agent_of_the_line_or_the_last_one() -> None:
    remember_skills("http://a", card_of("one", "other"))
    remember_skills("http://b", card_of("two"))

    assert complete() == ["two"]
    assert complete("http://a", "hello") == ["one", "other"]
    assert complete("http://a", incomplete="ot") == ["other"]
    assert complete("http://unknown") == ["two"]


def test_a_call_caches_the_skills_for_completion(terminal: Terminal, url: str) -> None:
    terminal("send", url, "hello")

    assert complete(url) == [skill["id"] for skill in terminal("skills", url, "--json").json["skills"]]


def test_the_skill_cache_is_bounded_sanitized_and_has_no_passwords() -> None:
    for number in range(MAX_AGENTS + 5):
        remember_skills(f"http://{number}", card_of("x" * 1000, "\x1b[31mred\nline"))
    remember_skills("http://user:secret@host", card_of("one"))

    known = read_known()
    assert len(known) == MAX_AGENTS
    assert known[f"http://{MAX_AGENTS + 4}"] == ["x" * 64, "red line"]
    assert "secret" not in cache_file().read_text()


@pytest.mark.parametrize("content", ["", "not JSON", json.dumps(["a"]), json.dumps({"a": 7})])
def test_an_invalid_skill_cache_is_ignored(content: str) -> None:
    cache_file().parent.mkdir(parents=True)
    cache_file().write_text(content)

    assert complete() == []
    remember_skills("http://a", card_of("one"))
    assert complete() == ["one"]


def test_a_skill_cache_that_cannot_be_written_is_not_an_error(
    terminal: Terminal, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert terminal("send", url, "hello").code == 0


def test_a_skill_cache_that_cannot_be_read_is_ignored() -> None:
    cache_file().parent.mkdir(parents=True)
    for content in (b'{"\xff": []}', b"[" * 6000, b"nonsense"):
        cache_file().write_bytes(content)
        assert read_known() == {}
