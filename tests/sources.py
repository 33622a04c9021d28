"""Where our Python files are; shared by the tests that read code instead of running it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "apcore_a2a"
WRITTEN = ("src", "tests", "examples", "benchmarks", "scripts")


def python_files(*folders: str) -> list[Path]:
    """Every Python file below the folders of the repository named, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """`apcore_a2a.engine.engine` for src/apcore_a2a/server/engine.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
