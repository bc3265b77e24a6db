"""Def-use index: which op defines a value, and which ops use it.

    %x = read(%a, [%m, %k])         kernel.defs[%x] is the read
    %z = mma(%x, %y, %acc)          kernel.users[%x] is (mma,)
    yield([%z])                     kernel.users[%z] is (yield,)

A block never changes, so it builds its index once, at the first question (`Block.defs`, `Block.users` in `ir/core.py`),
and all passes and analyses share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Holds(Protocol):
    """An op as this index sees it: the values that it defines and uses, and its regions."""

    @property
    def results(self) -> Sequence[Any]: ...
    @property
    def operands(self) -> Sequence[Any]: ...
    @property
    def blocks(self) -> Sequence[Any]: ...


V = TypeVar("V", bound=Hashable)
OpT = TypeVar("OpT", bound=Holds)


class Users(dict[V, tuple[OpT, ...]], Generic[V, OpT]):
    """The ops that use each value, in program order and each once; () for a value that no op uses."""

    def __missing__(self, v: V) -> tuple[OpT, ...]:
        return ()


def definitions(ops: Iterable[OpT]) -> Mapping[Any, OpT]:
    """Return the op that defines each value, in program order, also inside regions; arguments have none."""
    found: dict[Any, OpT] = {}
    _define(ops, found)
    return found


def uses(ops: Iterable[OpT]) -> Users[Any, OpT]:
    """Return the ops that use each value, also inside regions."""
    found: dict[Any, list[OpT]] = {}
    _use(ops, found)
    return Users((v, tuple(users)) for v, users in found.items())


def _define(ops: Iterable[OpT], found: dict[Any, OpT]) -> None:
    for op in ops:
        for v in op.results:
            found[v] = op
        for block in op.blocks:
            _define(block.ops, found)


def _use(ops: Iterable[OpT], found: dict[Any, list[OpT]]) -> None:
    for op in ops:
        for v in dict.fromkeys(op.operands):
            found.setdefault(v, []).append(op)
        for block in op.blocks:
            _use(block.ops, found)


def uses_through(kind: type[OpT], v: V, users: Mapping[V, Sequence[Any]]) -> Iterator[tuple[V, Any]]:
    """Yield each use of a value, and of the results of ops of a kind that it leads to: the value, and the op.

    Each value is visited once: paths between two values may be many.
    """
    waiting, reached = [v], {v}
    while waiting:
        used = waiting.pop()
        for op in users[used]:
            yield used, op
            new = [made for made in op.results if isinstance(op, kind) and made not in reached]
            reached.update(new)
            waiting += new
