"""Scalars computed once per launch"""

from __future__ import annotations

from tilewave.ir.core import Axis, Block, Op, Value, Want
from tilewave.ir.ops.arith import Abs, Arithmetic, Cast, Comparison, Const, Div, Elementwise, Logic, Neg, Not, Select
from tilewave.ir.ops.control import Yield
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_BOTH, want_results, want_yields
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Scalar, Type
from tilewave.records import dataclass

__all__ = [
    "Launch",
    "LaunchOnly",
    "Reciprocal",
    "ReciprocalShift",
    "StreamKNumber",
    "StreamKSplits",
    "StreamKWorkgroups",
]


@dataclass(frozen=True)
class Launch(Computed):
    """Scalars that are uniform over all workgroups, computed by the host at the launch from the scalar arguments.

    It is the first op of a kernel, and its block uses only the kernel's indices.
    """

    levels = ON_BOTH
    gives = None

    body: Block

    def check(self, want: Want) -> None:
        want(not self.body.args, "its block takes nothing")
        strange = next((op.name for op in self.body.ops if not is_launched(op)), "")
        want(not strange, f"{strange} cannot be computed at the launch")
        results = [INDEX_SCALAR] * len(self.results)
        want_yields(self.body, results, want)
        want_results(self, want, *results)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


class LaunchOnly(Elementwise):
    """An op that only the host computes: after all passes it is inside a `launch`."""

    def takes(self, want: Want) -> None:
        for v in self.operands:
            want(v.type == INDEX_SCALAR, f"takes indices, not {v.type}")


@dataclass(frozen=True)
class Reciprocal(LaunchOnly):
    """The factor by which `divide_by` multiplies instead of dividing by x."""

    x: Value


@dataclass(frozen=True)
class ReciprocalShift(LaunchOnly):
    """The number of bits by which `divide_by` shifts the product."""

    x: Value


@dataclass(frozen=True)
class StreamKNumber(LaunchOnly):
    """How `workgroups` share the tiles of a partial last wave (stream-K); 0 where whole tiles are as fast."""

    left: Value
    steps: Value
    workgroups: int
    step_bytes: int
    hand_over_bytes: int

    def check(self, want: Want) -> None:
        super().check(want)
        want(min(self.workgroups, self.step_bytes) > 0 <= self.hand_over_bytes, "weighs what takes no time")


class StreamKWorkgroups(StreamKNumber):
    """The number of workgroups that have a range of steps each."""


class StreamKSplits(StreamKNumber):
    """The number of equal parts into which each tile is split."""


LAUNCHED: tuple[type[Op], ...] = (Const, Arithmetic, Comparison, Logic, Select, Cast, Neg, Abs, Not, LaunchOnly)


def is_launched(op: Op) -> bool:
    """Return whether the host can compute an op: an elementwise op on integers and booleans that are scalars."""
    if isinstance(op, Yield):
        return True
    return isinstance(op, LAUNCHED) and not isinstance(op, Div) and all(map(_is_number, _types(op)))


def _types(op: Op) -> list[Type]:
    return [v.type for v in (*op.operands, *op.results)]


def _is_number(kind: Type) -> bool:
    return isinstance(kind, Scalar) and kind.dtype in (INDEX, BOOL)


OPS: tuple[type[Op], ...] = (Launch, Reciprocal, ReciprocalShift, StreamKWorkgroups, StreamKSplits)
