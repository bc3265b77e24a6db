"""JSON ↔ frozen dataclasses, with the type of each field checked: the contents of kernel files and of the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tilewave.errors import SavedKernelError, here
from tilewave.files import parse_json

HEAD = "kernel.json"
AGAIN = "copy it again, or compile the kernel and save it again: compiled.save(path)"
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """A JSON object of `kernel.json`, whose fields are read with a check of their type."""

    path: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        return str(self._of(str, name))

    def number(self, name: str) -> int:
        return _natural(self._of(int, name), self, name)

    def extent(self, name: str) -> int | str:
        """Return a number, or the name of one that is known at the launch."""
        return self.text(name) if isinstance(self.fields.get(name), str) else self.number(name)

    def axis(self, name: str) -> int:
        """Return a number, or -1 for none."""
        return int(self._of(int, name))

    def record(self, name: str) -> Record:
        return Record(self.path, self._of(dict, name))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(x if isinstance(x, str) else self.fail(name) for x in self._of(list, name))

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(_natural(x, self, name) for x in self._of(list, name))

    def records(self, name: str) -> tuple[Record, ...]:
        found = self._of(list, name)
        return tuple(Record(self.path, x if isinstance(x, dict) else self.fail(name)) for x in found)

    def truth(self, name: str) -> bool:
        return bool(self._of(bool, name))

    def _of(self, kind: type, name: str) -> Any:
        found = self.fields.get(name)
        return found if type(found) is kind else self.fail(name)

    def fail(self, name: str) -> Any:
        raise SavedKernelError(f"{self.path}: {HEAD} has no valid {name}", loc=here(), remedy=AGAIN)


def _natural(x: object, record: Record, name: str) -> int:
    return x if type(x) is int and 0 <= x < 1 << 63 else int(record.fail(name))


# Dataclasses --------------------------------------------------------------------------------------------------------


def restored(kind: type[T], record: Record, **given: Any) -> T:
    """Return the dataclass that `dataclasses.asdict` made a record of; `given` are fields that are stored elsewhere."""
    key: Any = kind  # a cached function takes no type variable
    hints = _hints(key)
    kept = [f for f in fields(kind) if f.name not in given]  # type: ignore[arg-type]
    return kind(**given, **{f.name: _field(f, hints[f.name], record) for f in kept})


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _field(f: Field[Any], kind: Any, record: Record) -> Any:
    if kind is str:
        return record.text(f.name)
    if kind is bool:
        return record.truth(f.name)
    if kind is int:
        may_be_none = f.default is not MISSING and f.default < 0
        return record.axis(f.name) if may_be_none else record.number(f.name)
    if kind == int | str:
        return record.extent(f.name)
    if is_dataclass(kind):
        return restored(kind, record.record(f.name))  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        return _several(f.name, get_args(kind), record)
    raise NotImplementedError(f"{f.name}: no record holds a {kind}")


def _several(name: str, kinds: tuple[Any, ...], record: Record) -> tuple[Any, ...]:
    match kinds:
        case (kind, end) if end is Ellipsis and is_dataclass(kind):
            return tuple(restored(kind, one) for one in record.records(name))  # type: ignore[arg-type]
        case (kind, end) if end is Ellipsis and kind is str:
            return record.texts(name)
        case _ if set(kinds) <= {int, Ellipsis}:
            return record.numbers(name)
        case _:
            raise NotImplementedError(f"{name}: no record holds a tuple of {kinds}")


# The cache ----------------------------------------------------------------------------------------------------------


def packed(about: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    """Return a line of JSON, then the parts."""
    head = json.dumps({**about, "bytes_of_parts": [len(part) for part in parts]})
    return b"".join([head.encode(), b"\n", *parts])


def unpacked(data: bytes) -> tuple[Record, tuple[bytes, ...]]:
    """Return what `packed` was given; a SavedKernelError for anything else."""
    head, _, rest = data.partition(b"\n")
    try:
        found = parse_json(head)
    except ValueError:
        found = None
    record = Record("the cache", found if isinstance(found, dict) else {})
    parts = []
    for size in record.numbers("bytes_of_parts"):
        parts.append(rest[:size])
        rest = rest[size:]
    return record, tuple(parts)
