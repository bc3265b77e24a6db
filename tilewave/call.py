"""`kernel(*arrays)`: sizes from the arrays' shapes, the target from their device; compiled at most once, then run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import CodeType
from typing import Any

from tilewave.analysis.contracts import CHECKED, checking
from tilewave.backend.protocol import ReplayedCall
from tilewave.backend.targets import target_on
from tilewave.compile import compile_near, wave_compile
from tilewave.compiled import Compiled
from tilewave.errors import PACKAGE, CallError, SymbolError, TraceError, here, in_built_in
from tilewave.ir.core import word
from tilewave.ir.types import I64, INDEX, DType
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.index_mapping import IndexMapping
from tilewave.lang.kernel import Calling, WaveKernel, given_subs, parameters_of
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.types import MemoryType
from tilewave.options import WaveCompileOptions, in_place_of_option
from tilewave.records import dataclass
from tilewave.runtime.arrays import HOST, Parameter, Shape, place_of, quick_place
from tilewave.runtime.call_cache import CallCache
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.dynamic_calls import DynamicKernel
from tilewave.runtime.remedies import moved
from tilewave.runtime.signature import Signature
from tilewave.trace import is_tracing

KEPT_KERNELS = 64
"""The most compiled kernels stored for one kernel; the oldest is dropped first."""

Places = tuple[tuple[str, Shape], ...]
"""The device and shape of each array."""


def prepared(kernel: WaveKernel) -> KernelCalls:
    """Return the object that serves the calls of a kernel, made at the first one."""
    found: KernelCalls | None = kernel.kept.get("call")
    return kernel.kept.setdefault("call", KernelCalls(kernel)) if found is None else found


def compile_kernel(
    kernel: WaveKernel, target: str | None, subs: Mapping[Symbol, Any], options: Mapping[str, Any]
) -> Compiled:
    """Return the result of `kernel.compile(…)`."""
    return wave_compile(WaveCompileOptions(subs=subs, target=target, **{**kernel.options, **options}), kernel)


def compiled_for(
    kernel: WaveKernel,
    target: str,
    subs: Mapping[Symbol, Any],
    max_sizes: Mapping[Symbol, int],
    sizes: Mapping[Symbol, int],
) -> Compiled:
    """Return the kernel for a target; sizes without a value in `subs` stay dynamic, up to a bound for whole dims.

    `sizes` are those of the call that it is compiled for.
    """
    options = WaveCompileOptions(subs=subs, target=target, max_sizes=max_sizes, **kernel.options)
    return compile_near(options, kernel, sizes)


WaveKernel.calling = Calling(prepared, compile_kernel, in_place_of_option)


LEAST_WHOLE, LEAST_STEP, LONG = 16, 64, 2048
"""The smallest size bucket, the least distance of two beyond it, and the length above which that is half of this."""


def room_for(length: int) -> int:
    """Return the size bucket of a whole dimension, so that few kernels serve all lengths: the next multiple of an
    eighth of the next power of two. Up to `LEAST_STEP` it is that power, and long buckets are `LONG // 2` apart."""
    power = power_of_two_for(length)
    step = max(LEAST_STEP if power <= LONG else LONG // 2, power // 8)
    return power if power <= LEAST_STEP else -(-length // step) * step


def power_of_two_for(length: int) -> int:
    """Return the next power of two, at least the smallest size bucket."""
    return max(LEAST_WHOLE, 1 << max(length - 1, 0).bit_length())


@dataclass(frozen=True)
class WholeSize:
    """A size that no constraint divides, and the array and axis that give it."""

    symbol: Symbol
    array: int
    axis: int


class KernelCalls:
    """The calls of one kernel: its signature, and the code compiled for earlier calls."""

    def __init__(self, kernel: WaveKernel) -> None:
        self.kernel, self.is_built_in = kernel, kernel.loc.file.startswith(PACKAGE)
        parameters = parameters_of(kernel)
        self.memories = [(name, kind) for name, kind in parameters if isinstance(kind, MemoryType)]
        numbers = {word(name): _passed_as(kind) for name, kind in parameters if isinstance(kind, DType)}
        self.signature = Signature(kernel.name, tuple(word(name) for name, _ in parameters), numbers)
        dims = [d for _, kind in self.memories for d in kind.dims if isinstance(d, Symbol)]
        self.passed = {d.name for d in dims if d not in kernel.subs}
        """The sizes that array shapes give."""
        self.symbols = {s.name: s for s in (*_symbols_of_body(kernel), *kernel.subs, *kernel.symbols())}
        for name in self.signature.names:
            if name in self.symbols:
                what = f"{kernel.name}: {name} is a parameter and a symbol"
                raise SymbolError(what, loc=kernel.loc, remedy="rename one of them")
        self.whole = _whole_sizes(kernel, self.memories)
        """The sizes that every workgroup may take whole: there is a kernel for each size bucket."""
        self._kernels: dict[Any, Compiled] = {}
        self._without_symbols: CallCache[tuple[Any, ...] | None, Compiled] = CallCache(KEPT_KERNELS)
        """Kernels of calls without symbols, by the device of each array and the buckets of whole sizes."""

    def __call__(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        if named and CHECKED in named and CHECKED not in (*self.signature.names, *self.symbols):
            with checking(named[CHECKED]):
                self(given, {name: value for name, value in named.items() if name != CHECKED})
            return
        if not self.is_built_in:
            self._call(given, named)
            return
        with in_built_in():
            self._call(given, named)

    def _call(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        if is_tracing():
            what = f"{self.kernel.name} is a kernel, and is called while another is being traced"
            raise TraceError(
                what, loc=here(), remedy="call one after the other, outside; an inner function needs no @wave"
            )
        call = arrays, scalars, others = self.signature.bind(given, named)
        where = None if others else self._where(arrays)
        known = self._without_symbols.get(where)
        if known is not None:
            known.launch(arrays, scalars)
            return
        symbols = self._given(call.symbols)
        places = self._places(call.arrays)
        compiled = self._compiled(self._device(call.arrays, places), symbols, places)
        if where is not None:
            self._without_symbols.keep(where, compiled)
        passed = {s.name: value.evaluate({}) for s, value in symbols.items() if self._is_given(s, value)}
        compiled.launch(call.arrays, {**call.scalars, **passed} if passed else call.scalars)

    def replay(self, given: Sequence[Any], named: Mapping[str, Any], fresh: Collection[int]) -> ReplayedCall | None:
        """Return a replayed call for arrays with the layout of these, after a first call: see `Compiled.replay`."""
        arrays, scalars, others = self.signature.bind(given, named)
        where = None if others else self._where(arrays)
        known = self._without_symbols.get(where)
        if known is None and not others:
            places = self._places(arrays)
            known = self._compiled(self._device(arrays, places), {}, places)
        return None if known is None else known.replay(arrays, scalars, fresh)

    def dynamic(self, given: Sequence[Any]) -> DynamicKernel | None:
        """Return the kernels that serve calls of any sizes, after a first call with these; None where Python must."""
        arrays, scalars, others = self.signature.bind(given, {})
        known = None if others else self._without_symbols.get(self._where(arrays))
        found = None if known is None else known.dynamic(arrays, scalars)
        whole = tuple((size.array, size.axis) for size in self.whole)
        return None if found is None else found._replace(pinned=whole)

    def words(self, numbers: Sequence[Any]) -> tuple[int, ...]:
        """Return scalar arguments, in the author's order, as launch words; an error where one is invalid."""
        return self.signature.words(numbers)

    # -- the key of a call

    def _where(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return what decides which kernel runs: the arrays' devices, and the buckets of whole sizes."""
        where = quick_place(arrays)
        if where is None or not self.whole:
            return where
        try:
            return where + tuple([room_for(arrays[size.array].shape[size.axis]) for size in self.whole])
        except (AttributeError, IndexError, TypeError):  # an array without a `shape`, or with too few axes
            return None

    def _max_sizes(self, places: Places, symbols: Mapping[Symbol, Any]) -> dict[Symbol, int]:
        """Return the buckets of sizes that the kernel takes whole; sizes that the call computes have none."""
        found = {}
        for size in self.whole:
            value, (_, shape) = symbols.get(size.symbol), places[size.array]
            if value is None or self._is_given(size.symbol, value):
                found[size.symbol] = room_for(shape[size.axis] if size.axis < len(shape) else 0)
        return found

    def _places(self, arrays: Sequence[Any]) -> Places:
        if len(arrays) != len(self.memories):
            names = ", ".join(self.signature.names)
            what = f"{self.kernel.name}: takes {len(self.memories)} arrays ({names}), but got {len(arrays)}"
            raise CallError(what, loc=here(), remedy=f"call {self.kernel.name}({names})")
        found = []
        for (name, _), array in zip(self.memories, arrays, strict=True):
            try:
                found.append(place_of(array))
            except Refused as refused:
                what = f"{self.kernel.name}: {name} {refused.what}"
                raise CallError(what, loc=here(), remedy=refused.remedy.replace("{name}", name)) from None
        return tuple(found)

    def _given(self, symbols: Mapping[str, Any]) -> dict[Symbol, Any]:
        """Return the symbols of a call from its keywords, including `subs`."""
        found = given_subs(symbols.get("subs") or {})
        for name, value in symbols.items():
            if name == "subs":
                continue
            if name not in self.symbols:
                raise self._unknown(name, value)
            found.update(given_subs({self.symbols[name]: value}))
        return found

    def _unknown(self, name: str, value: object) -> CallError:
        known = [*self.signature.names, *self.symbols]
        near = get_close_matches(name, known, 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        what = f"{self.kernel.name} has neither a parameter nor a symbol {name}"
        remedy = in_place_of_option(self.kernel.name, name, value) or f"{guess}It takes {', '.join(known)}"
        return CallError(what, loc=here(), remedy=remedy)

    # -- compiling

    def _compiled(self, device: str, symbols: Mapping[Symbol, Any], places: Places) -> Compiled:
        """Return the kernel for a device; sizes that array shapes give stay dynamic, even if the call names them."""
        max_sizes = self._max_sizes(places, symbols)
        subs = {s: value for s, value in symbols.items() if not self._is_given(s, value)}
        target = target_on(self.kernel.name, device).name
        said = target, *sorted((s.name, str(value)) for s, value in subs.items())
        found = self._kernels.get((said, *max_sizes.items()))
        if found is None:
            if len(self._kernels) >= KEPT_KERNELS:
                self._kernels.pop(next(iter(self._kernels)), None)
            with _missing_given(self.kernel.name, [str(kind.space) for _, kind in self.memories]):
                found = compiled_for(self.kernel, target, subs, max_sizes, self._sizes(places))
            key = said, *self._taken(found, max_sizes).items()
            self._kernels[key] = found
        return found

    def _sizes(self, places: Places) -> dict[Symbol, int]:
        """Return the sizes that the arrays of this call give."""
        found: dict[Symbol, int] = {}
        for (_, kind), (_, shape) in zip(self.memories, places, strict=True):
            pairs = zip(kind.dims, shape, strict=False)
            found.update({dim: length for dim, length in pairs if isinstance(dim, Symbol)})
        return found

    def _taken(self, compiled: Compiled, max_sizes: Mapping[Symbol, int]) -> Mapping[Symbol, int]:
        """Return the sizes that the kernel really takes whole; the others no longer need buckets."""
        taken = {name for name, _, _ in compiled.kernel.limits} if max_sizes else set()
        unused = {s for s in max_sizes if word(s.name) not in taken}
        self.whole = tuple(size for size in self.whole if size.symbol not in unused)
        return {s: most for s, most in max_sizes.items() if s not in unused}

    def _is_given(self, symbol: Symbol, value: Any) -> bool:
        """Return whether a symbol is a size that arrays give too, with a number that must agree with them."""
        return symbol.name in self.passed and isinstance(value, Expression) and not any(True for _ in value.symbols())

    def _device(self, arrays: Sequence[Any], places: Places) -> str:
        """Return the device that all arrays are on."""
        names = [name for name, _ in self.memories]
        first = next((i for i, (device, _) in enumerate(places) if device != HOST), 0)
        device, _ = places[first] if places else (HOST, ())
        for name, array, (other, shape), (_, kind) in zip(names, arrays, places, self.memories, strict=True):
            if _is_other(other, device):
                remedy = f"pass {moved(Parameter(name, shape, kind.dtype, False), array, device)}"
                what = f"{self.kernel.name}: {name} is on {other}, but {names[first]} is on {device}"
                raise CallError(what, loc=here(), remedy=remedy)
            device = max(device, other, key=len)  # `cuda:1` rather than `cuda`
        return device


def _whole_sizes(kernel: WaveKernel, memories: Sequence[tuple[str, MemoryType]]) -> tuple[WholeSize, ...]:
    """Return the sizes that only arrays give and no constraint divides, each with its first array axis."""
    cut = {c.dim for c in kernel.constraints if isinstance(c, (WorkgroupConstraint, TilingConstraint))}
    found: dict[Symbol, WholeSize] = {}
    for at, (_, kind) in enumerate(memories):
        for axis, dim in enumerate(kind.dims):
            if isinstance(dim, Symbol) and dim not in cut and dim not in kernel.subs:
                found.setdefault(dim, WholeSize(dim, at, axis))
    return tuple(found.values())


def _passed_as(kind: DType) -> DType:
    return I64 if kind == INDEX else kind


def _is_other(one: str, other: str) -> bool:
    """Return whether two names certainly mean two devices: `cuda` is a CUDA device of unknown number."""
    numbered = ":" in one and ":" in other
    return one != other if numbered else one.partition(":")[0] != other.partition(":")[0]


@contextmanager
def _missing_given(kernel: str, spaces: Collection[str]) -> Iterator[None]:
    """Raise the error of a symbol without a value, other than an address space, with a remedy for calls."""
    try:
        yield
    except SymbolError as error:
        name = error.missing
        if not name or name in spaces:
            raise
        code, call = Symbol(name).code, here()
        value = error.example
        given = f"{name}={value}" if code == name else f"subs={{{code}: {value}}}"
        used = "" if str(error.loc) == str(call) else f"\nit is used at {error.loc}"
        raise SymbolError(
            f"{kernel}: {name} has no value, and no array gives it",
            loc=call,
            remedy=f"write {kernel}(…, {given}), or @wave(constraints, subs={{{code}: {value}}}){used}",
            missing=name,
        ) from None


# symbols of the author's function -----------------------------------------------------------------------------------


def _symbols_of_body(kernel: WaveKernel) -> Iterator[Symbol]:
    """Yield the symbols that the function names: directly, or in expressions and index mappings."""
    function = kernel.function
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    reached = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}
    for name in dict.fromkeys(_names(function.__code__)):
        yield from _symbols_in(reached.get(name))


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty one raises
    except ValueError:
        return False
    return True


def _symbols_in(found: object) -> Iterator[Symbol]:
    if isinstance(found, Expression):
        yield from found.symbols()
    if isinstance(found, IndexMapping):
        for place in (*found.inputs.values(), *found.outputs.values()):
            yield from place.symbols()
