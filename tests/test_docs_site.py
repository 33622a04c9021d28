"""The site of the documentation: pages, navigation, links, reference, llms.txt, and a build in strict mode."""

import posixpath
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import apcore_a2a
from scripts import docs
from tests.sources import ROOT

ZENSICAL = ROOT / ".venvs" / "docs" / "bin" / "zensical"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs.all_pages()


def listed() -> list[str]:
    return [path for _, paths in docs.navigation() for path in paths]


def test_every_page_is_in_the_navigation_once_or_linked_by_a_page_that_is(pages: dict[str, str]) -> None:
    in_navigation = listed()
    assert len(in_navigation) == len(set(in_navigation))
    assert [path for path in in_navigation if path not in pages] == []
    linked = set()
    for path in pages:
        for link in docs.LINK.finditer(pages[path]):
            linked.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2])))
    assert [path for path in pages if path not in in_navigation and path not in linked] == []


def test_every_link_of_a_page_of_the_site_leads_to_a_page_or_a_picture(pages: dict[str, str]) -> None:
    pictures = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.*")}
    broken = []
    for path, text in pages.items():
        if path.startswith(("files/", "reference/")):
            continue  # they show code
        for link in docs.LINK.finditer(re.sub(docs.FENCE, "", text)):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
            if "://" not in link[2] and "mailto:" not in link[2] and target not in {*pages, *pictures, "llms.txt"}:
                broken.append(f"{path}: {link[2]}")
    assert broken == []


def test_a_page_opens_with_what_its_reader_can_do_afterwards(pages: dict[str, str]) -> None:
    without = ("errors.md", "security.md", "decisions/README.md")  # lists, two of them written by scripts
    found = [path for path in listed() if path not in without and not path.startswith("frameworks/")]
    assert len(found) > 30
    assert [path for path in found if not re.search(r"\bAfter (?:this page|these \w+ steps) ", pages[path][:400])] == []


def test_every_public_name_is_in_the_reference_with_its_docstring(pages: dict[str, str]) -> None:
    reference = "".join(text for path, text in pages.items() if path.startswith("reference/"))
    named = set(re.findall(r"^## (\w+)$", reference, re.MULTILINE))
    without = {"AgentEvent", "__version__"}  # a union and a text: they have no docstring
    missing = [name for name in apcore_a2a.__all__ if name not in named and name not in without]
    assert missing == []
    assert "Calls a remote A2A agent." in reference
    assert "### A2AClient.send_message" in reference
    assert " at 0x" not in reference


def test_llms_txt_lists_the_navigation_with_sentences(pages: dict[str, str]) -> None:
    text = docs.llms(pages)
    entries = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", text, re.MULTILINE)
    assert [address for _, address, _ in entries] == [docs.address_of(path) for path in listed()]
    assert [summary for _, _, summary in entries if len(summary) < 20] == []


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("index.md", "index.md"),
        ("agents.md", "agents/index.md"),
        ("decisions/README.md", "decisions/index.md"),
        ("reference/client.md", "reference/client/index.md"),
    ],
)
def test_the_markdown_of_a_page_is_beside_its_html(path: str, address: str) -> None:
    assert docs.address_of(path) == address


def test_the_markdown_of_a_page_links_to_the_markdown_of_others_and_keeps_code() -> None:
    text = "[a](auth.md#tokens) [b](decisions/README.md) [c](https://x.example/d.md)\n```\n[e](f.md)\n```\n"
    wanted = (
        "[a](../auth/index.md#tokens) [b](../decisions/index.md) [c](https://x.example/d.md)\n```\n[e](f.md)\n```\n"
    )
    assert docs.twin("agents.md", text) == wanted


def test_a_link_out_of_the_documentation_leads_to_a_page_that_shows_the_file() -> None:
    shown: set[str] = set()
    text = docs.with_links("frameworks/x.md", "[a](../../examples/skills.py)\n", shown)
    assert (text, shown) == ("[a](../files/examples-skills-py.md)\n", {"examples/skills.py"})
    assert "````python\n" in docs.file_page("examples/skills.py")


@pytest.mark.timeout(240)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if not ZENSICAL.exists():
        pytest.skip("no .venvs/docs: run make setup")
    docs.prepare(tmp_path / "docs")
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace('"build/docs"', '"docs"').replace('"build/site"', '"site"')
    assert tomllib.loads(settings)["project"]["docs_dir"] == "docs"
    (tmp_path / "zensical.toml").write_text(settings)
    built = subprocess.run(
        [ZENSICAL, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    docs.complete(tmp_path / "docs", tmp_path / "site")
    html = {path.parent for path in (tmp_path / "site").rglob("index.html")}
    assert len(html) > 80
    assert [path for path in html if not (path / "index.md").exists()] == []
