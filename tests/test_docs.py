"""Every example we show works: docstrings and Markdown, Python run, shell parsed, links followed.

In Markdown a block opened with "python" runs, and the blocks of one page share their names from top to bottom.
"python compile-only" is for what cannot return or needs another process: it is compiled, its imports are run.
"""

import ast
import asyncio
import doctest
import inspect
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sources import PACKAGE, ROOT, module_name, python_files

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")  # pictures, too
CHECKED = {"python", "python compile-only", "sh"}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
SHOWN = {"text", "json", "toml", "yaml", "http"}
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
PROGRAMS = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")  # tests/app/test_newcomer.py runs their programs
WITH_EXAMPLES = [
    module_name(path)
    for path in python_files("src")
    if path != PACKAGE / "__main__.py" and ">>>" in path.read_text(encoding="utf-8")
]


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks_of(page: str, *languages: str) -> list[Block]:
    fences = FENCE.finditer(page)
    found = [Block(fence[1].strip(), fence[2], page.count("\n", 0, fence.start()) + 2) for fence in fences]
    return [block for block in found if not languages or block.language in languages]


def run_python(block: Block, namespace: dict[str, Any], filename: str) -> None:  # Any: the names of the page
    """Execute the block; `await` at the top level works as in `python -m asyncio`."""
    source = "\n" * (block.line - 1) + block.code  # so that a failure points into the page
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if block.language == "python compile-only":
        tree = compile(source, filename, "exec", flags | ast.PyCF_ONLY_AST)
        assert isinstance(tree, ast.Module)
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(tree, filename, "exec"), namespace)
        return
    code = compile(source, filename, "exec", flags)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, namespace))
    else:
        exec(code, namespace)


def shell_error(code: str) -> str:
    """What a shell says about the syntax of the code; nothing if it is fine."""
    run = subprocess.run(["sh", "-n"], input=code, capture_output=True, text=True, check=False, timeout=5)
    return run.stderr


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_say_what_happens(module: str) -> None:
    result = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert result.failed == 0


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in PROGRAMS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks_of(page.read_text(encoding="utf-8"), "python", "python compile-only"):
        run_python(block, namespace, str(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_shell_examples_of_a_page_parse(page: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"), "sh")
    assert {block.line: error for block in blocks if (error := shell_error(block.code))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_of_a_page_escapes_by_its_language(page: Path) -> None:
    languages = {block.language for block in blocks_of(page.read_text(encoding="utf-8"))}
    assert languages - CHECKED - SHOWN == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def headings_of(page: str) -> list[str]:
    """Return the anchors of the headings of a page, as GitHub and the site form them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return [re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_headings_of_a_page_differ_and_links_to_headings_lead_to_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    anchors = headings_of(text)
    assert len(anchors) == len(set(anchors))
    links = re.findall(r"\]\(([^)#\s]*\.md)?#([^)\s]+)\)", FENCE.sub("", text))
    pages = {
        name: headings_of((page.parent / name).read_text(encoding="utf-8")) if name else anchors for name, _ in links
    }
    assert [f"{name}#{anchor}" for name, anchor in links if anchor not in pages[name]] == []


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = [path.name for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".svg")]
    assert [name for name in pictures if f"{name})" not in pages] == []


@pytest.mark.parametrize("language", ["python", "python compile-only"])
def test_a_broken_python_example_is_found(language: str) -> None:
    with pytest.raises(ImportError):
        run_python(Block(language, "from apcore_a2a import nothing_of_this_name", 1), {}, "page")
    with pytest.raises(SyntaxError):
        run_python(Block(language, "await = 1", 1), {}, "page")


def test_an_example_may_await_at_the_top_level() -> None:
    namespace: dict[str, Any] = {}
    run_python(Block("python", "import asyncio\nawait asyncio.sleep(0)\nx = 1", 1), namespace, "page")
    assert namespace["x"] == 1


def test_a_broken_shell_example_is_found() -> None:
    assert shell_error("if true; then echo") != ""


def test_blocks_are_found_with_their_line() -> None:
    page = "# T\n\n```python\nx = 1\n```\n\n```sh\nls\n```\n"
    assert blocks_of(page, "python", "sh") == [Block("python", "x = 1\n", 4), Block("sh", "ls\n", 8)]


def test_the_map_of_the_package_names_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)*(?:[\w]+\.py|[\w.]+/))`", page))
    assert len(named) > 30
    missing = [name for name in sorted(named) if not (ROOT / name).exists() and not (PACKAGE / name).exists()]
    assert missing == []


def definitions_of(source: str) -> set[str]:
    """The classes, functions and assigned names of a module or a class body, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {name} | {f"{name}.{each.name}" for each in body if isinstance(each, FUNCTION)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    return found


def rows_of_the_map() -> list[tuple[str, list[str], list[str]]]:
    """The behaviours on the page, each with its files and the names in them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows: list[tuple[str, list[str], list[str]]] = []
    for behaviour, code in re.findall(r"^\| (.+?) \| (`.+`) \|$", page, re.MULTILINE):
        words = re.findall(r"`([^`]+)`", code)
        files = [word for word in words if "/" in word or word.endswith(".py")]
        rows.append((behaviour, files, [word for word in words if word not in files]))
    return rows


@pytest.mark.parametrize(("behaviour", "files", "names"), rows_of_the_map())
def test_the_map_of_behaviours_names_definitions_in_at_most_two_files(
    behaviour: str, files: list[str], names: list[str]
) -> None:
    assert 1 <= len(files) <= 2
    defined: set[str] = set()
    for file in files:
        path = PACKAGE / file if (PACKAGE / file).exists() else ROOT / file
        if path.suffix == ".py":
            defined |= definitions_of(path.read_text(encoding="utf-8"))
    assert set(names) - defined == set()


def test_the_way_of_a_message_names_functions_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = page.partition("## The way of one message")[2].partition("\n## ")[0]
    named = {word for word in re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", way) if not word.endswith(".py")}
    defined: set[str] = set()
    for path in python_files("src"):
        defined |= definitions_of(path.read_text(encoding="utf-8"))
    assert len(named) > 25
    assert named - defined == set()


def test_what_is_seen_at_3_a_m_is_what_the_program_says() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## At 3 a.m.")
    seen = re.findall(r'^\|[^|"]*"([^"|]+)"', table, re.MULTILINE)
    assert len(seen) > 15
    sources = "".join(path.read_text(encoding="utf-8") for path in python_files("src"))
    assert [text for text in seen if text not in sources] == []
