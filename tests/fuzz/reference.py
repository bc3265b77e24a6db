"""What a program means, on whole arrays: nothing of tilewave is used here.

Workgroups do not exchange anything, so all of them may run in lockstep: a tile [M, N] is the whole array M×N, a step of
a loop over a dim its part of that dim, and out-of-bounds elements of boundary tiles do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from . import exact
from .data import content
from .exact import Value
from .ownership import Ownership, WrongProgram
from .program import (
    FLOATS,
    Array,
    Cast,
    Compute,
    Fill,
    Loop,
    Mapping,
    Mma,
    Number,
    Place,
    Program,
    Read,
    Reduce,
    SelfIndex,
    Write,
)
from .reduced import reduced

F32_UNIT, F64_UNIT = 2.0**-24, 2.0**-52


@dataclass
class Held:
    """An array: its numbers and their bounds, in place."""

    array: Array
    x: np.ndarray
    err: np.ndarray


@dataclass
class Run:
    program: Program
    arrays: dict[str, Held]
    owners: Ownership
    f8_unit: float = F32_UNIT
    values: dict[str, Value] = field(default_factory=dict)
    windows: dict[str, tuple[int, int]] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)

    def block(self, body) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s) -> None:
        match s:
            case Read(name, array, mapping):
                self.values[name] = self.read(self.arrays[array], mapping)
            case Fill(name, dims, dtype, value):
                one = exact.literal(value, dtype)
                shape = tuple(self.extent(d) for d in dims)
                self.values[name] = Value(np.broadcast_to(one.x, shape), np.zeros(shape), dims, dtype)
            case Number(name, value, dtype):
                is_symbol = isinstance(value, str)
                number = exact.literal(self.symbol(value), "index") if is_symbol else exact.literal(value, dtype)
                self.values[name] = exact.cast(number, dtype)
            case SelfIndex(name, dim, dtype):
                self.values[name] = exact.cast(self.index(dim), dtype)
            case Cast(name, x, dtype):
                with np.errstate(all="ignore"):
                    self.values[name] = exact.cast(self.values[x], dtype)
            case Compute(name, op, args):
                taken = self.together(op, args)
                if exact.overflows(op, taken):
                    raise WrongProgram(f"{name}: an index overflows")
                self.values[name] = exact.compute(op, taken)
            case Mma(name, a, b, acc):
                self.values[name] = self.mma(*(self.values[v] for v in (a, b, acc)))
            case Reduce(name, x, dims, how):
                free = any(isinstance(s, Mma) for s in self.program.walk())
                self.values[name] = reduced(self.values[x], dims, how, self.window(dims[0])[0], free)
            case Write(x, array, mapping):
                self.write(self.values[x], self.arrays[array], mapping)
            case Loop():
                self.loop(s)
            case _:
                raise NotImplementedError(s)

    # -- where things are

    def symbol(self, name: str) -> int:
        """One that a call or a loop gives, or a size."""
        return self.symbols[name] if name in self.symbols else self.program.dim(name).size

    def window(self, dim: str) -> tuple[int, int]:
        d = self.program.dim(dim)
        if d.walked and dim not in self.windows:
            raise WrongProgram(f"{dim} is walked, and not in its loop")
        return self.windows.get(dim, (0, d.size))

    def extent(self, dim: str) -> int:
        first, end = self.window(dim)
        return end - first

    def index(self, dim: str) -> Value:
        if dim in self.symbols:
            return Value(np.asarray(self.symbols[dim]), np.float64(0), (), "index")
        found = np.arange(*self.window(dim))
        return Value(found, np.zeros(found.shape), (dim,), "index")

    def places(self, a: Array, mapping: Mapping | None) -> tuple[tuple[str, ...], list[np.ndarray], np.ndarray]:
        """The tile's dims, the position of each of its elements along each dim of the memory, and which are inside."""
        tile = mapping.tile if mapping else a.dims
        where = dict(mapping.places) if mapping else {d: Place(d) for d in a.dims}
        shape = tuple(self.extent(d) for d in tile)
        found = [np.broadcast_to(self.position(where[d], tile), shape) for d in a.dims]
        inside = np.ones(shape, np.bool_)
        for p, d in zip(found, a.dims, strict=True):
            inside &= (p >= 0) & (p < self.program.dim(d).size)
        return tile, found, inside

    def position(self, p: Place, tile: tuple[str, ...]) -> np.ndarray:
        at = np.asarray(p.offset + sum(coefficient * self.symbol(s) for s, coefficient in p.symbols))
        if p.along is not None:
            steps = np.arange(*self.window(p.along)) * p.sign
            at = at + steps.reshape([-1 if d == p.along else 1 for d in tile])
        modulo = self.symbol(p.modulo) if isinstance(p.modulo, str) else p.modulo
        return at % modulo if modulo else at

    # -- memory

    def read(self, held: Held, mapping: Mapping | None) -> Value:
        tile, where, inside = self.places(held.array, mapping)
        self.note(held, tile, where, inside, writes=False)
        at = tuple(p[inside] for p in where)
        found, error = np.zeros(inside.shape, held.x.dtype), np.zeros(inside.shape)
        found[inside], error[inside] = held.x[at], held.err[at]  # nothing of an empty memory
        return Value(found, error, tile, held.array.dtype)

    def write(self, v: Value, held: Held, mapping: Mapping | None) -> None:
        tile, where, inside = self.places(held.array, mapping)
        axes = [v.dims.index(d) for d in tile]
        at = tuple(p[inside] for p in where)
        flat = np.ravel_multi_index(at, held.x.shape)
        if len(np.unique(flat)) != flat.size:
            raise WrongProgram(f"{held.array.name}: two elements at one place")
        self.note(held, tile, where, inside, writes=True)
        held.x[at] = v.x.transpose(axes)[inside]
        held.err[at] = v.err.transpose(axes)[inside]

    def note(self, held: Held, tile, where, inside: np.ndarray, writes: bool) -> None:
        if writes:  # what is read outside is 0
            self.owners.check_inside(tile, [self.window(d)[0] for d in tile], inside)
        who = self.owners.workgroups(tile, inside.shape)
        self.owners.note(held.array.name, who[inside], tuple(p[inside] for p in where), writes)

    # -- values

    def together(self, op: str, args) -> list[Value]:
        """Numbers take the dtype of the others, and smaller tiles are repeated along the dims they do not have."""
        known = [self.values[a] for a in args if isinstance(a, str)]
        dtype = known[-1].dtype
        found = [self.values[a] if isinstance(a, str) else exact.literal(a, dtype) for a in args]
        of_result = found[1:] if op == "select" and any(v.dims for v in found[1:]) else found
        like = max(of_result, key=lambda v: len(v.dims))
        shape = tuple(self.extent(d) for d in like.dims)
        return [self.spread(v, like.dims, shape) for v in found]

    def spread(self, v: Value, dims: tuple[str, ...], shape: tuple[int, ...]) -> Value:
        if v.dims == dims:
            return v
        axes = [v.dims.index(d) for d in dims if d in v.dims]
        kept = [n if d in v.dims else 1 for d, n in zip(dims, shape, strict=True)]
        x, err = (np.broadcast_to(np.asarray(p).transpose(axes).reshape(kept), shape) for p in (v.x, v.err))
        return Value(x, err, dims, v.dtype)

    def mma(self, a: Value, b: Value, acc: Value) -> Value:
        letters = {d: chr(97 + n) for n, d in enumerate(dict.fromkeys((*acc.dims, *a.dims, *b.dims)))}
        spec = ",".join("".join(letters[d] for d in v.dims) for v in (a, b))
        spec += "->" + "".join(letters[d] for d in acc.dims)
        unit = F64_UNIT if acc.dtype == "f64" else self.f8_unit if a.dtype.startswith("f8") else F32_UNIT
        return exact.product(a, b, acc, spec, unit)

    # -- loops

    def loop(self, s: Loop) -> None:
        carried = [self.values[x] for x in s.init]
        for _ in self.rounds(s):
            self.values.update(zip(s.params, carried, strict=True))
            self.block(s.body)
            carried = [self.values[x] for x in s.returns]
        self.windows.pop(s.dim, None)
        self.symbols.pop(s.dim, None)
        self.values.update(zip(s.results, carried, strict=True))

    def rounds(self, s: Loop):
        if s.is_while:
            stop = self.symbols[s.stop] if isinstance(s.stop, str) else s.stop
            for at in range(s.start, stop, s.step):
                self.symbols[s.dim] = at
                yield at
            return
        d = self.program.dim(s.dim)
        for first in range(0, d.size, d.tile):
            self.windows[s.dim] = (first, min(first + d.tile, d.size))
            yield first


def expected(program: Program, f8_unit: float = F32_UNIT) -> dict[str, Held]:
    """What every array holds after the call."""
    arrays = {a.name: held(program, a) for a in program.arrays}
    if not program.grid:
        Ownership(program).check_all_written()
        return arrays  # without tiles no workgroup does anything
    numbers = {n.name: exact.literal(n.value, n.dtype) for n in program.numbers}
    run = Run(program, arrays, Ownership(program), f8_unit, numbers, symbols=dict(program.opens))
    run.block(program.body)
    run.owners.check_all_written()
    return arrays


def held(program: Program, a: Array) -> Held:
    given = content(program, a)
    x = given.astype(np.float64 if a.dtype in FLOATS else np.bool_ if a.dtype == "bool" else np.int64)
    return Held(a, x, np.zeros(x.shape))
