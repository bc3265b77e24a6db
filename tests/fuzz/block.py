"""Random statements, each of them valid at its position."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from .program import (
    BITS,
    COMPARISONS,
    FLOAT8,
    FLOATS,
    FUNCTIONS,
    INTEGERS,
    REDUCTIONS,
    Cast,
    Compute,
    Fill,
    IllTyped,
    Number,
    Read,
    Reduce,
    Scope,
    SelfIndex,
    Statement,
    Type,
)

DTYPES = ("f32", "f32", "f32", "f16", "f16", "bf16", "f64", *FLOAT8, "i8", "i32", "i32", "i64", "bool")


@dataclass
class Names:
    """Unused names."""

    count: int = 0

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


@dataclass
class Block:
    """A run of statements, and what is at hand at its end."""

    maker: Any
    rng: random.Random
    scope: Scope
    statements: list[Statement] = field(default_factory=list)

    def inner(self, **more: Type) -> Block:
        return Block(self.maker, self.rng, Scope(self.scope.program, {**self.scope.types, **more}))

    def add(self, s: Statement) -> str:
        """The name of what it gives; nothing is added where it is ill-typed."""
        self.scope.add(s)
        self.statements.append(s)
        return getattr(s, "name", "")

    def type(self, name: str) -> Type:
        return self.scope.of(name)

    def fresh(self, prefix: str = "x") -> str:
        return self.maker.names(prefix)

    def tiles(self) -> list[str]:
        return [name for name, t in self.scope.types.items() if t.dims]

    def compute(self, op: str, *args: Any) -> str:
        return self.add(Compute(self.fresh(), op, args))

    def cast(self, x: str, dtype: str) -> str:
        return x if self.type(x).dtype == dtype else self.add(Cast(self.fresh(), x, dtype))

    # -- growing

    def grow(self, count: int) -> None:
        made = 0
        while made < count:
            try:
                self.step()
            except IllTyped:
                continue
            made += 1

    def step(self) -> None:
        recent = self.tiles()[-2:] if self.rng.random() < 0.7 else list(self.scope.types)
        x = self.rng.choice(recent)
        self.rng.choices(
            [self.with_another, self.with_literal, self.unary, self.casted, self.chosen, self.index],
            [30, 22, 18, 14, 10, 6],
        )[0](x)

    def reduce(self) -> str:
        """Some recent tile without some dims, where there are any that may go."""
        fit = [(x, own) for x in self.tiles() if (own := self.maker.owned(self.type(x).dims))]
        if not fit:
            raise IllTyped("nothing to reduce")
        x, own = self.rng.choice(fit[-3:])
        dims = tuple(self.rng.sample(own, self.rng.choice([1, 1, 1, len(own)])))
        hows = ["any", "all", "sum"] if self.type(x).dtype == "bool" else [*REDUCTIONS, "sum", "sum", "max"]
        how = self.rng.choice(hows)
        return self.add(Reduce(self.fresh(), x, dims[:1] if how.startswith("arg") else dims, how))

    def unary(self, x: str) -> None:
        t = self.type(x)
        if t.dtype == "bool":
            self.compute("~", x)
        elif t.dtype in FLOATS and self.maker.has_functions(t.dtype) and self.rng.random() < 0.6:
            self.compute(self.rng.choice(FUNCTIONS), x)
        else:
            self.compute(self.rng.choice(["neg", "abs", "**2", "**3"]), x)

    def casted(self, x: str) -> None:
        self.cast(x, self.rng.choice([d for d in DTYPES if d != self.type(x).dtype]))

    def binary_op(self, dtype: str) -> str:
        ops = ["+", "-", "*", "minimum", "maximum"]
        ops += ["/"] if dtype in FLOATS else ["//", "%", "//", "%"]
        return self.rng.choice(ops)

    def with_literal(self, x: str) -> None:
        t = self.type(x)
        if t.dtype == "bool":
            raise IllTyped("no literal")
        args = [x, self.literal(t.dtype)]
        if self.rng.random() < 0.3:
            args.reverse()
        self.compute(self.binary_op(t.dtype), *args)

    def literal(self, dtype: str) -> Any:
        if dtype in FLOATS:
            return self.rng.choice([0.0, 1.0, 2.0, 0.5, -1.0, 3.0, -0.25, 0.1])
        if dtype == "bool":
            return self.rng.choice([True, False])
        return self.rng.choice([0, 1, 2, 3, -1, -3, 7, 100, -128, 127] + [2**31 - 1, -(2**31)] * (dtype != "i8"))

    def partner(self, x: str) -> str:
        """Another value that goes with x, cast to its dtype."""
        t = self.type(x)
        fit = [y for y, u in self.scope.types.items() if set(u.dims) <= set(t.dims) or set(t.dims) <= set(u.dims)]
        return self.cast(self.rng.choice(fit), t.dtype)

    def with_another(self, x: str) -> None:
        dtype = self.type(x).dtype
        y = self.partner(x)
        op = self.rng.choice(["&", "|", "==", "!="]) if dtype == "bool" else self.binary_op(dtype)
        self.compute(op, *self.rng.sample([x, y], 2))

    def condition(self, x: str) -> str:
        t = self.type(x)
        if t.dtype == "bool":
            return x
        other = self.literal(t.dtype) if self.rng.random() < 0.5 else self.partner(x)
        return self.compute(self.rng.choice(COMPARISONS), x, other)

    def chosen(self, x: str) -> None:
        c = self.condition(x)
        fit = [y for y, u in self.scope.types.items() if set(self.type(c).dims) <= set(u.dims)]
        a = self.rng.choice(fit)
        b = self.literal(self.type(a).dtype) if self.rng.random() < 0.4 else self.partner(a)
        self.compute("select", c, *self.rng.sample([a, b], 2))

    def index(self, x: str) -> None:
        t = self.type(x)
        where = [d for d in t.dims if self.maker.may_ask_index(d)]
        if where and t.dtype in BITS:
            at = self.add(SelfIndex(self.fresh(), self.rng.choice(where), t.dtype))
            self.compute(self.binary_op(t.dtype), x, at)
        elif where:
            at = self.add(SelfIndex(self.fresh(), self.rng.choice(where), self.rng.choice([*INTEGERS, "index"])))
            self.compute("select", self.compute(self.rng.choice(COMPARISONS), at, self.rng.randint(0, 9)), x, x)
        else:
            self.add(Number(self.fresh(), self.literal(t.dtype), t.dtype))

    # -- what is wanted

    def made(self, dims: tuple[str, ...], dtype: str, depth: int = 3) -> str:
        """A recent value of these dims, in some order, and this dtype."""
        fit = [x for x in self.tiles() if set(self.type(x).dims) <= set(dims)]
        full = [x for x in fit if set(self.type(x).dims) == set(dims)]
        pool = (full or fit)[-depth:]
        if not pool:
            return self.add(Fill(self.fresh(), dims, dtype, self.literal(dtype)))
        x = self.cast(self.rng.choice(pool), dtype)
        if set(self.type(x).dims) == set(dims):
            return x
        zero = self.add(Fill(self.fresh(), dims, dtype, False if dtype == "bool" else 0.0 if dtype in FLOATS else 0))
        return self.compute("|" if dtype == "bool" else "+", zero, x)

    def next_of(self, x: str) -> str:
        """A value of exactly the type of x, made of it and of something else."""
        t = self.type(x)
        fit = [y for y, u in self.scope.types.items() if set(u.dims) <= set(t.dims)]
        y = self.cast(self.rng.choice(fit[-4:]), t.dtype)
        ops = ["&", "|"] if t.dtype == "bool" else ["+", "-", "minimum", "maximum"]
        return self.compute(self.rng.choice(ops), x, y)

    def read(self, array: str, mapping: Any = None) -> str:
        return self.add(Read(self.fresh(), array, mapping))
