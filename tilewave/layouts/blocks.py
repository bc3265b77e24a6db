"""Layouts of tiles that repeat the layout of one block, as `fragments.py` has them for matrix instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewave.layouts.formulas import Layout, Term
from tilewave.layouts.linear import LinearLayout
from tilewave.records import dataclass


@dataclass(frozen=True)
class _Run:
    """Bits of a number, from `first` on, that move along one axis, each twice as far as the one before."""

    first: int
    count: int
    axis: int
    step: int


@lru_cache(maxsize=1024)  # the interpreter calls it for every product
def tiled(
    one: LinearLayout,
    shape: tuple[int, ...],
    own: tuple[int, int],
    starts: tuple[tuple[Term, ...], ...],
    least: int,
) -> Layout:
    """Return a layout of blocks that fill a wave's part, which begins at `starts`; `least` register axes per block."""
    *batch, _, _ = shape
    inside = register_axes(one, least)
    blocks = tuple(extent // size for extent, size in zip(own, one.shape, strict=True))
    moves = [*enumerate(one.shape), *((run.axis, run.step) for run in inside)]
    lanes = [_terms("lane", one.lanes, one.shape, axis) for axis in (0, 1)]
    waves = [_terms("wave", one.waves, one.shape, axis) for axis in (0, 1)]
    axes = tuple(start + wave + lane for start, wave, lane in zip(starts, waves, lanes, strict=True))
    return Layout(
        (*batch, *blocks, *(1 << run.count for run in inside)),
        (*_batch_steps(len(batch), len(shape)), *_steps(len(shape), [(len(batch) + axis, far) for axis, far in moves])),
        (*[()] * len(batch), *axes),
    )


def register_axes(one: LinearLayout, least: int) -> list[_Run]:
    """Return the register axes inside a block, the nearest neighbours last; at least `least`, some of one register."""
    found = _runs(one.registers, one.shape)[::-1]
    while len(found) < least:
        along = found[-1].axis if found else 1
        found.insert(0, _Run(0, 0, along, one.shape[along] if found else 1))
    return found


def _runs(columns: Sequence[int], shape: tuple[int, ...]) -> list[_Run]:
    """Return runs of neighbouring bits; a bit that makes copies moves nowhere and is in no run."""
    found: list[_Run] = []
    for i, column in enumerate(columns):
        if not column:
            continue
        assert column & (column - 1) == 0, f"bit {i} moves along two axes at once"
        axis = int(column < shape[1])
        step = column if axis else column // shape[1]
        last = found[-1] if found else None
        if last and (last.axis, last.first + last.count, last.step << last.count) == (axis, i, step):
            found[-1] = replace(last, count=last.count + 1)
        else:
            found.append(_Run(i, 1, axis, step))
    return found


def _terms(of: Any, columns: Sequence[int], shape: tuple[int, ...], axis: int) -> tuple[Term, ...]:
    """Return the terms of lanes or waves along an axis; the bits above a wave's are those of other warpgroups."""
    found = []
    for run in _runs(columns, shape):
        if run.axis == axis:
            is_top = of == "lane" and run.first + run.count == len(columns)
            found.append(Term(of, run.step, 1 << run.first, 0 if is_top else 1 << run.count))
    return tuple(found)


def _batch_steps(batches: int, rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(axis == b) for axis in range(rank)) for b in range(batches))


def _steps(rank: int, moves: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return one register axis for each (tile axis, distance)."""
    return tuple(tuple(far if axis == moved else 0 for axis in range(rank)) for moved, far in moves)
