"""Def-use index: which op defines a value, and which ops use it.

    %x = read(%a, [%m, %k])         kernel.defs[%x] is the read
    %z = mma(%x, %y, %acc)          kernel.users[%x] is (mma,)
    yield([%z])                     kernel.users[%z] is (yield,)

A block never changes, so the index is built once, at the first question, and all passes and analyses share it. It is
no field: blocks and kernels are compared, hashed, printed and pickled without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewave.forks import cached_property

if TYPE_CHECKING:
    from tilewave.ir.core import Op, Value


class Indexed:
    """What a block knows of its ops and of those in blocks inside it; `Block` inherits it."""

    if TYPE_CHECKING:
        ops: tuple[Op, ...]

    @cached_property
    def defs(self) -> Mapping[Value, Op]:
        """The op that defines each value, in program order; arguments of blocks are not in it."""
        found: dict[Value, Op] = {}
        _define(self.ops, found)
        return found

    @cached_property
    def users(self) -> Mapping[Value, tuple[Op, ...]]:
        """The ops that use each value, in program order and each once; () for a value that no op uses."""
        found: dict[Value, list[Op]] = {}
        _use(self.ops, found)
        return _Users((v, tuple(ops)) for v, ops in found.items())

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in self.__dict__.items() if name not in ("defs", "users")}


class _Users(dict["Value", "tuple[Op, ...]"]):
    def __missing__(self, v: Value) -> tuple[Op, ...]:
        return ()


def _define(ops: tuple[Op, ...], found: dict[Value, Op]) -> None:
    for op in ops:
        for v in op.results:
            found[v] = op
        for block in op.blocks:
            _define(block.ops, found)


def _use(ops: tuple[Op, ...], found: dict[Value, list[Op]]) -> None:
    for op in ops:
        for v in dict.fromkeys(op.operands):
            found.setdefault(v, []).append(op)
        for block in op.blocks:
            _use(block.ops, found)
