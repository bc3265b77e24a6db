"""A random kernel as data: what it is given, how it is cut, and its statements, each a name for one op."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

FLOAT8 = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
FLOATS = (*FLOAT8, "f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i32", "i64")
BITS = {"i8": 8, "i32": 32, "i64": 64, "index": 64}
SUMMED_IN = {**dict.fromkeys((*FLOAT8, "f16", "bf16"), "f32"), "i8": "i32", "bool": "i32"}
"""What sums and products of small numbers are."""
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FUNCTIONS = ("exp", "exp2", "log", "log1p", "log2", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos")

Operand = Any
"""The name of a value, or a Python number as the author writes it."""


class IllTyped(Exception):
    """The statement is none of the language's."""


@dataclass(frozen=True)
class Type:
    dims: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class Dim:
    """A symbol and its size. `axis` is the grid axis that it is tiled along; with a tile and no axis a loop
    iterates over it."""

    name: str
    size: int
    tile: int = 0
    axis: int | None = None
    wave: int = 0

    @property
    def walked(self) -> bool:
        return self.tile > 0 and self.axis is None

    @property
    def tiles(self) -> int:
        return -(-self.size // self.tile) if self.tile else 1


@dataclass(frozen=True)
class Layout:
    """The layout of a call's array: its axes, slowest first; for each a step, and elements before and after."""

    order: tuple[int, ...]
    steps: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Array:
    """An argument. `content` is what it holds before the call; "poison" is what only a write replaces."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    content: str = "poison"
    space: str = "GLOBAL_ADDRESS_SPACE"
    layout: Layout | None = None


@dataclass(frozen=True)
class Parameter:
    """A number that is an argument of the kernel."""

    name: str
    dtype: str
    value: Any


@dataclass(frozen=True)
class Place:
    """A position along one dim of a memory: sign * iterator + offset + symbols, modulo a size where one is given."""

    along: str | None
    sign: int = 1
    offset: int = 0
    symbols: tuple[tuple[str, int], ...] = ()
    modulo: int | str = 0


@dataclass(frozen=True)
class Mapping:
    tile: tuple[str, ...]
    places: tuple[tuple[str, Place], ...]


@dataclass(frozen=True)
class Read:
    name: str
    array: str
    mapping: Mapping | None = None
    per_thread: int = 0


@dataclass(frozen=True)
class Fill:
    """A tile in registers that holds one number."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    value: Any


@dataclass(frozen=True)
class Number:
    """A number, given as such or as a symbol that has a value when the kernel runs."""

    name: str
    value: Any
    dtype: str


@dataclass(frozen=True)
class SelfIndex:
    name: str
    dim: str
    dtype: str


@dataclass(frozen=True)
class Compute:
    """An op on values and numbers; `op` is as the author writes it."""

    name: str
    op: str
    args: tuple[Operand, ...]


@dataclass(frozen=True)
class Cast:
    name: str
    x: str
    dtype: str


@dataclass(frozen=True)
class Mma:
    name: str
    a: str
    b: str
    acc: str


@dataclass(frozen=True)
class Reduce:
    """x reduced along some dims, each whole in one workgroup or iterated by a loop."""

    name: str
    x: str
    dims: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Write:
    x: str
    array: str
    mapping: Mapping | None = None
    per_thread: int = 0


@dataclass(frozen=True)
class Loop:
    """A loop over a dim without a grid axis, or while `symbol` is below `stop` where there is one."""

    name: str
    dim: str
    init: tuple[str, ...]
    params: tuple[str, ...]
    body: tuple[Any, ...]
    returns: tuple[str, ...]
    results: tuple[str, ...]
    start: int = 0
    stop: int | str = 0
    step: int = 0

    @property
    def is_while(self) -> bool:
        return self.step > 0


@dataclass(frozen=True)
class Call:
    """What one more call of a compiled kernel gives: sizes that are open, symbols, numbers, other arrays."""

    sizes: tuple[tuple[str, int], ...] = ()
    opens: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()
    layouts: tuple[tuple[str, Layout | None], ...] = ()
    seed: int = 0
    by_name: bool = False


Statement = Read | Fill | Number | SelfIndex | Compute | Cast | Mma | Reduce | Write | Loop


@dataclass(frozen=True)
class Program:
    dims: tuple[Dim, ...]
    arrays: tuple[Array, ...]
    body: tuple[Statement, ...]
    seed: int = 0
    workgroups: int = 0
    dealt: bool = False
    """With `workgroups`: the author's own loop deals the tiles."""
    mapping: str = ""
    opens: tuple[tuple[str, int], ...] = ()
    """Symbols that get their values at the call."""
    threads_per_wave: int = 0
    mma_type: str = ""
    prefetch: bool = False
    buffers: int | None = None
    named_tiles: bool = False
    """Tile sizes are symbols too."""
    left_open: tuple[str, ...] = ()
    """Dims whose sizes come from the arrays of a call."""
    declared_open: bool = False
    """Whether these dims are in `dynamic_symbols` too."""
    numbers: tuple[Parameter, ...] = ()
    arrays_before: int = 0
    """The number of arrays before the scalar arguments in the kernel's parameters."""
    by_name: bool = False
    """A call gives its arguments by their names."""
    more: tuple[Call, ...] = ()
    """Calls after the first one, which the fields above describe."""

    def dim(self, name: str) -> Dim:
        return _named(self.dims, name)

    def array(self, name: str) -> Array:
        return _named(self.arrays, name)

    def walk(self) -> list[Statement]:
        return walk(self.body)

    def written(self) -> set[str]:
        return {s.array for s in self.walk() if isinstance(s, Write)}

    def calls(self) -> tuple[Program, ...]:
        """Return the kernel with the arguments of each of its calls."""
        return (replace(self, more=()), *map(self.called, self.more))

    def called(self, c: Call) -> Program:
        sizes, opens, numbers, layouts = (dict(x) for x in (c.sizes, c.opens, c.numbers, c.layouts))
        sizes = {d: n for d, n in sizes.items() if d in self.left_open}
        return replace(
            self,
            dims=tuple(replace(d, size=sizes.get(d.name, d.size)) for d in self.dims),
            opens=tuple((name, opens.get(name, v)) for name, v in self.opens),
            numbers=tuple(replace(n, value=numbers.get(n.name, n.value)) for n in self.numbers),
            arrays=tuple(replace(a, layout=layouts.get(a.name, a.layout)) for a in self.arrays),
            seed=c.seed,
            by_name=c.by_name,
            more=(),
        )

    @property
    def parameters(self) -> tuple[Array | Parameter, ...]:
        """In the author's order."""
        return (*self.arrays[: self.arrays_before], *self.numbers, *self.arrays[self.arrays_before :])

    @property
    def grid(self) -> int:
        count = 1
        for d in self.dims:
            count *= d.tiles if d.axis is not None else 1
        return count


def walk(body: tuple[Statement, ...]) -> list[Statement]:
    found: list[Statement] = []
    for s in body:
        found.append(s)
        if isinstance(s, Loop):
            found += walk(s.body)
    return found


def _named(all_of, name: str):
    for x in all_of:
        if x.name == name:
            return x
    raise IllTyped(f"nothing is called {name}")


@dataclass
class Scope:
    """The types of the values at hand, as statements are added."""

    program: Program
    types: dict[str, Type] = field(default_factory=dict)

    @classmethod
    def before(cls, program: Program) -> Scope:
        """The first statement: numbers that are arguments are at hand."""
        return cls(program, {n.name: Type((), n.dtype) for n in program.numbers})

    def add(self, s: Statement) -> None:
        match s:
            case Write():
                self.check_write(s)
            case Loop():
                self.check_loop(s)
            case _:
                self.types[s.name] = self.type_of(s)

    def type_of(self, s: Statement) -> Type:
        match s:
            case Read(_, array, mapping):
                a = self.program.array(array)
                return Type(mapping.tile if mapping else a.dims, a.dtype)
            case Fill(_, dims, dtype) if dims:
                return Type(dims, dtype)
            case Number(_, _, dtype):
                return Type((), dtype)
            case SelfIndex(_, dim, dtype):
                return Type((self.program.dim(dim).name,), dtype)
            case Cast(_, x, dtype):
                return Type(self.of(x).dims, dtype)
            case Mma(_, a, b, acc):
                return self.product(*map(self.of, (a, b, acc)))
            case Reduce(_, x, dims, how):
                return self.reduced(self.of(x), dims, how)
            case Compute(_, op, args):
                return self.computed(op, [self.of(x) if isinstance(x, str) else None for x in args])
        raise IllTyped(s)

    def of(self, name: str) -> Type:
        if name not in self.types:
            raise IllTyped(name)
        return self.types[name]

    def product(self, a: Type, b: Type, acc: Type) -> Type:
        *batch, rows, cols = acc.dims
        shared = [d for d in a.dims if d in b.dims and d not in acc.dims]
        if len(shared) != 1 or set(a.dims) != {*batch, rows, *shared} or set(b.dims) != {*batch, cols, *shared}:
            raise IllTyped("mma")
        if not multiply(a.dtype, b.dtype, acc.dtype):
            raise IllTyped("mma")
        return acc

    def reduced(self, x: Type, dims: tuple[str, ...], how: str) -> Type:
        own = all(d in x.dims and (self.program.dim(d).axis is None or self.program.dim(d).tiles == 1) for d in dims)
        if not dims or not own or len(set(dims)) != len(dims):
            raise IllTyped(how)
        if (how in ("max", "min", "argmax", "argmin") and x.dtype == "bool") or (how[:3] == "arg" and len(dims) > 1):
            raise IllTyped(how)
        left = tuple(d for d in x.dims if d not in dims)
        if how in ("any", "all"):
            return Type(left, "bool")
        if how in ("sum", "prod"):
            return Type(left, SUMMED_IN.get(x.dtype, x.dtype))
        return Type(left, "i32" if how.startswith("arg") else x.dtype)

    def computed(self, op: str, args: list[Type | None]) -> Type:
        given = [t for t in args if t is not None]
        if op == "select":
            return self.selected(*args)
        if not given or len({t.dtype for t in given}) != 1:
            raise IllTyped(op)
        dtype, dims = given[0].dtype, self.joined([t.dims for t in given])
        self.check_op(op, dtype)
        return Type(dims, "bool" if op in COMPARISONS else dtype)

    def check_op(self, op: str, dtype: str) -> None:
        is_float, is_int = dtype in FLOATS, dtype in BITS
        fits = {
            "/": is_float,
            "//": is_int,
            "%": is_int,
            "&": dtype == "bool",
            "|": dtype == "bool",
            "~": dtype == "bool",
            "==": True,
            "!=": True,
            **dict.fromkeys(FUNCTIONS, is_float),
        }
        if not fits.get(op, is_float or is_int):
            raise IllTyped(op)

    def selected(self, condition: Type | None, a: Type | None, b: Type | None) -> Type:
        given = [t for t in (a, b) if t is not None]
        if condition is None or condition.dtype != "bool" or not given or len({t.dtype for t in given}) != 1:
            raise IllTyped("select")
        dims = self.joined([t.dims for t in given])
        if not dims:
            return Type(condition.dims, given[0].dtype)
        if not set(condition.dims) <= set(dims):
            raise IllTyped("select")
        return Type(dims, given[0].dtype)

    def joined(self, all_dims: list[tuple[str, ...]]) -> tuple[str, ...]:
        first, *rest = all_dims
        for dims in rest:
            if set(dims) <= set(first):
                continue
            if not set(first) <= set(dims):
                raise IllTyped("dims")
            first = dims
        return first

    def check_write(self, s: Write) -> None:
        a, t = self.program.array(s.array), self.of(s.x)
        if t.dtype != a.dtype or sorted(t.dims) != sorted(s.mapping.tile if s.mapping else a.dims):
            raise IllTyped(s)

    def check_loop(self, s: Loop) -> None:
        inner = Scope(self.program, dict(self.types))
        inner.types.update({p: self.of(x) for p, x in zip(s.params, s.init, strict=True)})
        for each in s.body:
            inner.add(each)
        for x, y in zip(s.init, s.returns, strict=True):
            if inner.of(y) != self.of(x):
                raise IllTyped(s.name)
        self.types.update({r: self.of(x) for r, x in zip(s.results, s.init, strict=True)})


def multiply(a: str, b: str, acc: str) -> bool:
    """Whether the language multiplies these."""
    if a == b == "i8":
        return acc == "i32"
    if a not in FLOATS or b not in FLOATS:
        return False
    same = a == b or (a in FLOAT8 and b in FLOAT8)
    return same and (acc == "f64" if a == "f64" else acc in ("f32", "f64"))


def check(program: Program) -> None:
    """IllTyped where it is no program of the language."""
    scope = Scope.before(program)
    for s in program.body:
        scope.add(s)
    if not program.written():
        raise IllTyped("nothing is written")
