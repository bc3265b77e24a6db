"""Symbols and the index expressions made of them.

An expression is evaluated by arithmetic on any kind of number: ints give a size, and numbers that are known only when
the kernel runs give the kernel's code.

    >>> ceiling(sym.M / sym.BLOCK_M).evaluate({sym.M: 300, sym.BLOCK_M: 128})
    3
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any, NoReturn, SupportsIndex, TypeGuard

from tilewave.errors import SymbolError, TraceError, here
from tilewave.forks import IMPORTING
from tilewave.mapping.index import choose, larger, smaller
from tilewave.records import dataclass

Index = Any
"""An int, an array of ints, or a number that is known only when the kernel runs."""


class Expression:
    """An expression of integers, symbols and operators."""

    __slots__ = ()

    def __add__(self, other: object) -> Expression:
        return _combine("+", self, other)

    def __radd__(self, other: object) -> Expression:
        return _combine("+", other, self)

    def __sub__(self, other: object) -> Expression:
        return _combine("-", self, other)

    def __rsub__(self, other: object) -> Expression:
        return _combine("-", other, self)

    def __mul__(self, other: object) -> Expression:
        return _combine("*", self, other)

    def __rmul__(self, other: object) -> Expression:
        return _combine("*", other, self)

    def __truediv__(self, other: object) -> Expression:
        return _combine("/", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return _combine("/", other, self)

    def __floordiv__(self, other: object) -> Expression:
        return _combine("//", self, other)

    def __rfloordiv__(self, other: object) -> Expression:
        return _combine("//", other, self)

    def __mod__(self, other: object) -> Expression:
        return _combine("%", self, other)

    def __rmod__(self, other: object) -> Expression:
        return _combine("%", other, self)

    def __lt__(self, other: object) -> Expression:
        return _combine("<", self, other)

    def __le__(self, other: object) -> Expression:
        return _combine("<=", self, other)

    def __gt__(self, other: object) -> Expression:
        return _combine("<", other, self)

    def __ge__(self, other: object) -> Expression:
        return _combine("<=", other, self)

    def __and__(self, other: object) -> Expression:
        return _join("&", self, other)

    def __or__(self, other: object) -> Expression:
        return _join("|", self, other)

    __rand__, __ror__ = __and__, __or__

    def __pow__(self, power: object) -> Expression:
        if not is_small_power(power):
            raise SymbolError(
                f"{_bracket(self)} ** {power} is no index expression",
                loc=here(),
                remedy=f"whole powers from 1 to {LARGEST_POWER} are; else write * yourself",
            )
        return _chain("*", [self] * operator.index(power))

    def __rpow__(self, base: object) -> Expression:
        raise SymbolError(
            f"{base} ** {_bracket(self)} is no index expression",
            loc=here(),
            remedy="give the power its own symbol, with its value in subs",
        )

    def __neg__(self) -> Expression:
        return _combine("-", 0, self)

    def __floor__(self) -> Expression:
        return floor(self)

    def __ceil__(self) -> Expression:
        return ceiling(self)

    def __bool__(self) -> bool:
        raise TraceError(
            f"{self} has no truth value while the kernel is being traced",
            loc=here(),
            remedy="`if` and `while` run in Python, before sizes are known; write select(condition, a, b) or iterate",
        )

    def __index__(self) -> int:
        self._not_in_python("is no Python number")

    __int__ = __index__

    def __float__(self) -> float:
        raise TraceError(
            f"{self} is no Python number: it has its value only when a kernel is compiled",
            loc=here(),
            remedy=f"in a kernel, write cast({self}, f32); elsewhere, use the number that you give it in subs",
        )

    def __len__(self) -> int:
        self._not_in_python("has no Python length")

    def __iter__(self) -> NoReturn:
        self._not_in_python("cannot be iterated over in Python")

    def _not_in_python(self, what: str) -> NoReturn:
        raise TraceError(
            f"{self} {what}: it has its value only when a kernel is compiled",
            loc=here(),
            remedy="where you need it in Python, use the number that you give it in subs; in a kernel, write iterate",
        )

    def symbols(self) -> Iterator[Symbol]:
        """Yield every symbol of the expression, in the order written."""
        raise NotImplementedError

    def evaluate(self, values: Mapping[Symbol, Index]) -> Index:
        """Return the expression's value for these values of symbols; a SymbolError where one has none."""
        return _Evaluation(values).whole(self)

    def _sympy_(self) -> Any:
        """Return one opaque sympy symbol, the same one each time, so that sympy cannot rewrite the expression."""
        if self in _HANDLES:
            return _HANDLES[self]
        with IMPORTING:
            import sympy  # noqa: PLC0415  optional: installed only if the author uses it

        handle = sympy.Dummy(str(self), real=True) if _is_ratio(self) else sympy.Dummy(str(self), integer=True)
        _SEEN_BY_SYMPY[handle.dummy_index], _HANDLES[self] = self, handle
        return handle


_SEEN_BY_SYMPY: dict[int, Expression] = {}
_HANDLES: dict[Expression, Any] = {}
"""The symbols that stand for expressions in sympy; with one each, sympy's `subs` finds those that it has met."""
CONDITIONS = ("<", "<=", "==", "!=", "&", "|")
"""The operators whose result is a truth value."""
LARGEST_POWER = 16
"""The largest power of an expression, as it is written out as a product."""


def is_small_power(power: object) -> TypeGuard[SupportsIndex]:
    """Return whether x ** power is short enough to be written as a product."""
    return isinstance(power, Integral) and 1 <= int(power) <= LARGEST_POWER


def no_value(*symbols: Symbol, example: str = "…", otherwise: str = "") -> SymbolError:
    """Return the error for symbols without a value, all of them at once."""
    hardware = next((s for s in symbols if s in HARDWARE), None)
    if hardware is not None:
        return SymbolError(f"{hardware} has no value here", loc=here(), remedy=in_place_of_hardware(hardware))
    one, names = len(symbols) == 1, [str(s) for s in symbols]
    what = f"{names[0]} has no value" if one else f"{', '.join(names[:-1])} and {names[-1]} have no values"
    given = ", ".join(f"{s.code}: {example}" for s in symbols)
    remedy = f"give {'it one' if one else 'them some'}: WaveCompileOptions(subs={{{given}, …}})"
    return SymbolError(what, loc=here(), remedy=f"{remedy}\n{otherwise}".rstrip(), missing=names[0], example=example)


@dataclass(frozen=True)
class Symbol(Expression):
    """A named, non-negative integer, given in `subs` or set in the kernel."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def code(self) -> str:
        """The symbol as it is typed in Python: its name, or `index_symbol("$X")` for a name that Python cannot read."""
        return self.name if self.name.isidentifier() else f'index_symbol("{self.name}")'

    def symbols(self) -> Iterator[Symbol]:
        yield self


@dataclass(frozen=True)
class Whole(Expression):
    """An integer constant."""

    value: int

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def symbols(self) -> Iterator[Symbol]:
        return iter(())


ONE = Whole(1)


@dataclass(frozen=True)
class Combined(Expression):
    """Two expressions and the operator or function that combines them."""

    how: str
    a: Expression
    b: Expression

    def __str__(self) -> str:
        if self.how in ("Min", "Max"):
            return f"{self.how}({self.a}, {self.b})"
        return f"{_bracket(self.a)} {self.how} {_bracket(self.b)}"

    __repr__ = __str__

    def symbols(self) -> Iterator[Symbol]:
        yield from self.a.symbols()
        yield from self.b.symbols()


@dataclass(frozen=True)
class Rounded(Expression):
    """A quotient rounded to an integer: `ceiling` or `floor`."""

    how: str
    x: Expression

    def __str__(self) -> str:
        return f"{self.how}({self.x})"

    __repr__ = __str__

    def symbols(self) -> Iterator[Symbol]:
        return self.x.symbols()


@dataclass(frozen=True)
class Chosen(Expression):
    """One of two expressions: `a` where the condition holds, else `b`, as sympy's Piecewise has them."""

    condition: Expression
    a: Expression
    b: Expression

    def __str__(self) -> str:
        return f"Piecewise(({self.a}, {self.condition}), ({self.b}, True))"

    __repr__ = __str__

    def symbols(self) -> Iterator[Symbol]:
        for part in (self.a, self.condition, self.b):
            yield from part.symbols()


class Names:
    """`sym.M` is the symbol named M."""

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("_"):
            raise AttributeError(name)
        return symbol_named(name)


def symbol_named(name: str) -> Symbol:
    """Return the symbol of a name; `$WG0` and `$T0`, by which Wave names those of the hardware, are tilewave's own."""
    return OF_WAVE.get(name, Symbol(name))


sym = Names()


WORKGROUP_0, WORKGROUP_1, WORKGROUP_2 = (Symbol(f"WORKGROUP_{i}") for i in range(3))
THREAD_0, THREAD_1, THREAD_2 = (Symbol(f"THREAD_{i}") for i in range(3))
COORDINATES = (WORKGROUP_0, WORKGROUP_1, WORKGROUP_2)
LANES = (THREAD_0, THREAD_1, THREAD_2)
HARDWARE = COORDINATES + LANES
"""The symbols that have no value in `subs`: the hardware gives it."""
OF_WAVE = dict(zip(("$WG0", "$WG1", "$WG2", "$T0", "$T1", "$T2"), HARDWARE, strict=True))
"""Hardware symbols by the names that Wave gives them in `index_symbol`."""


def want_no_hardware(what: str, *symbols: object) -> None:
    """Refuse hardware symbols where a symbol is given a value or names a dim."""
    for s in symbols:
        if isinstance(s, Symbol) and s in HARDWARE:
            kind = "workgroup" if s in COORDINATES else "lane"
            raise SymbolError(
                f"{what}: {s} is the number of a {kind}, which cannot be given",
                loc=here(),
                remedy=in_place_of_hardware(s),
            )


def in_place_of_hardware(s: Symbol) -> str:
    """Return what to write instead of a misplaced hardware symbol."""
    if s in LANES:
        return "leave it out: a kernel handles whole tiles; self_index(M) is the position of each element along M"
    return f"leave it out; in a kernel, scalar({s}) is the number that this workgroup has"


def ceiling(x: object) -> Expression:
    """Return the least integer not below x."""
    return Rounded("ceiling", expression(x))


def floor(x: object) -> Expression:
    """Return the greatest integer not above x."""
    return Rounded("floor", expression(x))


def Min(first: object, *rest: object) -> Expression:
    """Return the smallest of some expressions of symbols."""
    return _fold("Min", first, *rest)


def Max(first: object, *rest: object) -> Expression:
    """Return the largest of some expressions of symbols."""
    return _fold("Max", first, *rest)


def Eq(a: object, b: object) -> Expression:
    """Return the condition a = b; `==` itself compares expressions, so that symbols can be keys."""
    return _combine("==", a, b)


def Ne(a: object, b: object) -> Expression:
    """Return the condition that a is not b; `!=` itself compares expressions."""
    return _combine("!=", a, b)


def Piecewise(*cases: tuple[object, object]) -> Expression:
    """Return the value of the first case whose condition holds: `Piecewise((a, a < b), (b, True))`."""
    *first, (otherwise, holds) = cases
    if holds is not True:
        remedy = "end with (value, True)"
        raise SymbolError("Piecewise has no value where no condition holds", loc=here(), remedy=remedy)
    result = expression(otherwise)
    for value, condition in reversed(first):
        result = Chosen(expression(condition), expression(value), result)
    return result


def expression(x: object) -> Expression:
    """Return x as an expression: from an int, an expression, or one that sympy built of tilewave's symbols."""
    if isinstance(x, Expression):
        return x
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        return _from_sympy(x) if hasattr(x, "free_symbols") else _refuse(x)
    return Whole(operator.index(x))


def replaced(x: Expression, by: Mapping[Symbol, Expression]) -> Expression:
    """Return x with expressions substituted for some of its symbols."""
    match x:
        case Symbol():
            return by.get(x, x)
        case Combined(how, a, b):
            return Combined(how, replaced(a, by), replaced(b, by))
        case Rounded(how, quotient):
            return Rounded(how, replaced(quotient, by))
        case Chosen(condition, a, b):
            return Chosen(*(replaced(part, by) for part in (condition, a, b)))
        case _:
            return x


def quotient(x: Expression) -> tuple[Expression, Expression]:
    """Return x as a numerator and a denominator, which is 1 where nothing is divided without rounding.

    >>> quotient(2 * (sym.K / 64))
    (2 * K, 64)
    """
    match x:
        case Combined("/", a, b):
            (above, below), (more, less) = quotient(a), quotient(b)
            return _times(above, less), _times(below, more)
        case Combined("*", a, b):
            (above, below), (more, less) = quotient(a), quotient(b)
            return _times(above, more), _times(below, less)
        case Combined("+" | "-" as how, a, b):
            (above, below), (more, less) = quotient(a), quotient(b)
            if below == less == ONE:
                return x, ONE
            return Combined(how, _times(above, less), _times(more, below)), _times(below, less)
        case _:
            return x, ONE


def in_floats(x: Expression, dtype: str) -> str:
    """Return how to write an expression of sizes among floats of a dtype.

    >>> in_floats(1 / sym.N, "f32")
    '1 / cast(N, f32)'
    """
    match x:
        case Whole(value):
            return str(value)
        case Combined(how, a, b) if _is_ratio(x) and how in ("+", "-", "*", "/"):
            parts = (in_floats(e, dtype) for e in (a, b))
            return f" {how} ".join(f"({p})" if _is_ratio(e) else p for p, e in zip(parts, (a, b), strict=True))
        case _:
            return f"cast({x}, {dtype})"


def _times(a: Expression, b: Expression) -> Expression:
    if isinstance(a, Whole) and isinstance(b, Whole):
        return Whole(a.value * b.value)
    return b if a == ONE else a if b == ONE else Combined("*", a, b)


def rounded_where_open(x: Expression, values: Mapping[Symbol, Index]) -> Expression:
    """Return x as the length of a dim: a quotient of numbers that are known only at the launch is rounded down."""
    above, below = quotient(x)
    is_known = below == ONE or all(isinstance(values.get(s), int) for s in x.symbols())
    return x if is_known else Combined("//", above, below)


def _refuse(x: object) -> NoReturn:
    raise SymbolError(f"{x!r} is no index expression", loc=here(), remedy=whole_in_place_of(x))


def whole_in_place_of(x: object) -> str:
    """Return what to write where something other than a size, a tile size or an index was given."""
    if isinstance(x, float) and x == x and abs(x) < 2**53:
        return f"write a whole number, such as {int(x)}"
    if isinstance(x, str) and x.isidentifier():
        return f"write sym.{x}, with its value in subs"
    return "write whole numbers, symbols and + - * / // %"


def _combine(how: str, a: object, b: object) -> Expression:
    for other in (a, b):
        if not isinstance(other, Expression) and hasattr(other, "builder"):
            return NotImplemented  # type: ignore[no-any-return]  # a traced value takes the expression in
        if isinstance(other, float):
            _refuse_float(how, a, b, other)
    return Combined(how, expression(a), expression(b))


def _join(how: str, a: object, b: object) -> Expression:
    """Return both conditions, or either."""
    joined = _combine(how, a, b)
    if isinstance(joined, Combined):
        for x in (joined.a, joined.b):
            if not isinstance(x, Combined) or x.how not in CONDITIONS:
                raise SymbolError(f"{how} joins conditions, not {x}", loc=here(), remedy="write (a < b) & (c < d)")
    return joined


def _refuse_float(how: str, a: object, b: object, x: float) -> NoReturn:
    """Refuse a float in an index expression, which may be meant for a tile of floats."""
    one, other = (f"cast({e}, f32)" if isinstance(e, Expression) else repr(e) for e in (a, b))
    raise SymbolError(
        f"{x!r} is no index expression",
        loc=here(),
        remedy=f"write {one} {how} {other} among floats of a kernel; for sizes and indices, {whole_in_place_of(x)}",
    )


def _fold(how: str, first: object, *rest: object) -> Expression:
    result = expression(first)
    for x in rest:
        result = Combined(how, result, expression(x))
    return result


def _bracket(x: Expression) -> str:
    return f"({x})" if isinstance(x, Combined) and x.how not in ("Min", "Max") else str(x)


def _is_ratio(x: Expression) -> bool:
    if isinstance(x, Combined):
        return x.how == "/" or _is_ratio(x.a) or _is_ratio(x.b)
    return False


# -- evaluation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """The exact quotient a / b, until it is rounded."""

    a: Index
    b: Index


OPERATORS: dict[str, Callable[[Index, Index], Index]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    "==": lambda a, b: a.equals(b) if hasattr(a, "equals") else b.equals(a) if hasattr(b, "equals") else a == b,
    "&": lambda a, b: (b if a else a) if isinstance(a, bool) else (a if b else b) if isinstance(b, bool) else a & b,
    "|": lambda a, b: (a if a else b) if isinstance(a, bool) else (b if b else a) if isinstance(b, bool) else a | b,
    "!=": lambda a, b: a.differs(b) if hasattr(a, "differs") else b.differs(a) if hasattr(b, "differs") else a != b,
    "Min": lambda a, b: a.smaller(b) if _has_sign(a) else b.smaller(a) if _has_sign(b) else smaller(a, b),
    "Max": lambda a, b: a.larger(b) if _has_sign(a) else b.larger(a) if _has_sign(b) else larger(a, b),
}


def _has_sign(x: Index) -> bool:
    """Return whether x is a kernel's number or tile: other numbers in expressions are not negative."""
    return hasattr(x, "dims")


class _Evaluation:
    """Evaluates expressions, each common subexpression once, so that a kernel's code has it once."""

    def __init__(self, values: Mapping[Symbol, Index]) -> None:
        self.values = values
        self.done: dict[int, Index | Ratio] = {}
        self.asked: Expression = Whole(0)

    def whole(self, x: Expression) -> Index:
        self.asked = x
        value = self.value(x)
        if not isinstance(value, Ratio):
            return value
        if isinstance(value.a, int) and isinstance(value.b, int):
            if value.a % value.b == 0:
                return value.a // value.b
            raise SymbolError(f"{x} is {value.a}/{value.b}, no whole number", loc=here(), remedy=ROUND_IT)
        raise SymbolError(f"{x} may be no whole number", loc=here(), remedy=ROUND_IT)

    def value(self, x: Expression) -> Index | Ratio:
        if id(x) not in self.done:
            self.done[id(x)] = self.compute(x)
        return self.done[id(x)]

    def compute(self, x: Expression) -> Index | Ratio:
        match x:
            case Whole(value):
                return value
            case Symbol():
                if x not in self.values:
                    raise no_value(*(s for s in dict.fromkeys(self.asked.symbols()) if s not in self.values))
                return self.values[x]
            case Rounded(how, inner):
                ratio = self.value(inner)
                if not isinstance(ratio, Ratio):
                    return ratio
                return ratio.a // ratio.b if how == "floor" else (ratio.a + ratio.b - 1) // ratio.b
            case Combined(how, a, b):
                try:
                    return _apply(how, self.value(a), self.value(b))
                except ZeroDivisionError:
                    raise SymbolError(f"{x} divides by zero", loc=here()) from None
            case Chosen(condition, a, b):
                holds = self.value(condition)
                if isinstance(holds, bool):
                    return self.value(a if holds else b)
                return choose(holds, self.value(a), self.value(b))
        raise NotImplementedError(f"no value is given to {type(x).__name__}")


ROUND_IT = "write // to round down, or ceiling(…) to round up"


def _apply(how: str, a: Index | Ratio, b: Index | Ratio) -> Index | Ratio:
    if not isinstance(a, Ratio) and not isinstance(b, Ratio):
        if how != "/":
            return OPERATORS[how](a, b)
        if isinstance(a, int) and isinstance(b, int) and a % b == 0:
            return a // b
        return Ratio(a, b)
    x = a if isinstance(a, Ratio) else Ratio(a, 1)
    y = b if isinstance(b, Ratio) else Ratio(b, 1)
    match how:
        case "+" | "-":
            return Ratio(OPERATORS[how](x.a * y.b, y.a * x.b), x.b * y.b)
        case "*":
            return Ratio(x.a * y.a, x.b * y.b)
        case "/":
            return Ratio(x.a * y.b, x.b * y.a)
        case "//":
            return (x.a * y.b) // (x.b * y.a)
        case "<" | "<=" | "==" | "!=":
            return OPERATORS[how](x.a * y.b, y.a * x.b)
        case _:
            raise SymbolError(f"{how} of a quotient", loc=here(), remedy=ROUND_IT)


# -- the border to sympy --------------------------------------------------------------------------------------------


def _from_sympy(x: Any) -> Expression:
    """Return an expression that sympy's functions built of tilewave's symbols, as tilewave's."""
    if getattr(x, "is_Dummy", False) and x.dummy_index in _SEEN_BY_SYMPY:
        return _SEEN_BY_SYMPY[x.dummy_index]
    kind = type(x).__name__
    if getattr(x, "is_Symbol", False):
        return symbol_named(x.name)
    if getattr(x, "is_Rational", False):
        return Whole(int(x.p)) if x.q == 1 else Combined("/", Whole(int(x.p)), Whole(int(x.q)))
    args = [] if kind == "Piecewise" else [_from_sympy(a) for a in x.args]
    match kind:
        case "Add":
            return _chain("+", args)
        case "Mul":
            return _product(x)
        case "Pow" if x.exp == -1:
            return Combined("/", Whole(1), args[0])
        case "Pow" if getattr(x.exp, "is_Integer", False) and x.exp > 0:
            return _chain("*", [args[0]] * int(x.exp))
        case "Mod":
            return Combined("%", *args)
        case "floor" | "ceiling":
            return Rounded(kind, args[0])
        case "Min" | "Max":
            return _chain(kind, args)
        case "And" | "Or":
            return _chain("&" if kind == "And" else "|", args)
        case "Piecewise":
            return Piecewise(*((value, True if str(holds) == "True" else holds) for value, holds in x.args))
        case _ if kind in _SYMPY_RELATIONS:
            how, swapped = _SYMPY_RELATIONS[kind]
            return Combined(how, *(reversed(args) if swapped else args))
    raise SymbolError(
        f"sympy's {kind} is no index expression: {x}", loc=here(), remedy="write + - * / // % Min Max floor"
    )


_SYMPY_RELATIONS = {
    "StrictLessThan": ("<", False),
    "LessThan": ("<=", False),
    "StrictGreaterThan": ("<", True),
    "GreaterThan": ("<=", True),
    "Equality": ("==", False),
    "Unequality": ("!=", False),
}


def _chain(how: str, parts: list[Expression]) -> Expression:
    result = parts[0]
    for part in parts[1:]:
        result = Combined(how, result, part)
    return result


def _product(x: Any) -> Expression:
    """Return one quotient of products: sympy writes a / b as a times b to the power -1."""
    above, below = x.as_numer_denom()
    factors = [_from_sympy(a) for a in (above.args if type(above).__name__ == "Mul" else [above])]
    numerator = _chain("*", factors)
    return numerator if below == 1 else Combined("/", numerator, _from_sympy(below))
