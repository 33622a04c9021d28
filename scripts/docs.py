"""Prepare the pages of the site, and complete it after the build: `make docs`.

`prepare` writes build/docs: the pages of docs/, a reference page for each part of the package from its docstrings, a
page for each file of the repository that a page links to, and llms.txt. `complete` adds the Markdown of each page to
the built site, beside its HTML.
"""

import inspect
import posixpath
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import apcore_a2a

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "build" / "docs"
SITE: Final = ROOT / "build" / "site"
LINK: Final = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
SECTION: Final = re.compile(r"^(Args|Raises|Returns|Yields|Example|Attributes):$")
MAX_SIGNATURE: Final = 88
LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh", ".md": "markdown"}
PARTS: Final = {
    "serving": ("Serving", ("app", "settings")),
    "agents": ("Agents", ("agent", "agents", "remote", "toolkits")),
    "client": ("The client", ("client",)),
    "authentication": ("Authentication", ("auth",)),
    "stores": ("Stores and webhooks", ("storage", "webhooks")),
    "model": ("The data model", ("protocol",)),
    "errors": ("Errors", ("errors",)),
}


class Page(NamedTuple):
    """A page of the site: its path in build/docs, its title, and its first sentence."""

    path: str
    title: str
    summary: str


# ---- the reference --------------------------------------------------------------------------------------------------


def names_of_part(prefixes: tuple[str, ...]) -> list[str]:
    """Return the public names that the modules of a part define."""
    found = []
    for name in apcore_a2a.__all__:
        value = getattr(apcore_a2a, name)
        module = getattr(value, "__module__", "") or ""
        if module.startswith("apcore_a2a.") and module.split(".")[1] in prefixes:
            found.append(name)
    return found


def reference_page(title: str, names: list[str]) -> str:
    """Return a page with the signatures and the docstrings of public names."""
    text = f"# {title}: reference\n\nAfter this page you know each public name, its parameters and what it raises. "
    text += "All of them are imported from `apcore_a2a`.\n"
    for name in names:
        value = getattr(apcore_a2a, name)
        text += f"\n## {name}\n\n{describe(value, name)}"
        if inspect.isclass(value):
            for method, member in documented_methods(value):
                text += f"\n### {name}.{method}\n\n{describe(member, method)}"
    return text


def documented_methods(owner: type) -> Iterator[tuple[str, Any]]:  # Any: functions, properties, descriptors
    for name, member in vars(owner).items():
        is_method = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
        if not name.startswith("_") and is_method and inspect.getdoc(member):
            yield name, member


def describe(value: Any, name: str) -> str:  # Any: as above
    """Return the signature and the docstring of a name, as Markdown."""
    text = ""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not isinstance(value, property) and callable(function) and not _is_exception(function):
        try:
            text = f"```python\n{name}{_signature(function)}\n```\n\n"
        except (TypeError, ValueError):  # a class whose constructor is written in C
            text = ""
    return text + to_markdown(inspect.getdoc(value) or "") + "\n"


def _is_exception(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _signature(function: Any) -> str:  # Any: a function or a class
    """Return the signature, with one parameter per line if it is long."""
    signature = inspect.signature(function)
    line = _short(str(signature))
    if len(line) <= MAX_SIGNATURE:
        return line
    parameters: list[str] = []
    for parameter in signature.parameters.values():
        is_first_keyword = parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters
        if is_first_keyword and not any(each.startswith("*") for each in parameters):
            parameters.append("*")
        parameters.append(_short(str(parameter)))
    listed = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"(\n{listed})" + line[line.rindex(")") + 1 :]


def _short(signature: str) -> str:
    """Return a signature without the module paths and addresses in it."""
    signature = re.sub(r"<(?:function|class|object)?\s*'?([\w.]+)[^>]*>", r"\1", signature)
    return re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Z])", "", signature)


def to_markdown(docstring: str) -> str:
    """Return a docstring in Google style as Markdown.

    Example:
        >>> print(to_markdown("Add.\\n\\nArgs:\\n    a: A number.\\n\\nExample:\\n    >>> 1 + 1\\n    2"))
        Add.
        <BLANKLINE>
        **Args**
        <BLANKLINE>
        - `a`: A number.
        <BLANKLINE>
        ```python
        >>> 1 + 1
        2
        ```
    """
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in docstring.splitlines():
        heading = SECTION.match(line)
        if heading:
            blocks.append((heading[1], []))
        else:
            blocks[-1][1].append(line)
    return "\n\n".join(filter(None, (_block(kind, lines) for kind, lines in blocks)))


def _block(kind: str, lines: list[str]) -> str:
    body = inspect.cleandoc("\n".join(["", *lines]))
    if kind == "":
        return body
    if kind == "Example":
        return f"```python\n{body}\n```"
    entries = re.sub(r"\n\s+", " ", body)  # a continued line
    return f"**{kind}**\n\n" + "\n".join(
        re.sub(r"^(\*{0,2}\w+): ", r"- `\1`: ", entry) for entry in entries.splitlines()
    )


# ---- the pages ------------------------------------------------------------------------------------------------------


def outside_prose(page: str, change: Callable[[str], str]) -> str:
    """Return the page with its prose changed, and its code blocks as they are."""
    pieces = FENCE.split(page)
    return "".join(piece if piece.startswith("```") else change(piece) for piece in pieces)


def local_target(page: str, target: str) -> str | None:
    """Return the path in the repository that a link of docs/`page` leads to. None for another site."""
    if "://" in target or target.startswith("mailto:"):
        return None
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))


def with_links(page: str, text: str, shown: set[str]) -> str:
    """Return the text with links out of docs/ leading to pages that show those files. Adds the files to `shown`."""

    def replace(link: re.Match[str]) -> str:
        target = local_target(page, link[2])
        if target is None or target.startswith("docs/"):
            return link[0]
        shown.add(target)
        depth = page.count("/")
        return f"{link[1]}{'../' * depth}files/{page_of_file(target)})"

    text = outside_prose(text, lambda prose: LINK.sub(replace, prose))
    # The word is for our tests. Markdown extensions take a fence with two words for text.
    return text.replace("```python compile-only\n", "```python\n")


def page_of_file(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-").lower() + ".md"


def file_page(path: str) -> str:
    """Return a page that shows a file of the repository."""
    content = (ROOT / path).read_text(encoding="utf-8").rstrip()
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\nThe file of this name in the repository.\n\n````{language}\n{content}\n````\n"


def all_pages() -> dict[str, str]:
    """Return every page of the site, by its path."""
    pages: dict[str, str] = {}
    shown: set[str] = set()
    for source in sorted((ROOT / "docs").rglob("*.md")):
        path = source.relative_to(ROOT / "docs").as_posix()
        pages[path] = with_links(path, source.read_text(encoding="utf-8"), shown)
    for part, (title, prefixes) in PARTS.items():
        pages[f"reference/{part}.md"] = reference_page(title, names_of_part(prefixes))
    for path in sorted(shown):
        pages[f"files/{page_of_file(path)}"] = file_page(path)
    return pages


# ---- the navigation, llms.txt and the Markdown beside the pages -----------------------------------------------------


def navigation() -> list[tuple[str, list[str]]]:
    """Return the sections of the navigation, each with its pages. A page at the top is in the section ""."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    sections: list[tuple[str, list[str]]] = []
    for entry in nav:
        for title, target in entry.items():
            if isinstance(target, str):
                sections.append(("", [target]))
            else:
                sections.append((title, [path for page in target for path in page.values()]))
    return sections


def to_page(path: str, text: str) -> Page:
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    body = text[title.end() :] if title else text
    paragraph = re.search(r"^[A-Z\[`*][^\n]*(?:\n[^\n]+)*", body, re.MULTILINE)
    sentence = re.split(r"(?<=[.:])\s", re.sub(r"\s+", " ", paragraph[0]))[0] if paragraph else ""
    return Page(path, title[1] if title else path, re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence))


def address_of(path: str) -> str:
    """Return the address of the Markdown of a page: `agents.md` is at `agents/index.md`."""
    folder, name = posixpath.split(path)
    if name in ("index.md", "README.md"):
        return posixpath.join(folder, "index.md")
    return posixpath.join(folder, name.removesuffix(".md"), "index.md")


def llms(pages: dict[str, str]) -> str:
    """Return llms.txt: each page of the navigation with its first sentence."""
    text = "# apcore-a2a\n\n> Serve Python code as an A2A agent, and call any A2A agent.\n"
    for title, paths in navigation():
        if title:
            text += f"\n## {title}\n"
        for path in paths:
            page = to_page(path, pages[path])
            text += f"\n- [{page.title}]({address_of(path)}): {page.summary}"
        text += "\n"
    return text


def twin(path: str, text: str) -> str:
    """Return the Markdown of a page, with links to the Markdown of other pages."""
    here = posixpath.dirname(address_of(path))

    def replace(link: re.Match[str]) -> str:
        if "://" in link[2] or link[2].startswith("mailto:"):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if target.endswith(".md"):
            target = address_of(target)
        return f"{link[1]}{posixpath.relpath(target, here or '.')}{link[3]}"

    return outside_prose(text, lambda prose: LINK.sub(replace, prose))


def prepare(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    pages = all_pages()
    for path, text in pages.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*"):
        if picture.suffix in (".png", ".svg"):
            copy = place / picture.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, copy)
    (place / "llms.txt").write_text(llms(pages), encoding="utf-8")


def complete(place: Path, site: Path) -> None:
    for source in place.rglob("*.md"):
        path = source.relative_to(place).as_posix()
        target = site / address_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(twin(path, source.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(SOURCES)
    else:
        complete(SOURCES, SITE)
