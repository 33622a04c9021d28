"""Paths of the Python files, for tests that read source code."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "apcore_a2a"
WRITTEN = ("src", "tests", "examples", "benchmarks", "scripts")


def python_files(*folders: str) -> list[Path]:
    """Return every Python file in these folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the module name of a path: `apcore_a2a.engine.engine` for src/apcore_a2a/engine/engine.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
