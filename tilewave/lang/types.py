"""The types of annotations: memories, register tiles, dtypes and address spaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from tilewave.errors import NOWHERE, DimensionError, DTypeError, Loc, NoAttribute, TraceError, here
from tilewave.forks import IMPORTING
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import Broadcast
from tilewave.ir.types import DTYPES, INTERNAL, DType, Tile
from tilewave.lang.pythons_own import of_attribute
from tilewave.lang.symbols import Expression, Symbol, expression, rounded_where_open, want_no_hardware
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, literal, scalar_of
from tilewave.lang.windows import extent_of, want_room
from tilewave.records import dataclass
from tilewave.trace import DimensionWindow, Trace, current


class _SympySymbol:
    """What sympy takes as a symbol of that name: authors pass all of their `subs` to the `subs` of an expression."""

    def _sympy_(self) -> Any:
        with IMPORTING:
            import sympy  # noqa: PLC0415  optional: installed only if the author uses it

        return sympy.Symbol(repr(self))


class AddressSpace(_SympySymbol, Enum):
    """The address space of a memory: `global`, or `shared`, which asks to stage its tiles in shared memory."""

    GLOBAL = "global"
    SHARED = "shared"
    GLOBAL_MEMORY = GLOBAL
    SHARED_MEMORY = SHARED
    """Wave's names of the address spaces."""

    def __repr__(self) -> str:
        return f"{self.name}_ADDRESS_SPACE"

    __str__ = __repr__


GLOBAL_ADDRESS_SPACE = AddressSpace.GLOBAL
SHARED_ADDRESS_SPACE = AddressSpace.SHARED


@dataclass(frozen=True)
class MemoryType:
    """`Memory[M, K, SPACE, f16]`."""

    dims: tuple[Expression, ...]
    space: AddressSpace | Symbol
    dtype: DType
    loc: Loc = field(default=NOWHERE, compare=False, repr=False)
    layout: MemoryLayout | None = None
    contract: Indices | None = None

    def __str__(self) -> str:
        return f"Memory[{', '.join(map(str, (*self.dims, self.space, self.dtype)))}]"


@dataclass(frozen=True)
class RegisterType:
    """`Register[M, N, f32]`; called with a number it returns a tile filled with it."""

    dims: tuple[Expression, ...]
    dtype: DType

    def __call__(self, value: Any) -> Traced:
        """Return a tile filled with a Python number, an expression of symbols, or a number of the kernel."""
        trace = current("Register")
        kind = Tile(tuple(extent_of(trace, d, "a register tile") for d in self.dims), self.dtype)
        want_room(trace, kind, self.dims, "a register tile")
        if isinstance(value, (Expression, Number)):
            filled = trace.emit(Broadcast, scalar_of(trace, value, self.dtype).value, (), type=kind)
            return Traced(trace, filled, self.dims)
        return Traced(trace, trace.const_named(literal(value, self.dtype), kind), self.dims)


@taggable
def register(shape: Sequence[Any], dtype: DType, value: float) -> Traced:
    """Return a tile filled with a number: Wave's `register((M, N), f32, 0.0)` for `Register[M, N, f32](0.0)`."""
    return RegisterType(tuple(expression(d) for d in shape), want_dtype(dtype))(value)


@dataclass(frozen=True)
class Indices:
    """The contract of an array of indices: `Memory[T, GLOBAL_ADDRESS_SPACE, i32, Indices(into=V, unique=True)]`.

    Interpreters check it at every run, compiled kernels in calls with check=True, or TILEWAVE_CHECK=1. No access
    depends on it: an index out of bounds reads 0 and stores nothing.
    """

    into: Any = None
    """The dim that they are indices along: each is less than its length, and at least 0, or -1, which is no place."""
    unique: bool = False
    """Whether no two of them are equal; those that are no place may be."""
    sorted: bool = False
    """Whether none is less than the one before."""

    def words(self, length: Callable[[Any], str]) -> tuple[str, ...]:
        """Return the contract as words; `length` gives the length of a dim, or its name in the IR."""
        flags = [name for name in ("unique", "sorted") if getattr(self, name)]
        return ("" if self.into is None else length(self.into), *flags)


@dataclass(frozen=True)
class MemoryLayout:
    """The length of a memory's array along each axis; None for the length of the dim.

    Along an axis of another length than its dim's, accesses say where their elements are.
    """

    shape: Sequence[Any]

    def lengths(
        self, name: str, loc: Loc, dims: Sequence[Expression], subs: Mapping[Any, Any], others: Collection[Expression]
    ) -> Iterator[tuple[Expression, Expression]]:
        """Yield the dims along which the array has another length than `subs` or one of the `others` gives the dim."""
        if len(self.shape) != len(dims):
            what = f"{name}: its layout has {len(self.shape)} sizes, and it has {len(dims)} dims"
            raise DimensionError(what, loc=loc, remedy="give one for each dim; None is the length of the dim")
        for dim, said in zip(dims, self.shape, strict=True):
            if said is None or expression(said) == dim:
                continue
            own = rounded_where_open(expression(said), subs)
            length, mine = rounded_where_open(dim, subs).evaluate(subs), own.evaluate(subs)
            gives_it = isinstance(mine, int) and not isinstance(length, int) and dim not in others
            if not gives_it and mine is not length and not (isinstance(length, int) and mine == length):
                yield dim, own


NO_LAYOUT = (
    "declare it with a symbol for each axis of the array, or give the position of a tile in it by an IndexMapping"
)


@dataclass(frozen=True)
class BoundSymbol:
    """The annotation of a symbol that is an argument: `SymbolBind[i32]`."""

    dtype: DType


class SymbolBind:
    """Annotates a symbol whose value is an argument: `LENGTH: SymbolBind[i32]` gives `sym.LENGTH` its value."""

    def __class_getitem__(cls, dtype: Any) -> BoundSymbol:
        found = want_dtype(dtype)
        if not found.is_int:
            raise DTypeError(f"SymbolBind[{found}]: symbols are integers", loc=here(), remedy="write SymbolBind[i32]")
        return BoundSymbol(found)


class _OfMemories(type):
    """The metaclass of `Memory`: type checkers read its `__getitem__`, and not `__class_getitem__`."""

    def __getitem__(cls, parts: Any) -> MemoryType:
        layout, contract = None, None
        while isinstance(parts, tuple) and isinstance(parts[-1], (MemoryLayout, Indices)):
            *said, last = parts
            layout, contract = (last, contract) if isinstance(last, MemoryLayout) else (layout, last)
            parts = tuple(said)
        *dims, space, dtype = parts if isinstance(parts, tuple) and len(parts) >= 3 else _too_few("Memory", parts)
        if isinstance(dtype, AddressSpace):
            want_dtype(dtype, f"Memory[{', '.join(map(str, parts))}, f16]")
        if not isinstance(space, (AddressSpace, Symbol)):
            _wrong(f"Memory[…, {space!r}, {dtype}] names no address space")
        want_no_hardware("Memory", *dims)
        return MemoryType(tuple(expression(d) for d in dims), space, want_dtype(dtype), here(), layout, contract)


class Memory(metaclass=_OfMemories):
    """Annotates an argument: `Memory[M, K, GLOBAL_ADDRESS_SPACE, f16]`; a MemoryLayout or the contract of an array of
    indices may follow the dtype."""


class _OfRegisters(type):
    """The metaclass of `Register`, for the reason of `_OfMemories`."""

    def __getitem__(cls, parts: Any) -> RegisterType:
        *dims, dtype = parts if isinstance(parts, tuple) and len(parts) >= 2 else _too_few("Register", parts)
        if isinstance(dtype, Symbol):
            want_dtype(dtype, f"Register[{', '.join(map(str, parts))}, f32]")
        return RegisterType(tuple(expression(d) for d in dims), want_dtype(dtype))


class Register(metaclass=_OfRegisters):
    """The type of a tile in registers: `Register[M, N, f32]`; `Register[M, N, f32](0.0)` makes one."""


def _too_few(what: str, parts: Any) -> Any:
    if what == "Memory" and isinstance(parts, tuple) and isinstance(parts[-1], DType):
        remedy = f"write Memory[{parts[0]}, GLOBAL_ADDRESS_SPACE, {parts[-1]}]"
        raise DTypeError(f"Memory[{parts[0]}, {parts[-1]}] names no address space", loc=here(), remedy=remedy)
    example = "[M, K, GLOBAL_ADDRESS_SPACE, f16]" if what == "Memory" else "[M, N, f32]"
    raise DTypeError(f"{what}[{parts}] is incomplete", loc=here(), remedy=f"write {what}{example}")


def _wrong(what: str) -> None:
    raise DTypeError(what, loc=here(), remedy="write Memory[M, K, GLOBAL_ADDRESS_SPACE, f16]")


def want_dtype(x: Any, example: str = "") -> DType:
    """Return a tilewave dtype; for another library's dtype the error gives tilewave's name."""
    if isinstance(x, DType):
        return x
    if isinstance(x, (AddressSpace, Symbol)) and example:
        raise DTypeError(f"the dtype is missing; {x} is none", loc=here(), remedy=f"write {example}")
    shown = x.__name__ if isinstance(x, type) else repr(x)
    ours = _ours(x)
    remedy = f"write {ours}" if ours else "write f16, bf16, f32, i8, …"
    raise DTypeError(f"{shown} is no dtype of tilewave's", loc=here(), remedy=remedy)


def _ours(x: Any) -> str:
    """Return tilewave's name of a numpy, torch or Python dtype; empty where it has none."""
    if x is float:
        return "f32 or f64"
    if x is int:
        return "i32 or i64"
    name = x if isinstance(x, str) else getattr(x, "__name__", None) or str(x).removeprefix("torch.")
    public = [d for d in DTYPES.values() if d not in INTERNAL]
    return next((d.name for d in public if name in (d.name, d.numpy.name)), "")


@dataclass(frozen=True)
class MemoryArgument:
    """The value that the kernel's function gets for an argument annotated `Memory[…]`."""

    name: str
    value: Value
    dims: tuple[Expression, ...]
    space: AddressSpace
    laid_out: Mapping[Expression, Any] = field(default_factory=dict, compare=False)
    """The array's lengths that its layout gives and that differ from those of the dims."""

    def want_same_lengths(self, dims: Iterable[Expression], length: Callable[[Expression], Any]) -> None:
        """Refuse the window of a tile along axes of other lengths than those of the dims."""
        for d in dims:
            if d in self.laid_out:
                what = f"{self.name}: its layout has {self.laid_out[d]} elements along {d}, which is {length(d)}"
                raise DimensionError(what, loc=here(), remedy=NO_LAYOUT)

    def start(self, window: DimensionWindow) -> Any:
        """Return where a tile with this window of a dimension begins in the memory."""
        return window.start

    @property
    def through(self) -> str:
        """The address space that tiles are staged in; empty for none."""
        return "shared" if self.space is AddressSpace.SHARED else ""

    @property
    def has_edges(self) -> bool:
        """Whether there are boundary tiles, whose out-of-bounds elements are 0."""
        return True

    def want_room(self, op: str, axes: Sequence[int], shape: Sequence[int]) -> None:
        """Refuse a tile that is longer than the memory; an array may have boundary tiles."""

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.dims))}]"

    __repr__ = __str__

    @property
    def read_as(self) -> str:
        """The expression that gives its tile, for error messages."""
        return f"read({self.name})"

    def __setitem__(self, key: object, value: object) -> NoReturn:
        remedy = f"write write(tile, {self.name})"
        raise TraceError(f"{self} is a memory, and an assignment stores nothing in it", loc=here(), remedy=remedy)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            its_tile = f"write {self.read_as} for its tile"
            known = hasattr(Traced, name)
            remedy = f"write {self.read_as}.{name}" if known else of_attribute(name, self.dims, its_tile)
            raise NoAttribute(f"{self} is a memory, and has no .{name}", loc=here(), remedy=remedy)

    def _unread(self, *_: object) -> NoReturn:
        raise TraceError(f"{self} is a memory, not a tile", loc=here(), remedy=f"write {self.read_as}")

    __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __neg__ = __abs__ = __getitem__ = _unread
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __matmul__ = __rmatmul__ = _unread
    __lt__ = __le__ = __gt__ = __ge__ = __floordiv__ = __mod__ = __and__ = __or__ = __invert__ = _unread
    __xor__ = __rxor__ = __rand__ = __ror__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _unread


@dataclass(frozen=True)
class ScalarArgument:
    """A scalar argument, `alpha: f32`; one of dtype index is passed as an i64."""

    value: Value
    dtype: DType

    def traced(self, trace: Trace) -> Traced:
        """Return the value that the kernel's function gets for it."""
        return Traced(trace, trace.cast(self.value, self.dtype))
