"""The targets of `serve TARGET`: files, modules, attributes, and directories of apcore modules.

Invariant: an error of the user's code is reported in one line: the cause, the user's own line of code, and what to do.
It never contains a traceback of this package.
"""

import asyncio
import importlib
import importlib.util
import inspect
import linecache
import logging
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import apcore
import click
from msgspec import Struct
from starlette.applications import Starlette
from watchfiles import awatch

from apcore_a2a.agents.frameworks.recognition import framework_of

logger = logging.getLogger(__name__)

NOTATION: Final = ("typing", "__future__")  # modules of type annotations, such as Optional
MAX_NAMES: Final = 12
FORMS: Final = "a directory of apcore modules, file.py, file.py:name or package.module:name"
_ASGI_PARAMETERS: Final = ("scope", "receive", "send")


class DirectoryTarget(Struct, frozen=True):
    """A directory of apcore modules."""

    directory: Path


class ObjectTarget(Struct, frozen=True):
    """A name in a file or in a module, or all of its functions if the name is empty."""

    place: str
    """The file or the module as the user wrote it: `agent.py` or `package.module`."""
    name: str

    @property
    def file(self) -> Path | None:
        if self.place.endswith(".py"):
            return Path(self.place)
        return None

    @property
    def root(self) -> Path:
        """Return the directory that is added to the import path, and watched for changes."""
        if self.file is not None:
            return self.file.resolve().parent
        return Path.cwd()

    def __str__(self) -> str:
        if not self.name:
            return self.place
        return f"{self.place}:{self.name}"


def parse_target(text: str) -> DirectoryTarget | ObjectTarget:
    """Return the target that a word on the command line names.

    Raises:
        click.ClickException: the word names no target. The text suggests one.
    """
    path = Path(text)
    if path.is_dir():
        return DirectoryTarget(path)
    # rpartition, because `C:\agent.py:name` has two colons.
    place, _, name = text.rpartition(":")
    if not place:
        place = text
        name = ""
    if place.endswith(".py") and not Path(place).is_file():
        raise click.ClickException(f"There is no file {place}{_did_you_mean(place, _python_files(place))}")
    is_path = "/" in place or "\\" in place
    if not place.endswith(".py") and (is_path or not name):
        if Path(f"{text}.py").is_file():
            raise click.ClickException(f"There is no directory {text}; did you mean {text}.py?")
        raise click.ClickException(f"There is no directory {text}: name {FORMS}")
    return ObjectTarget(place, name)


def _python_files(place: str) -> list[str]:
    directory = Path(place).parent
    if not directory.is_dir():
        return []
    return [str(path) for path in directory.glob("*.py")]


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, known, n=1)
    if not near:
        return ""
    return f"; did you mean {near[0]}?"


# ---- importing ------------------------------------------------------------------------------------------------------


def load_target(target: ObjectTarget, *, factory: bool = False) -> object:
    """Import the object.

    Args:
        target: The name of the object.
        factory: Whether the object is a function without arguments that returns the object to serve.

    Raises:
        click.ClickException: the object cannot be imported, does not exist, or its factory failed.
    """
    # As Python does for a script, so that the file can import its neighbours.
    sys.path.insert(0, str(target.root))
    module = _import(target)
    if not target.name:
        return _choose_object(module, target, factory=factory)
    found: object = module
    for name in target.name.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            near = _did_you_mean(name, vars(module))
            text = f"{target.place} has no {target.name}{near or '.'} {_list_names(module)}"
            raise click.ClickException(text) from error
    if factory:
        return _call_factory(found, target)
    return found


def _choose_object(module: ModuleType, target: ObjectTarget, *, factory: bool) -> object:
    """Return what a file without a name serves: its only agent of a framework, or the module for its functions."""
    found = _own_objects(module)
    agents = [value for value in found.values() if framework_of(value) is not None]
    if len(agents) == 1 and not factory:
        return agents[0]
    # Beside an agent, functions are its tools. A client must not call them without the agent, and its approvals.
    has_functions = any(inspect.isfunction(value) for value in found.values())
    if factory or agents or not has_functions:
        raise click.ClickException(f"Which one? {_list_names(module)}: name it as in {target.place}:NAME")
    return module  # each function of it becomes a skill


def _import(target: ObjectTarget) -> ModuleType:
    try:
        if target.file is None:
            return importlib.import_module(target.place)
        return import_file(target.file)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target.place}.".startswith(f"{error.name}."):
            text = f"There is no module {target.place} here ({Path.cwd()}) or among the installed packages"
            raise click.ClickException(text) from error
        raise click.ClickException(_why_not(target, error)) from error
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise click.ClickException(_why_not(target, error)) from error


def import_file(path: Path) -> ModuleType:
    name = path.stem
    if name in sys.modules:  # `json.py`, for example: other imports of json must get the other module
        name = f"served_{name}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:  # cannot happen with a name that ends in .py
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Before it is executed, because annotations, for example, are looked up under the name of the module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # it is incomplete, and must not be imported again
        raise
    return module


def _call_factory(factory: object, target: ObjectTarget) -> object:
    if not callable(factory):
        raise click.ClickException(f"{target} is not a function, but a {type(factory).__name__}: omit --factory")
    try:
        made = factory()
        if inspect.isawaitable(made):
            return asyncio.run(_await(made))
        return made
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise click.ClickException(_why_not(target, error, doing="called")) from error


async def _await(awaitable: Any) -> object:  # Any: the result of the user's coroutine
    return await awaitable


# ---- errors ---------------------------------------------------------------------------------------------------------


def _why_not(target: ObjectTarget, error: BaseException, *, doing: str = "imported") -> str:
    what = target.place
    if doing != "imported":
        what = str(target)
    return f"{what} cannot be {doing}: {describe_failure(error, target.root)}"


def describe_failure(error: BaseException, root: Path) -> str:
    """Return one line about an exception in the user's code below `root`: the place, the cause, and the line itself."""
    text = " ".join(str(error).split())
    cause = f"{type(error).__name__}: {text}"
    if isinstance(error, SystemExit):
        cause = "it calls sys.exit()"
    elif isinstance(error, SyntaxError):
        cause = f"SyntaxError: {error.msg}"  # without the place, which comes first anyway
    place = _find_place(error, root)
    if place is not None:
        filename, line = place
        code = linecache.getline(filename, line).strip()
        cause = f"{_shorten(filename)}:{line}: {cause}, in: {code}"
    if isinstance(error, ModuleNotFoundError):
        cause += f"; is it installed for {sys.executable}?"
    return cause


def _find_place(error: BaseException, root: Path) -> tuple[str, int] | None:
    """Return the file and the number of the last line of the stack that belongs to the user's code."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        # A virtual environment may be below the directory.
        is_users = path.is_relative_to(root) and "site-packages" not in path.parts
        if is_users and frame.lineno is not None:
            return frame.filename, frame.lineno
    return None


def _shorten(filename: str) -> Path:
    path = Path(filename)
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd())
    return path


def _list_names(module: ModuleType) -> str:
    """Return a sentence with the names in a module that could be served."""
    names = list(_own_objects(module))
    if not names:
        return "It defines no object that could be served"
    shown = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        shown += ", …"
    return f"It has: {shown}"


def _own_objects(module: ModuleType) -> dict[str, object]:
    """Return a module's own functions and objects by name, without imported functions and without classes."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", module.__name__) == module.__name__
        is_object = not inspect.isclass(value) and not inspect.ismodule(value) and not hasattr(value, "__origin__")
        if type(value).__module__ in NOTATION:
            continue
        if not name.startswith("_") and is_object and (is_own or not inspect.isroutine(value)):
            found[name] = value
    return found


def is_asgi(target: object) -> bool:
    """Return whether it is an ASGI application: of Starlette, FastAPI, or a function of scope, receive and send."""
    if isinstance(target, Starlette):
        return True
    if not callable(target) or isinstance(target, type):
        return False
    try:
        return tuple(inspect.signature(target).parameters) == _ASGI_PARAMETERS
    except ValueError:  # some functions written in C have no signature
        return False


# ---- extensions -----------------------------------------------------------------------------------------------------
# A directory of apcore modules, discovered once, and again when its files change.
#
# apcore's own watcher fails on its first event (0.32) or drops a module whose file is broken (0.6). This one keeps the
# working version of a module whose file cannot be imported, and logs that.

MAX_FAILURES: Final = 12
NO_MODULE: Final = (
    "a module is a file with one class that has description, input_schema, output_schema and execute;"
    " docs/modules.md shows one"
)
STOP_TIMEOUT: Final = 5  # seconds; a reload that hangs in the code of a module must not delay the shutdown


class Extensions:
    """A registry and the directory it came from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = _discover(directory)

    def refresh(self, changed: set[Path]) -> None:
        """Reload the modules whose files changed. Blocks: call it on a worker thread."""
        # Load a second registry first. A module that cannot be imported is missing in it, and then stays in this one.
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
            # register() rejects an id that is taken.
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
        except Exception:  # the system has no file watches left, for example. The agent continues
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
            except Exception:  # a half-written directory can be in any state. The next change tries again
                logger.exception("modules not reloaded")


def open_extensions(directory: Path) -> Extensions:
    """Return the modules in a directory. Files that cannot be imported are left out, and logged.

    Raises:
        click.ClickException: the directory does not exist, or has no module.
    """
    if not directory.is_dir():
        text = f"Extensions directory not found: {directory}; create it, or name a target: apcore-a2a serve TARGET"
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
    """Return why files could not be imported, one line each, for at most a dozen."""
    found: list[str] = []
    for path in sorted(extensions.directory.rglob("*.py")):
        is_known = extensions.registry.get(_module_id(extensions.directory, path)) is not None
        if is_known or not _is_module(path) or len(found) == MAX_FAILURES:
            continue
        found += _why_not_imported(path, extensions.directory)
    return found


def _why_not_imported(path: Path, directory: Path) -> list[str]:
    """Return one line about the error of importing a file, or an empty list if it does not fail."""
    # apcore has imported it already, but does not report the line of code: import it again to get that.
    try:
        import_file(path)
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        return [describe_failure(error, directory.resolve())]
    return []


def _discover(directory: Path) -> Any:
    registry = apcore.Registry(extensions_dir=str(directory))
    registry_log = logging.getLogger("apcore.registry")
    before = registry_log.level
    registry_log.setLevel(logging.ERROR)  # this module reports import errors itself, with the line of code
    try:
        registry.discover()
    finally:
        registry_log.setLevel(before)
    return registry


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" and not path.name.startswith(("_", "."))


def _module_id(directory: Path, path: Path) -> str:
    """Return the id that apcore gives to a module: its path in the directory, with dots."""
    # Both are resolved: the watcher's paths are absolute, and the directory may be relative, or a link.
    return ".".join(path.resolve().relative_to(directory.resolve()).with_suffix("").parts)
