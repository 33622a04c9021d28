"""A directory of apcore modules: found once, and again when its files change.

apcore's own watcher fails on its first event (0.32) or drops a module whose file is broken (0.6). This one keeps what
worked: a file that cannot be read leaves the module as it was, and says so.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import apcore
import click
from watchfiles import awatch

from apcore_a2a.cli.targets import import_file, tell_failure

logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 12
NO_MODULE: Final = (
    "a module is a file with one class that has description, input_schema, output_schema and execute;"
    " docs/modules.md shows one"
)
STOP_TIMEOUT: Final = 5  # seconds; a reload that hangs in a module's code does not hold up the shutdown


class Extensions:
    """A registry and the directory it came from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = _discover(directory)

    def refresh(self, changed: set[Path]) -> None:
        """Take in again the modules whose files changed; blocks, so call it on a worker thread."""
        # Into a registry of its own first: what cannot be imported is missing there, and stays here.
        fresh = _discover(self.directory)
        for path in sorted(changed):
            self._refresh_module(_module_id(self.directory, path), path, fresh)

    def _refresh_module(self, module_id: str, path: Path, fresh: Any) -> None:  # Any: a registry, which is untyped
        module = fresh.get(module_id)
        if module is None and path.exists():
            extra = {"module_id": module_id, "reason": "; ".join(_why_not_imported(path, self.directory))}
            logger.warning("module not reloaded: its file has an error", extra=extra)
            return
        if self.registry.get(module_id) is not None:
            # register() refuses an id that is taken.
            self.registry.unregister(module_id)
        if module is None:
            logger.info("module removed", extra={"module_id": module_id})
            return
        self.registry.register(module_id, module)
        logger.info("module reloaded", extra={"module_id": module_id})


class Reloader:
    """Watches a directory for as long as the agent runs."""

    def __init__(self, extensions: Extensions) -> None:
        self._extensions = extensions
        self._stop = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="reload")

    async def stop(self) -> None:
        self._stop.set()
        if self._watching is not None:
            await asyncio.wait({self._watching}, timeout=STOP_TIMEOUT)

    async def _watch(self) -> None:
        try:
            await self._reload_changes()
        except Exception:  # the system's watches are all taken, say; the agent runs on
            logger.exception("files are not watched; changes need a restart")

    async def _reload_changes(self) -> None:
        async for changes in awatch(self._extensions.directory, stop_event=self._stop):
            changed = set()
            for _, name in changes:
                path = Path(name)
                if _is_module(path):
                    changed.add(path)
            try:
                await asyncio.to_thread(self._extensions.refresh, changed)
            except Exception:  # a half-written directory can be in any state; the next change tries again
                logger.exception("modules not reloaded")


def open_extensions(directory: Path) -> Extensions:
    """The modules in a directory. Files that cannot be imported are left out, and named.

    Raises:
        click.ClickException: there is no such directory, or no module in it.
    """
    if not directory.is_dir():
        text = f"Extensions directory not found: {directory}; make it, or name what to serve: apcore-a2a serve TARGET"
        raise click.ClickException(text)
    extensions = Extensions(directory)
    failures = _find_failures(extensions)
    if not extensions.registry.list():
        reasons = "; ".join(failures) or NO_MODULE
        raise click.ClickException(f"No modules discovered in {directory}: {reasons}")
    for failure in failures:
        logger.warning("module left out: %s", failure)
    return extensions


def _find_failures(extensions: Extensions) -> list[str]:
    """Why the files that should hold a module could not be imported, a line each; at most a dozen."""
    found: list[str] = []
    for path in sorted(extensions.directory.rglob("*.py")):
        is_known = extensions.registry.get(_module_id(extensions.directory, path)) is not None
        if is_known or not _is_module(path) or len(found) == MAX_FAILURES:
            continue
        found += _why_not_imported(path, extensions.directory)
    return found


def _why_not_imported(path: Path, directory: Path) -> list[str]:
    """A line about what a file fails with when it is imported; none if it does not fail."""
    # apcore has tried and tells no line of code: to know it, we do it again.
    try:
        import_file(path)
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        return [tell_failure(error, directory.resolve())]
    return []


def _discover(directory: Path) -> Any:
    registry = apcore.Registry(extensions_dir=str(directory))
    its_log = logging.getLogger("apcore.registry")
    before = its_log.level
    its_log.setLevel(logging.ERROR)  # what could not be imported, we say with its line
    try:
        registry.discover()
    finally:
        its_log.setLevel(before)
    return registry


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" and not path.name.startswith(("_", "."))


def _module_id(directory: Path, path: Path) -> str:
    """The id that apcore gives to a module: its path in the directory, with dots."""
    # Both resolved: the watcher's paths are absolute, and the directory may be relative, or a link.
    return ".".join(path.resolve().relative_to(directory.resolve()).with_suffix("").parts)
