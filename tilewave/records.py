"""`dataclass`, whose methods are made at their first use: for most classes of a process, never.

The standard library compiles six methods of a frozen dataclass when it is declared, which was more than half of the
time of importing this package. Here they are closures, except `__init__`, compiled when the class is first called.
Fields, `replace`, comparison, hash, text and errors are as the standard library's.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

C = TypeVar("C", bound=type)
Fields = tuple["Field[Any]", ...]

FIELDS, PARAMS = "__dataclass_fields__", "__dataclass_params__"
PLAIN = {"init": False, "repr": False, "eq": False}
"""Parameters of a dataclass for which the standard library compiles nothing."""
NO_SIGNATURE = "fields"
"""A docstring, for classes that would otherwise get their signature, which takes as long to write as all the rest."""


class _Init:
    """`__init__` of a class until its first use, which compiles it and puts it in this place."""

    def __init__(self, of: type) -> None:
        self.of = of

    def __get__(self, instance: object, owner: type) -> Callable[..., None]:
        made = _compiled_init(self.of)
        if self.of.__dict__.get("__init__") is self:
            self.of.__init__ = made
        return made.__get__(instance, owner) if instance is not None else made  # type: ignore[no-any-return]


def _compiled_init(of: type) -> Any:
    """Return the function that the standard library makes for a class, without compiling any other beside it."""
    known: tuple[Field[Any], ...] = dataclasses.fields(of)
    plain, named = [f for f in known if f.init and not f.kw_only], [f for f in known if f.init and f.kw_only]
    parameters = [*map(_parameter, plain), *(["*"] if named else []), *map(_parameter, named)]
    stored = [f"_set(_self, {f.name!r}, {_value(f)})" for f in known if f.init or f.default_factory is not MISSING]
    after = ["_self.__post_init__()"] if hasattr(of, "__post_init__") else []
    outside = {f"_of_{f.name}": f.default if f.default_factory is MISSING else f.default_factory for f in known}
    outside |= {"_set": object.__setattr__, "_factory": _FACTORY}
    inner = f"def __init__({', '.join(('_self', *parameters))}):\n  " + "\n  ".join(stored + after or ["pass"])
    made: dict[str, Any] = {}
    # In the globals of the class's module: `errors.here` skips frames of this package's modules.
    exec(f"def make({', '.join(outside)}):\n {inner}\n return __init__", vars(sys.modules[of.__module__]), made)
    init = made["make"](**outside)
    init.__qualname__, init.__annotations__ = f"{of.__qualname__}.__init__", {f.name: f.type for f in (*plain, *named)}
    init.__annotations__["return"] = None
    return init


class _Factory:
    """The default of a parameter whose value is made anew for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _parameter(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return f"{f.name}=_factory"
    return f.name if f.default is MISSING else f"{f.name}=_of_{f.name}"


def _value(f: Field[Any]) -> str:
    """Return the expression of what a field holds at first."""
    if f.default_factory is MISSING:
        return f.name
    return f"_of_{f.name}() if {f.name} is _factory else {f.name}" if f.init else f"_of_{f.name}()"


def _refuse_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(fields: Iterable[Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the values of these fields of an object as a tuple."""
    match [f.name for f in fields]:
        case []:
            return lambda record: ()
        case [name]:
            return lambda record: (getattr(record, name),)
        case names:
            return attrgetter(*names)


def _comparison(fields: Fields) -> Callable[[Any, Any], Any]:
    values = _values(f for f in fields if f.compare)

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(fields: Fields) -> Callable[[Any], int]:
    values = _values(f for f in fields if (f.compare if f.hash is None else f.hash))
    return lambda self: hash(values(self))


def _text(fields: Fields) -> Callable[[Any], str]:
    shown = [f.name for f in fields if f.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return __repr__


def _own_fields(cls: type, kw_only: bool) -> dict[str, Field[Any]]:
    """Return the fields that a class itself declares; its attributes become their defaults."""
    declared = inspect.get_annotations(cls)
    given = {name: cls.__dict__[name] for name in declared if name in cls.__dict__}
    known = {"__module__": cls.__module__, "__annotations__": declared, "__doc__": NO_SIGNATURE}
    shell = type(cls.__name__, (), {**known, **given})
    fields: dict[str, Field[Any]] = getattr(dataclasses.dataclass(kw_only=kw_only, **PLAIN)(shell), FIELDS)
    for name in given:
        if name in shell.__dict__:
            setattr(cls, name, shell.__dict__[name])
        else:
            delattr(cls, name)
    return fields


@dataclasses.dataclass(frozen=True)
class _Frozen:
    """A frozen dataclass, for the parameters that the standard library finds in subclasses of its own."""


def _frozen(cls: C, eq: bool = True, kw_only: bool = False) -> C:
    inherited = [vars(base)[FIELDS] for base in reversed(cls.__mro__[1:]) if FIELDS in vars(base)]
    known: dict[str, Field[Any]] = {}
    for of_class in (*inherited, _own_fields(cls, kw_only)):
        known |= of_class
    setattr(cls, FIELDS, known)
    setattr(cls, PARAMS, getattr(_Frozen, PARAMS))
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {"__setattr__": _refuse_set, "__delattr__": _refuse_delete, "__repr__": _text(fields)}
    methods |= {"__init__": _Init(cls), "__match_args__": tuple(f.name for f in fields if f.init and not f.kw_only)}
    if eq:
        hashed = cls.__dict__.get("__hash__") is not None
        methods |= {"__eq__": _comparison(fields)} | ({} if hashed else {"__hash__": _hash(fields)})
    for name, made in methods.items():
        if name == "__hash__" or name not in cls.__dict__:
            setattr(cls, name, made)
    return cls


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False, **parameters):
        """Make a class a dataclass, as the standard library's `dataclass` does."""
        ours = frozen and parameters.keys() <= {"eq", "kw_only"}
        make = _frozen if ours else dataclasses.dataclass
        given = parameters if ours else {"frozen": frozen, **parameters}
        return make(cls, **given) if cls is not None else lambda made: make(made, **given)
