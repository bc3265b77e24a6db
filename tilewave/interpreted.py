"""Calls that run without their device: in the interpreter, on whole tiles or lanes, and in the emulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewave.analysis.contracts import want_kept
from tilewave.arguments import KernelArguments
from tilewave.backend.protocol import Build, Emulated
from tilewave.backend.targets import TARGETS, quoted
from tilewave.errors import CallError, TargetError, here
from tilewave.forks import IMPORTING
from tilewave.interp.tiles import interpret
from tilewave.ir.core import Kernel
from tilewave.ir.launch import bind
from tilewave.ir.ops import TurnOp
from tilewave.lang.kernel import arguments
from tilewave.pipeline.runner import Step
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.sizes import SizedCall

if TYPE_CHECKING:
    from tilewave.interp.exact_check import PassCheck

ORDERS = {"tile": ("launch", "shuffled"), "lane": ("in turn", "backwards", "random")}
"""The levels at which a kernel can be interpreted, and the orders of each."""


def order_of(kernel: str, level: str, order: str) -> str:
    """Return the order of workgroups or waves at a level, by default its first; an error for unknown ones."""
    if level not in ORDERS:
        raise CallError(f"{kernel}: the levels are {' and '.join(ORDERS)}, not {level!r}", loc=here())
    order = order or ORDERS[level][0]
    if order not in ORDERS[level]:
        known = " or ".join(map(repr, ORDERS[level]))
        raise CallError(f"{kernel}: at the {level} level the order is {known}, not {order!r}", loc=here())
    return order


def interpret_tiles(
    called: KernelArguments,
    arrays: Sequence[Any],
    values: Mapping[str, Any],
    shuffled_by: int | None,
    observed: Kernel | None,
    only: int | None = None,
) -> None:
    """Interpret the kernel on whole tiles, its workgroups in their order or shuffled by a seed.

    `observed` is the kernel with what its author asserts and logs, if it has that; `only` is the one workgroup that is
    run, unless workgroups wait for each other.
    """
    sized, views = _checked(called, arrays, values)
    kernel = bind(observed or called.kernel, sized.values)
    workgroups = list(range(kernel.workgroup_count))
    if only is not None and not any(isinstance(op, TurnOp) for op in kernel.body.all_ops):
        workgroups = [only]
    if shuffled_by is not None:
        random.Random(shuffled_by).shuffle(workgroups)
    interpret(kernel, [v.numpy() for v in views], sized.values, workgroups)


def interpret_build(
    called: KernelArguments,
    build: Build,
    target: str,
    arrays: Sequence[Any],
    values: Mapping[str, Any],
    order: str,
    seed: int,
) -> None:
    """Interpret a build lane by lane."""
    with IMPORTING:
        from tilewave.interp.lanes import interpret_lanes  # noqa: PLC0415  few ask for it, and it is large

    if build.lanes is None:
        first = next(target for target in TARGETS.values() if target.has_lanes)
        raise TargetError(
            f"{called.name}: lanes exist on GPUs, and it was compiled for {target}",
            loc=here(),
            remedy=f'compile it with target="{first.name}"; no GPU is needed',
        )
    sized, views = _checked(called, arrays, values)
    for launch in build.lane_launches(views, sized.values):
        kernel = bind(launch.kernel, launch.values)
        interpret_lanes(kernel, [v.numpy() for v in launch.views], launch.values, order, seed)


def checked_passes(
    called: KernelArguments,
    traced: Kernel,
    steps: Callable[[], Sequence[Step]],
    arrays: Sequence[Any],
    values: Mapping[str, Any],
) -> PassCheck:
    """Interpret the kernel after every pass with exact arithmetic, and return where the results differ."""
    with IMPORTING:
        from tilewave.interp.exact_check import check_passes  # noqa: PLC0415  few ask for it, and it is large

    sized, views = _checked(called, arrays, values)
    held = {v.name: view.numpy() for v, view in zip(arguments(called.kernel)[0], views, strict=True)}
    return check_passes(traced, [(step.name, step.after) for step in steps()], held, sized.values)


def emulate_build(
    called: KernelArguments, emulated: Emulated, arrays: Sequence[Any], values: Mapping[str, Any], *how: Any
) -> Any:
    """Run machine code in the emulator; `how` are the order, the seed, what is checked, and the limit."""
    sized, views = _checked(called, arrays, values)
    return emulated.emulate(views, sized.numbers, *how)


def emulated_code(kernel: str, build: Build, target: str) -> Emulated:
    """Return the machine code of a build that can be emulated; an error where there is none."""
    found = build.emulated
    if found is None:
        able = quoted(target for target in TARGETS.values() if target.is_emulated)
        what = f"{kernel}: there is no machine code to emulate for {target}"
        raise TargetError(what, loc=here(), remedy=f"compile it with target={able}")
    return found


def _checked(
    called: KernelArguments, arrays: Sequence[Any], values: Mapping[str, Any]
) -> tuple[SizedCall, tuple[ArrayView, ...]]:
    """Return a call's sizes, for which the kernel is right, and its arrays."""
    sized = called.sizes.of_call(arrays, values)
    views = called.checked(arrays, sized)
    called.judged(sized)
    if called.kernel.contracts:
        want_kept(called.kernel, [v.numpy() for v in views], sized.values, here())
    return sized, views
