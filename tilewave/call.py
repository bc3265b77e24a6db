"""`kernel(*arrays)`: sizes from the arrays' shapes, the target from where they are; compiled at most once, then run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import CodeType
from typing import Any

from numpy import ndarray

from tilewave.backend.targets import target_on
from tilewave.compile import Compiled, WaveCompileOptions, wave_compile
from tilewave.errors import NOWHERE, CallError, SymbolError, TraceError, here
from tilewave.ir.types import I64, INDEX, DType
from tilewave.lang.constraints import WorkgroupConstraint
from tilewave.lang.index_mapping import IndexMapping
from tilewave.lang.kernel import WaveKernel, check_subs, given_subs, parameters_of
from tilewave.lang.sizes import Shape, inferred_sizes
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.types import MemoryType
from tilewave.runtime.arrays import HOST, Parameter, check_call, place_of
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.remedies import moved
from tilewave.runtime.signature import Signature
from tilewave.trace import is_tracing

KEPT_KERNELS = 64
"""Compiled kernels that a kernel remembers; the oldest is forgotten first."""
KEPT_CALLS = 1024
"""Kinds of calls that it remembers, by where their arrays are and their shapes; more, and it starts afresh."""

Places = tuple[tuple[str, Shape], ...]
"""Where each array is, and its shape."""


def prepared(kernel: WaveKernel) -> KernelCalls:
    """What answers the calls of a kernel, from the first one on."""
    found: KernelCalls = kernel.kept.setdefault("call", KernelCalls(kernel))
    return found


def compile_kernel(
    kernel: WaveKernel, target: str | None, subs: Mapping[Symbol, Any], options: Mapping[str, Any]
) -> Compiled:
    """What `kernel.compile(…)` gives."""
    return wave_compile(WaveCompileOptions(subs=subs, target=target, **options), kernel)


def compiled_for(kernel: WaveKernel, target: str, subs: Mapping[Symbol, Any]) -> Compiled:
    """The kernel for a target, all its sizes known."""
    return wave_compile(WaveCompileOptions(subs=subs, target=target), kernel)


class KernelCalls:
    """The calls of one kernel: what it takes, and what was compiled for those before."""

    def __init__(self, kernel: WaveKernel) -> None:
        self.kernel = kernel
        parameters = parameters_of(kernel)
        self.memories = [(name, kind) for name, kind in parameters if isinstance(kind, MemoryType)]
        numbers = {name: _passed_as(kind) for name, kind in parameters if isinstance(kind, DType)}
        self.signature = Signature(kernel.name, tuple(name for name, _ in parameters), numbers)
        self.cut = [c.dim for c in kernel.constraints if isinstance(c, WorkgroupConstraint)]
        self.symbols = {s.name: s for s in (*_symbols_of_body(kernel), *kernel.subs, *kernel.symbols())}
        for name in self.signature.names:
            if name in self.symbols:
                what = f"{kernel.name}: {name} is a parameter and a symbol"
                raise SymbolError(what, loc=kernel.loc, remedy="rename one of them")
        self._kernels: dict[Any, Compiled] = {}
        self._calls: dict[Any, Compiled] = {}
        self._plain: dict[Any, Compiled] = {}
        """The same for calls that give numpy arrays and nothing else, by their shapes."""

    def __call__(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        if not named and not self.signature.dtypes:
            compiled = self._plain.get(tuple([a.shape if type(a) is ndarray else None for a in given]))
            if compiled is not None and not is_tracing():
                compiled.launch(given, {})
                return
        if is_tracing():
            what = f"{self.kernel.name} is a kernel, and is called while another is being traced"
            raise TraceError(
                what, loc=here(), remedy="call one after the other, outside; an inner function needs no @wave"
            )
        call = self.signature.bind(given, named)
        places = self._places(call.arrays)
        key = places, self._key(call.symbols)
        compiled = self._calls.get(key)
        if compiled is None:
            compiled = self._compiled(call.arrays, places, call.symbols)
            if compiled is None:
                return
            if len(self._calls) >= KEPT_CALLS:
                self._calls.clear()
                self._plain.clear()
            self._calls[key] = compiled
            if not named and not self.signature.dtypes and all(type(a) is ndarray for a in given):
                self._plain[tuple([a.shape for a in given])] = compiled
        compiled.launch(call.arrays, call.scalars)

    # -- what a call is about

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

    def _key(self, symbols: Mapping[str, Any]) -> Any:
        """The symbols of a call as a dict's key."""
        return tuple(sorted((s.name, value) for s, value in self._given(symbols).items())) if symbols else ()

    def _given(self, symbols: Mapping[str, Any]) -> dict[Symbol, Any]:
        """Those of a call by its keywords, `subs` among them."""
        found = given_subs(symbols.get("subs") or {})
        for name, value in symbols.items():
            if name == "subs":
                continue
            if name not in self.symbols:
                raise self._unknown(name)
            found.update(given_subs({self.symbols[name]: value}))
        return found

    def _unknown(self, name: str) -> CallError:
        known = [*self.signature.names, *self.symbols]
        near = get_close_matches(name, known, 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        what = f"{self.kernel.name} has neither a parameter nor a symbol {name}"
        return CallError(what, loc=here(), remedy=f"{guess}It takes {', '.join(known)}")

    # -- compiling

    def _compiled(self, arrays: Sequence[Any], places: Places, symbols: Mapping[str, Any]) -> Compiled | None:
        """None where there is no tile to compute; an error before anything is compiled where arrays do not fit."""
        device = self._device(arrays, places)
        subs = self._subs([shape for _, shape in places], self._given(symbols))
        self._check(arrays, subs, device)
        target = target_on(self.kernel.name, device).name
        if any(_size(dim, subs) == 0 for dim in self.cut):
            return None
        key = target, frozenset(subs.items())
        if key not in self._kernels:
            if len(self._kernels) >= KEPT_KERNELS:
                self._kernels.pop(next(iter(self._kernels)), None)
            with _missing_told(self.kernel.name):
                self._kernels[key] = compiled_for(self.kernel, target, subs)
        return self._kernels[key]

    def _subs(self, shapes: Sequence[Shape], given: Mapping[Symbol, Any]) -> dict[Symbol, Any]:
        """What all symbols are worth: as the call says, as the decorator says, as the arrays tell."""
        name, own = self.kernel.name, {**self.kernel.subs, **given}
        numbers = {
            s: value.evaluate({}) for s, value in own.items() if isinstance(value, Expression) and _is_known(value)
        }
        told = inferred_sizes(name, self.memories, shapes, {**own, **numbers})
        with _missing_told(name):
            everything = check_subs({**told, **own})
        inferred_sizes(name, self.memories, shapes, everything)
        return everything

    def _device(self, arrays: Sequence[Any], places: Places) -> str:
        """The one that all arrays are on."""
        names = [name for name, _ in self.memories]
        first = next((i for i, (device, _) in enumerate(places) if device != HOST), 0)
        device, _ = places[first] if places else (HOST, ())
        for name, array, (other, shape), (_, kind) in zip(names, arrays, places, self.memories, strict=True):
            if _is_other(other, device):
                remedy = f"pass {moved(Parameter(name, shape, kind.dtype, False), array, device)}"
                what = f"{self.kernel.name}: {name} is on {other}, but {names[first]} is on {device}"
                raise CallError(what, loc=here(), remedy=remedy)
            device = max(device, other, key=len)  # the one that tells its number
        return device

    def _check(self, arrays: Sequence[Any], subs: Mapping[Symbol, Any], device: str) -> None:
        """As the compiled kernel will, except for what it writes, which is not known yet."""
        shapes = [tuple(_size(d, subs) for d in kind.dims) for _, kind in self.memories]
        memories = zip(self.memories, shapes, strict=True)
        try:
            wanted = [Parameter(name, shape, kind.dtype, False) for (name, kind), shape in memories]
            check_call(self.kernel.name, wanted, arrays, device, NOWHERE)
        except CallError as error:
            raise error.at(here()) from None


def _passed_as(kind: DType) -> DType:
    return I64 if kind == INDEX else kind


def _is_known(value: Expression) -> bool:
    return next(iter(value.symbols()), None) is None


def _is_other(one: str, other: str) -> bool:
    """Whether they are certainly two devices: `cuda` is a CUDA device that nobody numbered."""
    numbered = ":" in one and ":" in other
    return one != other if numbered else one.partition(":")[0] != other.partition(":")[0]


@contextmanager
def _missing_told(kernel: str) -> Iterator[None]:
    """A symbol that nobody gave a value is told in the words of a call."""
    try:
        yield
    except SymbolError as error:
        name = error.missing
        if not name:
            raise
        raise SymbolError(
            f"{kernel}: {name} has no value, and no array tells it",
            loc=here(),
            remedy=f"write {kernel}(…, {name}=…), or @wave(constraints, subs={{{name}: …}})",
            missing=name,
        ) from None


def _size(dim: Any, subs: Mapping[Symbol, Any]) -> int:
    found: int = dim.evaluate(dict(subs))
    return found


# symbols of the author's function -----------------------------------------------------------------------------------


def _symbols_of_body(kernel: WaveKernel) -> Iterator[Symbol]:
    """Those that the function reaches by a name: symbols, and expressions and index mappings made of them."""
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
