"""Functions as skills: how one is marked, and which ones there are in a list, a dict, a module or an object.

Rule: nothing of the user's is changed. The mark is an attribute of the function, and the function stays what it was.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct

from apcore_a2a.agents.signatures import name_of
from apcore_a2a.agents.skill_card import Annotations

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__a2a_skill__"
MAX_ID: Final = 256


class SkillOptions(TypedDict, total=False):
    """What `@skill` takes; what is not given is read from the function.

    Example:
        >>> options: SkillOptions = {"id": "math.add", "tags": ["math"], "annotations": {"readonly": True}}
    """

    id: str
    name: str
    description: str
    tags: Iterable[str]
    examples: Iterable[str | Mapping[str, Any]]
    """Texts to send, or inputs by name."""
    annotations: Mapping[str, bool]
    """The effects: readonly, destructive, idempotent, requires_approval, open_world."""


class SkillMark(Struct, frozen=True, kw_only=True):
    """What is said of a function by `@skill`, checked."""

    id: str = ""
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Any, ...] = ()
    annotations: Annotations | None = None


@overload
def skill(function: F, /) -> F: ...


@overload
def skill(**options: Unpack[SkillOptions]) -> Callable[[F], F]: ...


def skill(function: Any = None, /, **options: Unpack[SkillOptions]) -> Any:
    """Mark a function as a skill, and say of it what its signature and its docstring do not.

    The function itself is not changed. In a module or a class that has marked functions, only those are skills.

    Args:
        function: The function, where the mark says nothing: `@skill`.
        **options: See `SkillOptions`.

    Raises:
        TypeError: an option is of the wrong kind, or there is no such annotation.

    Example:
        >>> from apcore_a2a import skill
        >>> @skill(id="math.add", tags=["math"], examples=[{"a": 1, "b": 2}], annotations={"readonly": True})
        ... def add(a: int, b: int) -> int:
        ...     '''Adds two numbers.'''
        ...     return a + b
        >>> add(1, 2)
        3
    """
    mark = _check(options)

    def put(function: Any) -> Any:
        try:
            setattr(function, MARK, mark)
        except AttributeError as error:
            text = f"{name_of(function)} cannot be marked: give it an id with serve({{'id': function}}) instead"
            raise TypeError(text) from error
        return function

    if function is None:
        return put
    if not callable(function):
        raise TypeError(f"@skill marks functions, not a {type(function).__name__}: @skill(id=…) names one")
    return put(function)


def mark_of(function: Any) -> SkillMark | None:
    """What `@skill` says of a function; None if it was not marked."""
    mark = getattr(function, MARK, None)
    if isinstance(mark, SkillMark):
        return mark
    return None


def _check(options: SkillOptions) -> SkillMark:
    given: dict[str, Any] = {**options}
    for name in ("tags", "examples"):
        if isinstance(given.get(name), str):  # it would be a list of letters
            raise TypeError(f"@skill: {name} is a list of texts")
        given[name] = tuple(given.get(name, ()))
    unknown = given.keys() - set(SkillMark.__struct_fields__)
    if unknown:
        raise TypeError(f"@skill has no option {', '.join(sorted(unknown))}")
    annotations = given.get("annotations")
    if annotations is not None:
        wrong = set(annotations) - set(Annotations.__struct_fields__)
        if wrong:
            known = ", ".join(Annotations.__struct_fields__)
            raise TypeError(f"@skill: there is no annotation {', '.join(sorted(wrong))}; there are {known}")
    try:
        mark = msgspec.convert(given, SkillMark)
    except msgspec.ValidationError as error:
        raise TypeError(f"@skill: {error}") from error
    if mark.id:
        _check_id(mark.id)
    return mark


def _check_id(skill_id: Any) -> None:
    if not isinstance(skill_id, str) or not 0 < len(skill_id) <= MAX_ID or not skill_id.isprintable():
        raise TypeError(f"a skill's id is a text of at most {MAX_ID} characters, not {skill_id!r}")


# ---- which functions there are ---------------------------------------------------------------------------------------


def is_collection(target: object) -> bool:
    """Whether something is made of functions, and is none itself."""
    if isinstance(target, list | tuple | set | frozenset | Mapping | ModuleType):
        return True
    return not callable(target) and next(_methods_of(target), None) is not None


def collect(target: Any) -> dict[str, Callable[..., Any]]:
    """The functions of a function, list, dict, module or object, by the ids of their skills.

    Raises:
        TypeError: something in it is no function.
        ValueError: there is none, or two have the same id.
    """
    found: dict[str, Callable[..., Any]] = {}
    for skill_id, function in _pairs(target):
        _check_id(skill_id)
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{skill_id} is no function but a {type(function).__name__}")
        if skill_id in found:
            raise ValueError(f"two skills have the id {skill_id}: give one another with @skill(id=…)")
        found[skill_id] = function
    if not found:
        raise ValueError(f"{_kind_of(target)} has no function to serve: its public functions become skills")
    return found


def _pairs(target: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(target, Mapping):
        yield from target.items()
    elif isinstance(target, list | tuple | set | frozenset):
        for item in target:
            if not callable(item) and not is_collection(item):
                raise TypeError(f"a {type(item).__name__} is no function: {item!r}")
            yield from _pairs(item)
    elif callable(target):
        yield _id_of(target), target
    else:
        for function in _chosen(target):
            yield _id_of(function), function


def _id_of(function: Any) -> str:
    mark = mark_of(function)
    if mark is not None and mark.id:
        return mark.id
    name = name_of(function)
    if name == "<lambda>":
        raise TypeError("a lambda has no name: give it an id with serve({'id': function})")
    return name


def _chosen(target: Any) -> list[Any]:
    """The functions of a module or an object: those that are marked, if any is; else the public ones."""
    if isinstance(target, ModuleType):
        functions = list(_functions_of(target))
    else:
        functions = list(_methods_of(target))
    marked = [function for function in functions if mark_of(function) is not None]
    return marked or functions


def _functions_of(module: ModuleType) -> Iterator[Any]:
    """The public functions of a module: what `__all__` names; else what was written there, and not imported."""
    names = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if not inspect.isfunction(value):
            continue
        if names is not None:
            is_public = name in names
        else:
            is_public = not name.startswith("_") and value.__module__ == module.__name__
        if is_public:
            yield value


def _methods_of(target: Any) -> Iterator[Any]:
    """The public methods of an object, in the order in which they were written; a property is not touched."""
    seen: set[str] = set()
    for base in reversed(type(target).__mro__):
        if base.__module__ == "builtins":
            continue
        for name, value in vars(base).items():
            is_method = inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)
            if not is_method or name.startswith("_") or name in seen:
                continue
            seen.add(name)
            method = getattr(target, name)
            if callable(method):  # a subclass may have put something else in its place
                yield method


def _kind_of(target: Any) -> str:
    if isinstance(target, ModuleType):
        return f"module {target.__name__}"
    return f"a {type(target).__name__}"
