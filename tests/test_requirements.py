"""The manifest and the `@requirement` marks agree: what is called tested has a test, what has a test is called so."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import load_manifest

TESTS = Path(__file__).parent


def marked_requirements(source: str) -> Iterator[str]:
    """The ids in `@requirement(...)` decorators of test functions, and of nothing else."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="requirement"), args=identifiers):
                    yield from (ast.literal_eval(identifier) for identifier in identifiers)


def all_marks() -> dict[str, set[str]]:
    """Each marked id with the files that mark it."""
    marks: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for identifier in marked_requirements(path.read_text(encoding="utf-8")):
            marks.setdefault(identifier, set()).add(str(path.relative_to(TESTS)))
    return marks


def test_the_manifest_lists_every_requirement_of_the_specification() -> None:
    kinds = [identifier.split("-")[0] for identifier in load_manifest()]
    assert (kinds.count("FR"), kinds.count("NFR")) == (63, 30)


def test_every_status_is_tested_or_a_deferral_with_a_reason() -> None:
    unclear = {
        identifier: entry.status
        for identifier, entry in load_manifest().items()
        if not entry.tested and len(entry.status.removeprefix("deferred: ")) in (0, len(entry.status))
    }
    assert unclear == {}


def test_every_requirement_called_tested_has_a_marked_test() -> None:
    tested = {identifier for identifier, entry in load_manifest().items() if entry.tested}
    assert tested - all_marks().keys() == set()


def test_every_mark_names_a_requirement_that_exists_and_is_called_tested() -> None:
    manifest = load_manifest()
    wrong = {
        identifier: files
        for identifier, files in all_marks().items()
        if identifier not in manifest or not manifest[identifier].tested
    }
    assert wrong == {}


def test_a_mark_on_anything_but_a_test_function_proves_nothing() -> None:
    source = '@requirement("A")\ndef test_a(): ...\n@requirement("B")\ndef helper(): ...\nrequirement("C")\n'
    assert list(marked_requirements(source)) == ["A"]
