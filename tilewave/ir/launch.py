"""Dynamic sizes, known at the launch: what the host computes from them, and kernels with numbers in their place.

A kernel with dynamic sizes names them in the types of its arrays, and names its number of workgroups:

    kernel @gemm {workgroups = tiles} (%a: memory<{M}x{K}xf16, global>, …, %M: index, %N: index, %K: index) {
      %tiles, %steps = launch() : index, index do () {
        …                                                  arithmetic of the host, once per launch
        yield(%rows_by_cols, %k_steps)
      }
      %w = workgroup() : index
      …

`at_launch` moves what depends on nothing else there, `HostLaunch` computes it, and `bind` replaces all of it by
numbers: readers of a bound kernel (a schedule, an interpreter, the simulator) need no support for dynamic sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.host_program import Number, chosen, larger, quotient, remainder, smaller
from tilewave.ir.once import once
from tilewave.ir.ops import (
    Abs,
    Add,
    And,
    Cast,
    Const,
    Equal,
    FloorDiv,
    Launch,
    Less,
    LessEqual,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    NotEqual,
    Or,
    Reciprocal,
    ReciprocalShift,
    Select,
    StreamKSplits,
    StreamKWorkgroups,
    Sub,
    TileOf,
    Xor,
    Yield,
)
from tilewave.ir.ops.launch import StreamKNumber, is_launched
from tilewave.ir.rewrite import named_values, names, rename_block, rewrite_block, substitute, walk
from tilewave.ir.stream_k import equal_splits, reciprocal, reciprocal_shift, stream_k_workgroups
from tilewave.ir.types import INDEX_SCALAR, Memory, Scalar, Type

Numbers = Mapping[str, Any]
"""The scalar arguments of a call, by name."""

MOST_OPEN = 1 << 30
"""The largest dynamic size: positions, and what is added to them, then fit 32 bits."""


def numbers_of(kernel: Kernel) -> tuple[Value, ...]:
    """Return the scalar arguments of a kernel: its indices, and parameters of other dtypes."""
    return tuple(v for v in kernel.body.args if isinstance(v.type, Scalar))


def open_sizes(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of the indices that are sizes of arrays, in the order of the kernel's arguments."""
    named = {extent for v in kernel.body.args if isinstance(v.type, Memory) for extent in v.type.extents}
    return tuple(v.name for v in kernel.body.args if v.type == INDEX_SCALAR and v.name in named)


def limits_of(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """Return the least and the largest value of each dynamic size."""
    said = {name: (least, most) for name, least, most in kernel.limits}
    return {name: said.get(name, (0, MOST_OPEN)) for name in open_sizes(kernel)}


def is_open(kernel: Kernel) -> bool:
    """Return whether the kernel has dynamic sizes or a dynamic number of workgroups."""
    return launch_of(kernel) is not None or isinstance(kernel.workgroups, str) or bool(open_sizes(kernel))


def launch_of(kernel: Kernel) -> Launch | None:
    first = kernel.body.ops[0] if kernel.body.ops else None
    return first if isinstance(first, Launch) else None


def known_at_launch(kernel: Kernel) -> set[Value]:
    """Return the indices that are uniform over all workgroups of a kernel with dynamic sizes."""
    launch = launch_of(kernel)
    sizes = open_sizes(kernel)
    return {v for v in kernel.body.args if v.name in sizes} | set(launch.results if launch else ())


def launch_and_rest(body: Block) -> tuple[tuple[Op, ...], Block]:
    """Return the `launch` op, if a body begins with one, and the body without it."""
    launches = tuple(op for op in body.ops[:1] if isinstance(op, Launch))
    return launches, replace(body, ops=body.ops[len(launches) :])


def in_front(ops: Sequence[Op], body: Block) -> Block:
    """Return the body with `ops` inserted at its start, but after the `launch` op, which stays first."""
    launch, rest = launch_and_rest(body)
    return replace(body, ops=(*launch, *ops, *rest.ops))


# moving code into the launch -----------------------------------------------------------------------------------------


def at_launch(kernel: Kernel) -> Kernel:
    """Return the kernel with everything that depends only on the call's indices moved into the launch."""
    return _Mover(kernel).moved() if is_open(kernel) else kernel


class _Mover:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.taken = kernel, names(kernel)
        self.ops: list[Op] = []
        self.inside: dict[Value, Value] = {v: v for v in kernel.body.args if v.type == INDEX_SCALAR}
        """For each value known at the launch, the value inside the launch's block."""
        self.constants: dict[Value, Const] = {}
        launch = launch_of(kernel)
        if launch is not None:
            *self.ops, ends = launch.body.ops
            assert isinstance(ends, Yield)
            self.inside.update(zip(launch.results, ends.values, strict=True))

    def moved(self) -> Kernel:
        body = rewrite_block(launch_and_rest(self.kernel.body)[1], self.move)
        kernel = replace(self.kernel, body=body)
        wanted = {v for op in walk(body) for v in op.operands}
        called = named_values(kernel)
        results = tuple(v for v in self.inside if self.is_result(v) and (v in wanted or v.name in called))
        if not results:
            return kernel
        loc = self.kernel.body.ops[0].loc
        ends = Yield(tuple(self.inside[v] for v in results), loc=loc)
        launch = Launch(_pruned(Block((), (*self.ops, ends))), results=results, loc=loc)
        return replace(kernel, body=replace(body, ops=(launch, *body.ops)))

    def is_result(self, v: Value) -> bool:
        """Return whether the body gets a value from the launch; constants, arguments and booleans it has itself."""
        return v.type == INDEX_SCALAR and v not in self.constants and v not in self.kernel.body.args

    def move(self, op: Op) -> Sequence[Op] | None:
        if isinstance(op, Const):
            self.constants[op.result] = op
            return None
        if not is_launched(op) or isinstance(op, Yield) or not op.operands:
            return None
        if not any(v in self.inside for v in op.operands):
            return None
        if not all(v in self.inside or v in self.constants for v in op.operands):
            return None
        new = self.fresh(op.result)
        self.ops.append(replace(substitute(op, {v: self.known(v) for v in op.operands}), results=(new,)))
        self.inside[op.result] = new
        return None if op.result.type != INDEX_SCALAR else []  # booleans are rematerialized, as a launch yields indices

    def known(self, v: Value) -> Value:
        if v not in self.inside:
            new = self.fresh(v)
            self.ops.append(replace(self.constants[v], results=(new,)))
            self.inside[v] = new
        return self.inside[v]

    def fresh(self, v: Value) -> Value:
        name, count = f"{v.name}_at_launch", 0
        while name in self.taken:
            count += 1
            name = f"{v.name}_at_launch_{count}"
        self.taken.add(name)
        return Value(name, v.type)


def _pruned(block: Block) -> Block:
    """Return the block after DCE."""
    used: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(block.ops):
        if isinstance(op, Yield) or not used.isdisjoint(op.results):
            used.update(op.operands)
            kept.append(op)
    return replace(block, ops=tuple(reversed(kept)))


# computing a launch --------------------------------------------------------------------------------------------------


MEANINGS: dict[type[Op], Callable[..., Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: quotient,
    Mod: remainder,
    Xor: operator.xor,
    Min: smaller,
    Max: larger,
    Less: operator.lt,
    LessEqual: operator.le,
    Equal: operator.eq,
    NotEqual: operator.ne,
    And: operator.and_,
    Or: operator.or_,
    Not: lambda x: x == 0,
    Neg: operator.neg,
    Abs: lambda x: larger(x, -x),
    Cast: lambda x: x + 0,
    Select: chosen,
    Reciprocal: reciprocal,
    ReciprocalShift: reciprocal_shift,
    StreamKWorkgroups: stream_k_workgroups,
    StreamKSplits: equal_splits,
}
"""The function of each op on Python integers of any size and on recorded numbers; the op's attributes are passed after
its operands."""


class LaunchNumbers(NamedTuple):
    """The results of a launch."""

    workgroups: Number
    numbers: tuple[Any, ...]
    """The wanted numbers; for a `HostLaunch`, the scalar arguments of the call, then the results of the launch."""


class LaunchSteps:
    """A kernel's launch as steps: from the call's scalar arguments to workgroups and the wanted scalars."""

    def __init__(self, kernel: Kernel, given: Sequence[str], wanted: Sequence[str]) -> None:
        """`given` has the names of the call's scalar arguments, in order."""
        places = {v: given.index(v.name) for v in numbers_of(kernel) if v.name in given}
        named = {**{v.name: v for v in places}, **_results(kernel)}
        counted = [kernel.workgroups] if isinstance(kernel.workgroups, str) else []
        returned = [named[name] for name in (*counted, *wanted)]
        launch = launch_of(kernel)
        ops = _pruned(Block((), (*launch.body.ops[:-1], Yield(tuple(returned))))).ops[:-1] if launch else ()
        self._steps = []
        for place, op in enumerate(ops, len(given)):
            self._steps.append((_meaning(op), [places[v] for v in op.operands], _own_numbers(op)))
            places[op.result] = place
        self._returned = [places[v] for v in returned]
        self._workgroups: list[Number] = [kernel.workgroups] if isinstance(kernel.workgroups, int) else []

    def __call__(self, numbers: Sequence[Number]) -> LaunchNumbers:
        found = [*numbers]
        for meaning, places, own in self._steps:
            found.append(meaning(*[found[place] for place in places], *own))
        returned = [*self._workgroups, *[found[place] for place in self._returned]]
        return LaunchNumbers(returned[0], tuple(returned[1:]))


def _meaning(op: Op) -> Callable[..., Any]:
    return int if isinstance(op, Const) else MEANINGS[type(op)]


def _own_numbers(op: Op) -> tuple[int, ...]:
    """Return the attributes of an op that are passed after its operands."""
    match op:
        case Const(value):
            return (int(value),)
        case StreamKNumber(workgroups=workgroups, step_bytes=step, hand_over_bytes=hand_over):
            return workgroups, step, hand_over
        case _:
            return ()


def _results(kernel: Kernel) -> dict[str, Value]:
    """Return the values that a launch yields, by the names of its results."""
    launch = launch_of(kernel)
    if launch is None:
        return {}
    return {r.name: v for r, v in zip(launch.results, launch.body.yielded, strict=True)}


class HostLaunch:
    """Computes a kernel's launch on the host."""

    def __init__(self, kernel: Kernel) -> None:
        given, launch = tuple(v.name for v in numbers_of(kernel)), launch_of(kernel)
        self.names = (*given, *(v.name for v in (launch.results if launch else ())))
        """Names of all scalars that a launch passes to the kernel, in order."""
        self.steps = LaunchSteps(kernel, given, self.names)
        self._last: tuple[tuple[Any, ...] | None, LaunchNumbers] = None, LaunchNumbers(0, ())

    @staticmethod
    def of(kernel: Kernel) -> HostLaunch:
        """Return the kernel's only HostLaunch, made once, so that its last result is cached for all callers."""
        return _host_launch(kernel)

    def __call__(self, numbers: Sequence[Any]) -> LaunchNumbers:
        """Compute a launch from the scalar arguments in the kernel's order; all but indices pass unchanged."""
        key = tuple(numbers)
        asked, answer = self._last
        if asked is None or asked != key:
            answer = self.steps(key)
            self._last = key, answer
        return answer


Picked = Callable[[Sequence[Any]], tuple[Any, ...]]


def picked(places: Sequence[int]) -> Picked:
    """Return a function that gives the values at these places of a list."""
    match places:
        case []:
            return lambda values: ()
        case [place]:
            return lambda values: (values[place],)
        case _:
            return operator.itemgetter(*places)


def skeleton(kernel: Kernel) -> Kernel:
    """Return a kernel with only the scalar arguments and the launch, all that launching its machine code needs."""
    launch = launch_of(kernel)
    return Kernel(kernel.name, Block(numbers_of(kernel), (launch,) if launch else ()), kernel.workgroups)


def bind(kernel: Kernel, numbers: Numbers) -> Kernel:
    """Return the kernel of a call: indices, and all that follows from them, replaced by `numbers`."""
    if not is_open(kernel):
        return kernel
    host, given = HostLaunch.of(kernel), numbers_of(kernel)
    found = host([numbers[v.name] for v in given])
    values = dict(zip(host.names, found.numbers, strict=True))
    sizes = {*open_sizes(kernel)} | (set(values) - {v.name for v in given})
    known = {name: values[name] for name in sizes}
    body = _Bound(values).block(launch_and_rest(kernel.body)[1])
    args = tuple(v for v in body.args if v.name not in known)
    constants = tuple(Const(n, results=(Value(name, INDEX_SCALAR),)) for name, n in known.items())
    return replace(kernel, body=Block(args, (*constants, *body.ops)), workgroups=found.workgroups, limits=())


class _Bound:
    """Replaces names by numbers in types, wherever a memory is defined or used."""

    def __init__(self, values: Numbers) -> None:
        self.values = values

    def block(self, block: Block) -> Block:
        new = {v: Value(v.name, self.memory(v.type)) for v in self.open(block)}
        return rewrite_block(rename_block(block, new), lambda op: [self.op(op)])

    def open(self, block: Block) -> Iterator[Value]:
        for v in (*block.args, *(v for op in walk(block) for v in op.results)):
            if isinstance(v.type, Memory) and v.type.is_open:
                yield v

    def memory(self, kind: Type) -> Memory:
        assert isinstance(kind, Memory)
        extents = tuple(self.values[e] if isinstance(e, str) else e for e in kind.extents)
        return replace(kind, extents=extents)

    def op(self, op: Op) -> Op:
        return op.bound([self.values[v.name] for v in op.sides]) if isinstance(op, TileOf) and op.sides else op


_host_launch = once(HostLaunch)
