"""Random programs whose sizes stay open: one kernel, called with several shapes, numbers and layouts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from . import exact
from .block import DTYPES
from .generate import AnyKernel
from .maker import TooLarge, check_size
from .ownership import WrongProgram
from .program import (
    BITS,
    FLOATS,
    Call,
    Compute,
    Dim,
    IllTyped,
    Loop,
    Mapping,
    Number,
    Parameter,
    Place,
    Program,
    Read,
    Scope,
    Statement,
    Type,
    Write,
    check,
)
from .reference import expected
from .source import tiles

MOST_CALLS = {"numpy": 6, "cpu": 8, "sm_90a": 4, "gfx942": 3, "gfx950": 3}
TRIES = 8
"""Attempts at a shape; many kernels are right for some shapes only."""
SIZES = (1, 2, 3, 5, 7, 11, 13, 17, 31, 37, 61, 67, 97)


def generate_open(seed: int, target: str) -> Program:
    """The first valid program that the seed gives, called at least twice."""
    rng = random.Random(f"open {target} {seed}")
    while True:
        maker = OpenKernel(rng, target, large=seed % 4 == 3)
        try:
            program = maker.opened(maker.program(seed))
            check(program)
            expected(program)
        except (IllTyped, WrongProgram, TooLarge):
            continue
        calls = maker.calls(program)
        if calls:
            return replace(program, more=calls)


class OpenKernel(AnyKernel):
    """A kernel of any kind that has numbers among its parameters; then, what of it stays open."""

    def __init__(self, rng: random.Random, target: str, large: bool) -> None:
        super().__init__(rng, target, large)
        self.numbers = tuple(self.parameter(rng.choice((*DTYPES, "index"))) for _ in range(rng.choice([0, 0, 1, 1, 2])))

    def parameter(self, dtype: str) -> Parameter:
        return Parameter(self.names("n"), dtype, self.value(dtype))

    def value(self, dtype: str) -> bool | int | float:
        """Zero and negative ones too, the ends of a dtype, infinities."""
        r = self.rng
        if dtype == "bool":
            return r.random() < 0.5
        if dtype == "index":
            return r.choice([0, 1, -1, 5, -7, 100])
        if dtype not in FLOATS:
            end = 1 << BITS[dtype] - 1
            return r.choice([0, 0, 1, -1, 2, 3, -3, 7, 100, -128, 127, end - 1, -end])
        usual = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -0.25, 3.0, 0.1, -7.25]
        special = [float("nan")] + [float("inf"), float("-inf")] * (dtype == "f64" or exact.FORMATS[dtype].has_infinity)
        return r.choice(special if r.random() < 0.08 and not self.is_product else usual)

    # -- what stays open

    def opened(self, p: Program) -> Program:
        """Sizes in its formulas become symbols, literals numbers of the call."""
        r = self.rng
        told = [d.name for d in p.dims if any(d.name in a.dims for a in p.arrays)]
        left_open = tuple(told if r.random() < 0.5 else r.sample(told, r.randint(1, len(told))))
        p = replace(p, left_open=left_open, declared_open=r.random() < 0.2, by_name=r.random() < 0.4)
        for d in (d for d in p.dims if d.name in left_open):
            last, backwards = f"({d.tiles - 1} - ", f"WORKGROUP_{d.axis}, "
            p = replace(p, mapping=p.mapping.replace(last + backwards, f"({tiles(p, d)} - 1 - {backwards}"))
        p = replace(p, body=tuple(self.with_symbols(s, p) for s in p.body))
        p = self.with_literals_given(replace(p, numbers=self.numbers))
        return replace(p, arrays_before=r.choice([0, 1, len(p.arrays)]))

    def with_symbols(self, s: Statement, p: Program) -> Statement:
        match s:
            case Loop():
                return replace(s, body=tuple(self.with_symbols(inner, p) for inner in s.body))
            case Read(mapping=Mapping()) | Write(mapping=Mapping()) if self.rng.random() < 0.9:
                assert s.mapping
                places = tuple((d, symbolic(place, p)) for d, place in s.mapping.places)
                return replace(s, mapping=replace(s.mapping, places=places))
            case Number(value=int()) if s.dtype not in (*FLOATS, "bool", "i8") and self.rng.random() < 0.3:
                return replace(s, value=self.rng.choice(p.left_open))
        return s

    def with_literals_given(self, p: Program) -> Program:
        """Some numbers that its author wrote down are given at the call instead."""
        found: list[Parameter] = []

        def given(s: Statement, scope: Scope) -> Statement:
            if isinstance(s, Loop):
                inner = Scope(p, dict(scope.types))
                inner.types.update({a: scope.of(b) for a, b in zip(s.params, s.init, strict=True)})
                s = replace(s, body=tuple(given(each, inner) for each in s.body))
            elif isinstance(s, Compute) and s.op not in ("&", "|") and self.rng.random() < 0.3:
                s = replace(s, args=tuple(self.number_for(s, x, scope, found) for x in s.args))
                scope.types.update({n.name: Type((), n.dtype) for n in found})
            scope.add(s)
            return s

        scope = Scope.before(p)
        body = tuple(given(s, scope) for s in p.body)
        return replace(p, body=body, numbers=(*p.numbers, *found))

    def number_for(self, s: Compute, x: object, scope: Scope, found: list[Parameter]) -> object:
        if isinstance(x, str):
            return x
        dtype = next(scope.of(y).dtype for y in reversed(s.args) if isinstance(y, str))
        found.append(Parameter(self.names("n"), dtype, x))
        return found[-1].name

    # -- calls

    def calls(self, p: Program) -> tuple[Call, ...]:
        found: list[Call] = []
        for _ in range(self.rng.randint(1, MOST_CALLS[self.target])):
            for _ in range(TRIES):
                call = self.call(p, len(found))
                if self.is_right(p.called(call)):
                    found.append(call)
                    break
        return tuple(found)

    def is_right(self, p: Program) -> bool:
        try:
            check_size(p.dims, self.is_product)
            expected(p)
        except (WrongProgram, TooLarge):
            return False
        return True

    def call(self, p: Program, number: int) -> Call:
        r = self.rng
        return Call(
            tuple(self.sizes(p).items()),
            tuple((name, r.randint(name.startswith("WGM"), max(v, 5))) for name, v in p.opens),
            tuple((n.name, self.value(n.dtype)) for n in p.numbers),
            tuple((a.name, self.layout(len(a.dims))) for a in p.arrays),
            seed=p.seed + 1_000_003 * (number + 1),
            by_name=r.random() < 0.4,
        )

    def sizes(self, p: Program) -> dict[str, int]:
        """New ones; a memory that a mapping reads stays as much longer than what is read of it as it was."""
        free = self.rng.random() < 0.2
        beside, rotated = [] if free else list(_beside(p)), set(_rotated(p))
        found = {d.name: d.size for d in p.dims if d.name not in p.left_open}
        for d in sorted(p.dims, key=lambda d: d.tile == 0):
            if d.name not in found:
                found[d.name] = self.size_of(d) if d.name not in rotated else d.tile * self.rng.randint(0, 3)
            for _ in p.dims:
                for a, b, longer in beside:
                    if a in found and b not in found:
                        found[b] = max(found[a] + longer, 0)
        return {d: found[d] for d in p.left_open}

    def size_of(self, d: Dim) -> int:
        r = self.rng
        if r.random() < 0.05:
            return 0
        if not d.tile:
            return r.choice([d.size, d.size, d.size + 1, r.choice(SIZES)])
        whole = d.tile * r.randint(1, 3)
        return r.choice([1, d.size, whole, whole, whole + 1, whole - 1, r.choice(SIZES)])


def symbolic(place: Place, p: Program) -> Place:
    """Return the place with its dim's size as a symbol, where that dim is dynamic."""
    if place.along is None or place.along not in p.left_open:
        return place
    size = p.dim(place.along).size
    if place.modulo == size:
        return replace(place, modulo=place.along)
    if place.sign < 0 and place.offset == size - 1:
        return replace(place, offset=-1, symbols=(*place.symbols, (place.along, 1)))
    return place


def _rotated(p: Program) -> Iterator[str]:
    """Yield dims of tiles that wrap around the end of a written memory, where a boundary tile would write again."""
    for s in p.walk():
        if isinstance(s, (Read, Write)) and s.mapping and s.array in p.written():
            yield from (place.along for _, place in s.mapping.places if place.along and place.modulo)


def _beside(p: Program) -> Iterator[tuple[str, str, int]]:
    """Yield pairs of dims that a mapping relates, in either order, and by how much the second is longer."""
    for s in p.walk():
        if isinstance(s, (Read, Write)) and s.mapping:
            for d, place in s.mapping.places:
                if place.along is not None and place.along != d:
                    longer = p.dim(d).size - p.dim(place.along).size
                    yield place.along, d, longer
                    yield d, place.along, -longer
