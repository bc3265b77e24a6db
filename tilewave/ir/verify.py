"""What every kernel satisfies, before and after every pass: scoping, types, and the ops of its level.

Each op declares its operands, results and memories (`core.Op`); the verifier checks them op by op.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from tilewave.errors import NOWHERE, Loc, TilewaveError
from tilewave.ir.core import Block, Kernel, Op, Value, Want
from tilewave.ir.launch import open_sizes
from tilewave.ir.ops import Launch, Loop, Yield
from tilewave.ir.rewrite import named_values, walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.ir.verify_kinds import check_argument, check_axes, check_kernel, check_places, check_splits, check_type

SOUND = "sound"
"""The attribute of a verified op or body: the members of a cluster, and the lanes of a wave, for which it is valid."""


class VerifyError(TilewaveError):
    """An invalid kernel."""


def verify(kernel: Kernel) -> Kernel:
    """Return the kernel if it is valid; raise an error that names the op and its line if not."""
    loc = kernel.body.ops[0].loc if kernel.body.ops else NOWHERE
    for v in kernel.body.args:
        check_argument(v.type, lambda holds, why, v=v: _want_of(f"{kernel.name}: {v}", loc, holds, why))  # type: ignore[misc]
    _check_named(kernel)
    verify_part(kernel)
    sizes = open_sizes(kernel) if kernel.limits else ()
    for name, _, _ in kernel.limits:
        _want_of(kernel.name, NOWHERE, name in sizes, f"limits name %{name}, which is not a dynamic size")
    return kernel


def _check_named(kernel: Kernel) -> None:
    """Check that names in the kernel's attributes and in the types of its memories are known at the launch."""
    first = kernel.body.ops[0] if kernel.body.ops else None
    indices = [v for v in kernel.body.args if v.type == INDEX_SCALAR]
    known = {v.name for v in (*indices, *(first.results if isinstance(first, Launch) else ()))}
    for name in sorted(named_values(kernel) - known):
        _want_of(kernel.name, NOWHERE, False, f"%{name} is no index argument, and no result of its launch")
    for op in walk(kernel.body):
        if isinstance(op, Launch) and op is not first:
            _fail(op, "must be the first op of a kernel")


def verify_part(kernel: Kernel) -> Kernel:
    """Verify a slice of a kernel, whose arguments may be results of ops outside of it."""
    check_kernel(kernel, lambda holds, why: _want_of(kernel.name, NOWHERE, holds, why))
    asked = (kernel.level, kernel.cluster, kernel.lanes)
    if vars(kernel.body).get(SOUND) != asked:  # a pass may change the kernel's attributes alone, or nothing
        _Verifier(kernel).body(kernel.body)
        vars(kernel.body)[SOUND] = asked
    return kernel


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.level, self.members_and_lanes = kernel.level, (kernel.cluster, kernel.lanes)
        self.defined: set[str] = set()
        self.visible: dict[str, Value] = {}
        self.under_way: set[str] = set()
        self.handed_on: tuple[Value, ...] = ()
        """Values that the current loop yields while they are pending."""

    def body(self, block: Block) -> None:
        """Verify the body of a kernel, which yields nothing."""
        self.block(block, Yield(()))
        for op in block.ops[-1:]:
            _want(op, not op.ends_blocks, "nothing takes what a kernel's own block yields")

    def block(self, block: Block, owner: Op) -> None:
        around = self.visible.copy()
        for v in block.args:
            check_type(v.type, lambda holds, why: _want(owner, holds, why))
            self.define(v, owner)
        for position, op in enumerate(block.ops):
            if self.level not in op.levels:
                _fail(op, f"the {self.level} level has no such op")
            if op.ends_blocks and position != len(block.ops) - 1:
                _fail(op, "nothing may follow it")
            self.op(op)
        self.visible = around

    def op(self, op: Op) -> None:
        visible, under_way = self.visible, self.under_way
        for v in op.operands:
            name = v.name
            found = visible.get(name)
            if found is not v and found != v:  # most are the same object, and comparing is slower
                _fail(op, f"{v}: {v.type} is not defined here")
            if name in under_way and not op.waits and v not in (*op.goes_on_with, *self.handed_on):
                _fail(op, f"{v} is in flight, and must be waited for first")
        kept = op.__dict__
        if kept.get(SOUND) != self.members_and_lanes:  # cached: most passes keep most ops, and ops are immutable
            want = partial(_want, op)
            if SOUND not in kept:
                _check(op, want)
            op.check_cluster(self.members_and_lanes[0], want)
            op.check_wave(self.members_and_lanes[1], want)
            kept[SOUND] = self.members_and_lanes
        if op.blocks:
            self.regions(op)
        for v in op.results:
            self.define(v, op)
        if op.is_under_way:
            self.under_way.update(v.name for v in op.results)

    def regions(self, op: Op) -> None:
        carried = _under_way_from_step_to_step(op)
        self.under_way.update(v.name for those in carried for v in those)
        for inner in op.blocks:
            outside, self.handed_on = self.handed_on, tuple(handed for _, handed, _ in carried)
            self.block(inner, op)
            self.handed_on = outside

    def define(self, v: Value, op: Op) -> None:
        if v.name in self.defined:
            _fail(op, f"{v} is already defined")
        self.defined.add(v.name)
        self.visible[v.name] = v


def _check(op: Op, want: Want) -> None:
    """Verify an op by itself, whatever its cluster and its waves."""
    check_splits(op, want)
    op.check(want)
    check_places(op, want)
    check_axes(op, want)


def _under_way_from_step_to_step(op: Op) -> list[tuple[Value, Value, Value]]:
    """Return values that a loop carries while pending: the argument, what is yielded, and the result."""
    if not isinstance(op, Loop):
        return []
    begun = {v for inner in op.body.ops if inner.is_under_way for v in inner.results}
    ends = op.body.ops[-1].operands if op.body.ops else ()
    return [those for those in zip(op.body.args[1:], ends, op.results, strict=False) if those[1] in begun]


def _want(op: Op, holds: bool, why: str) -> None:
    if not holds:
        _fail(op, why)


def _want_of(what: str, loc: Loc, holds: bool, why: str) -> None:
    if not holds:
        raise VerifyError(f"{what}: {why}", loc=loc)


def _fail(op: Op, why: str) -> NoReturn:
    raise VerifyError(f"{op.name}: {why}", loc=op.loc)
