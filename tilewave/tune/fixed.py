"""Symbols whose values the author gives, and which therefore cannot be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.errors import TilewaveError
from tilewave.lang.kernel import WaveKernel, unsaid_sizes
from tilewave.lang.symbols import Symbol
from tilewave.tune.space import cut_by, said_of, tunable
from tilewave.tune.tune import Tune


def fixed_tiles(kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
    """Return the values of the symbols of tile sizes, wave parts and splits that `subs` or the kernel give."""
    said, sizes = said_of(kernel, subs, ()), unsaid_sizes(kernel, {})
    return {s: said[s] for s in cut_by(kernel) if s in said and s not in sizes}


def want_tunable(kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> None:
    """Raise an error for a kernel all of whose tiles are given."""
    if tunable(kernel, subs, ()):
        return
    fixed = fixed_tiles(kernel, subs)
    if not fixed:
        what = f"nothing to tune: {kernel.name} gives all of its tiles"
        raise TilewaveError(what, remedy="use a symbol as a tile size: WorkgroupConstraint(M, BLOCK_M, 0)")
    raise TilewaveError(f"nothing to tune: {kernel.name} fixes {_text(fixed)}", remedy=_removing([*fixed]))


def want_free(tune: Tune | None, kernel: WaveKernel, subs: Mapping[Symbol, Any]) -> None:
    """Raise an error for a `Tune` that names symbols with a value in `subs` or the kernel."""
    if tune is None:
        return
    named = {*tune.names}
    fixed = {s: value for s, value in fixed_tiles(kernel, subs).items() if s.name in named}
    if fixed:
        what = f"Tune: nothing to tune: {kernel.name} fixes {_text(fixed)}"
        raise TilewaveError(what, loc=tune.loc, remedy=f"{_removing([*fixed])}, or from Tune")


def _text(values: Mapping[Symbol, Any]) -> str:
    return ", ".join(f"{s}={value}" for s, value in values.items())


def _removing(fixed: Sequence[Symbol]) -> str:
    return f"remove {', '.join(map(str, fixed))} from subs"
