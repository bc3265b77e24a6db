"""`@wave(constraints)`: an author's function and its constraints; compiling traces it once, with known tile sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar, NoReturn, Protocol

from tilewave.analysis.contracts import ENDS
from tilewave.errors import (
    CallError,
    ConstraintError,
    Loc,
    SymbolError,
    TilewaveError,
    TraceError,
    here,
    raised_at,
)
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.constraint_locations import Places
from tilewave.ir.core import Block, Kernel, Value, word
from tilewave.ir.launch import MOST_OPEN, at_launch
from tilewave.ir.types import BOOL, I64, INDEX, INDEX_SCALAR, DType, Scalar
from tilewave.ir.types import Memory as IrMemory
from tilewave.lang.assumptions import Assumed, assumed, assumed_multiples, wholly_divided
from tilewave.lang.constraints import (
    Constraint,
    GridConstraint,
    ReorderingConstraint,
    TilingConstraint,
    WorkgroupMapping,
    order_of_tiles,
)
from tilewave.lang.geometry import Geometry, GridShare, Order, one_part_each, places_of, resolve, size
from tilewave.lang.pythons_own import assigned_inside, misused
from tilewave.lang.ragged import ordered_in_group, place_in_group
from tilewave.lang.symbols import (
    COORDINATES,
    HARDWARE,
    Expression,
    Symbol,
    expression,
    rounded_where_open,
    want_no_hardware,
)
from tilewave.lang.types import (
    GLOBAL_ADDRESS_SPACE,
    AddressSpace,
    BoundSymbol,
    Indices,
    MemoryArgument,
    MemoryLayout,
    MemoryType,
    ScalarArgument,
)
from tilewave.lang.wave_words import no_such_name
from tilewave.mapping import Coverage
from tilewave.records import dataclass
from tilewave.renamed import current_options
from tilewave.trace import ANYWHERE, NO_WORK, DimensionWindow, TileLimits, TileWork, Trace, tracing

Argument = MemoryArgument | ScalarArgument
A_SPACE = "SHARED_ADDRESS_SPACE"
"""The value that errors suggest for the symbol of an address space."""


class PreparedCalls(Protocol):
    """The calls of one kernel, with what is compiled for them."""

    def __call__(self, given: Sequence[Any], named: Mapping[str, Any]) -> None: ...

    def replay(self, given: Sequence[Any], named: Mapping[str, Any], fresh: Collection[int]) -> Any: ...

    def dynamic(self, given: Sequence[Any]) -> Any: ...

    def words(self, numbers: Sequence[Any]) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Calling:
    """The functions that call and compile kernels."""

    prepared: Callable[[WaveKernel], PreparedCalls]
    """Returns the calls of a kernel, made at the first one."""
    compile_kernel: Callable[[WaveKernel, str | None, Mapping[Symbol, Any], Mapping[str, Any]], Any]
    """Compiles a kernel for a target, with values of symbols and options."""
    in_place_of_option: Callable[[str, str, object], str]
    """Returns what to write for an option of compilation that was given elsewhere; empty for what is none."""


@dataclass(frozen=True, eq=False)
class WaveKernel:
    """A kernel as its author wrote it; nothing in it changes, however often it is compiled."""

    function: Callable[..., Any]
    constraints: tuple[Constraint, ...]
    loc: Loc
    subs: Mapping[Symbol, Any] = field(default_factory=dict)
    """Default values of symbols, where neither the options nor a call give one."""
    tune: Any = None
    """The tile sizes to autotune over, where none are given: a `Tune`, which the compiler reads."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `WaveCompileOptions` that calls of the kernel are compiled with, such as `num_stages`."""
    memories: Mapping[str, MemoryLayout | Indices] = field(default_factory=dict, repr=False)
    """The layouts and contracts of arrays whose annotations have none, by name."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What calls store for later ones, such as compiled code."""
    calling: ClassVar[Calling]
    """How every kernel is called; `tilewave.call` sets it, and is imported with the public names and the kernels."""

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, /, *arrays: Any, **named: Any) -> None:
        """Run the kernel on the device of its arrays, with their sizes; it is compiled once for each kind of call.

        Arrays and scalars come in the author's order or by name; symbols by name, or in `subs={…}`. With `check=True`,
        contracts of index arrays and assertions are checked before.
        """
        call = self.kept.get("call") or self.calling.prepared(self)
        call(arrays, named)

    def __getitem__(self, grid: object) -> NoReturn:
        """Refuse `kernel[grid](…)`: the constraints say how many workgroups there are."""
        raise no_grid(self.name, [name for name, _ in parameters_of(self)])

    def replay(self, arrays: Sequence[Any], fresh: Collection[int]) -> Any:
        """Return a replayed call for arrays with the layout of these, after a first call: see `Compiled.replay`."""
        return self.calling.prepared(self).replay(arrays, {}, fresh)

    def dynamic(self, arrays: Sequence[Any]) -> Any:
        """Return the kernels that serve calls of any sizes natively, after a first call: see `Compiled.dynamic`."""
        return self.calling.prepared(self).dynamic(arrays)

    def words(self, numbers: Sequence[Any]) -> tuple[int, ...]:
        """Return the scalar arguments of a call as the words that a replayed call passes."""
        return self.calling.prepared(self).words(numbers)

    def compile(self, target: str | None = None, subs: Mapping[Symbol, Any] | None = None, **options: Any) -> Any:
        """Return the `Compiled` for a target, with the options of `WaveCompileOptions`."""
        return self.calling.compile_kernel(self, target, subs or {}, current_options(f"{self.name}.compile", options))

    @property
    def is_ordered(self) -> bool:
        """Whether the author gives the order of tiles, or loops over them."""
        return any(isinstance(c, (WorkgroupMapping, ReorderingConstraint, GridConstraint)) for c in self.constraints)

    def ordered(self, mapping: object) -> WaveKernel:
        """Return this kernel with another order of tiles."""
        others = (c for c in self.constraints if not isinstance(c, (WorkgroupMapping, ReorderingConstraint)))
        order = WorkgroupMapping(mapping, loc=self.loc)  # type: ignore[arg-type]  # which refuses what is no mapping
        return replace(self, constraints=(*others, order), kept={})

    def tile_order(self, others: Sequence[Any], subs: Mapping[Symbol, Any]) -> Coverage:
        """Return the order of this kernel's tiles on every grid, with values of symbols."""
        loop = next((c for c in self.constraints if isinstance(c, TilingConstraint) and c.tile is None), None)
        if loop is not None and any(isinstance(c, GridConstraint) for c in self.constraints):
            raise ConstraintError(
                f"{self.name}: its own while loop decides which tiles it computes, and is checked when it is compiled",
                loc=loop.loc,
                remedy="write the loop as PersistentFormula(start, order), which is checked on any grid",
            )
        return order_of_tiles((*self.constraints, *others), {**self.subs, **subs})

    def with_options(self, **options: Any) -> WaveKernel:
        """Return this kernel, compiled at calls with these fields of `WaveCompileOptions`."""
        named = current_options(f"{self.name}.with_options", options)
        return replace(self, options={**self.options, **named}, kept={})

    def with_memories(self, **memories: MemoryLayout | Indices) -> WaveKernel:
        """Return this kernel with the layout or the contract of some arrays, as if their annotations had it."""
        names = [name for name, kind in parameters_of(self) if isinstance(kind, MemoryType)]
        for name, more in memories.items():
            if name not in names or not isinstance(more, (MemoryLayout, Indices)):
                what = f"{self.name}.with_memories: {name} is {more!r}"
                raise TraceError(
                    what, loc=here(), remedy=f"give an Indices(…) or a MemoryLayout(…) of {', '.join(names)}"
                )
        return replace(self, memories={**self.memories, **memories}, kept={})

    def symbols(self) -> tuple[Symbol, ...]:
        """Return the symbols of the constraints and annotations, in order."""
        annotated = [kind for _, kind in parameters_of(self) if isinstance(kind, MemoryType)]
        found = [s for c in self.constraints for s in c.symbols()]
        found += [s for kind in annotated for d in kind.dims for s in d.symbols()]
        found += [kind.space for kind in annotated if isinstance(kind.space, Symbol)]
        return tuple(s for s in dict.fromkeys(found) if s not in HARDWARE)

    def spaces(self) -> tuple[Symbol, ...]:
        """Return the symbols that stand for address spaces alone, and for no size."""
        annotated = [kind for _, kind in parameters_of(self) if isinstance(kind, MemoryType)]
        sizes = {s for c in self.constraints for s in c.symbols()}
        sizes |= {s for kind in annotated for d in kind.dims for s in d.symbols()}
        named = (kind.space for kind in annotated if isinstance(kind.space, Symbol))
        return tuple(dict.fromkeys(s for s in named if s not in sizes))

    def __repr__(self) -> str:
        return f"<kernel {self.name} at {self.loc}>"


def no_grid(kernel: str, parameters: Sequence[str]) -> CallError:
    """Return the error for `kernel[grid]`, of a kernel or a compiled one."""
    what = f"{kernel}[…]: a launch takes no grid; the kernel's constraints say how many workgroups there are"
    return CallError(what, loc=here(), remedy=f"call it: {kernel}({', '.join(parameters)})")


def wave(
    constraints: Sequence[Constraint],
    subs: Mapping[Symbol, Any] | None = None,
    tune: Any = None,
    *others: NoReturn,
    **options: NoReturn,
) -> Callable[[Callable[..., Any]], WaveKernel]:
    """Make a kernel of a function; `subs` are default values of symbols.

    `tune` is a `Tune`: the values to choose among for symbols that neither `subs`, the options nor a call give.
    """
    loc = here()
    _want_list(constraints, (subs, tune, *others))
    for name in options:
        remedy = WaveKernel.calling.in_place_of_option("kernel", name, options[name])
        raise ConstraintError(f"wave has no parameter {name}", loc=loc, remedy=remedy or WAVE_TAKES)
    own = given_subs({} if subs is None else subs)
    constraints = tuple(constraints)
    for c in constraints:
        if not isinstance(c, Constraint):
            raise ConstraintError(
                f"{c!r} is no constraint", loc=loc, remedy="write WorkgroupConstraint(M, BLOCK_M, 0), …"
            )
    return lambda function: WaveKernel(function, constraints, _definition(function, loc), own, tune)


WAVE_TAKES = "it takes constraints, subs and tune: @wave([constraint, …], subs={…}, tune=Tune(…))"


def _want_list(constraints: object, others: Sequence[object]) -> None:
    """Refuse constraints that are not in one list; `others` are the arguments after the first."""
    more = [c for c in others if isinstance(c, Constraint)]
    if more or isinstance(constraints, Constraint):
        first = ["…"] if not isinstance(constraints, Constraint) else [constraints]
        listed = ", ".join(c if isinstance(c, str) else f"{type(c).__name__}(…)" for c in (*first, *more))
        remedy = f"put the constraints in one list: @wave([{listed}])"
        raise ConstraintError("wave takes a list of constraints", loc=here(), remedy=remedy)
    if not isinstance(constraints, Iterable):
        raise ConstraintError("wave takes a list of constraints", loc=here(), remedy="write @wave([constraint, …])")
    if len(others) > 2:
        raise ConstraintError(f"wave got {1 + len(others)} arguments", loc=here(), remedy=WAVE_TAKES)


def _definition(function: Callable[..., Any], otherwise: Loc) -> Loc:
    code = getattr(function, "__code__", None)
    return Loc(code.co_filename, code.co_firstlineno) if code else otherwise


@dataclass(frozen=True)
class TracedKernel:
    """A kernel's IR, the order in which its workgroups take its tiles, and the source lines of its constraints."""

    ir: Kernel
    order: Order
    places: Places
    assumed: tuple[Assumed, ...] = ()
    """The conditions that the scalar arguments and sizes of a call must fulfil."""
    work: TileWork = NO_WORK
    """The work of one tile, for the cost model."""


def trace_kernel(
    kernel: WaveKernel,
    subs: Mapping[Symbol, Any],
    dynamic: Sequence[Symbol],
    max_sizes: Mapping[Symbol, int] | None = None,
    room: TileLimits = ANYWHERE,
) -> TracedKernel:
    """Run the author's function once; array sizes without a value in `subs` stay dynamic.

    A dynamic dim that a workgroup takes whole needs an upper bound of its size.
    """
    defaults = {s: value for s, value in kernel.subs.items() if s not in dynamic}
    said = {**defaults, **given_subs(subs)}
    _want_spaces(kernel)
    left_open = tuple(dict.fromkeys((*unsaid_sizes(kernel, said), *dynamic)))
    _check_open(kernel, left_open, said)
    trace = Trace(
        locate=lambda: kernel.loc, max_sizes=_checked_max_sizes(kernel, max_sizes or {}, left_open), room=room
    )
    numbers = {s: trace.fresh(s.name, INDEX_SCALAR) for s in left_open}
    parameters = parameters_of(kernel)
    words = [trace.fresh(name, INDEX_SCALAR).name for name, _ in parameters]  # before the launch takes any of the names
    of_tile = {s: said.pop(s) for s in _of_coordinates(said)}
    trace.symbols.update(check_subs(said, {s: trace.number(v) for s, v in numbers.items()}))
    bound = _bound_symbols(kernel)
    for (name, _), taken in zip(parameters, words, strict=True):
        if name in bound:
            trace.symbols[Symbol(name)] = trace.number(Value(taken, INDEX_SCALAR))
    kernel = replace(kernel, constraints=one_part_each(kernel.constraints, trace.symbols))
    left = assumed(kernel.constraints, trace.symbols)
    trace.multiples = assumed_multiples(kernel.constraints)
    geometry = resolve(kernel.constraints, trace.symbols, left_open)
    trace.walks, trace.driven, trace.goes_with = geometry.walks, geometry.driven, geometry.goes_with
    trace.bindings = geometry.bindings
    given = [_argument(p, taken, kernel, trace) for p, taken in zip(parameters, words, strict=True)]
    left += tuple(one for _, kind in parameters for one in _whole_quotients(kernel, kind, trace.symbols))
    trace.arrays = {a.name: a for a in given if isinstance(a, MemoryArgument)}
    with tracing(trace):
        _place_workgroup(trace, geometry, lambda: _run(trace, kernel, given, of_tile))
    args = [a.value for a in given] + list(numbers.values())
    body = trace.block(args)
    body = replace(body, ops=(*trace.allocations, *body.ops))
    dims = _rows_and_cols(trace, geometry)
    places = places_of(kernel.constraints, geometry, dims, kernel.loc)
    limits = tuple((numbers[dim].name, *limit) for dim, limit in trace.limits.items())
    made = replace(
        _with_wishes(kernel, geometry, dims, body),
        limits=limits,
        contracts=_contracts(trace, parameters, given, geometry.shares),
    )
    work = TileWork(tuple(trace.transfers), tuple(trace.products))
    return TracedKernel(at_launch(made), geometry.order, places, left, work)


def _contracts(
    trace: Trace,
    parameters: Sequence[tuple[str, MemoryType | DType]],
    given: Sequence[Argument],
    shares: Mapping[Symbol, GridShare],
) -> tuple[tuple[str, ...], ...]:
    """Return the contracts of arrays of indices and of the ends of groups, by the array's name in the IR."""
    both = zip(parameters, given, strict=True)
    kinds = [(a.value.name, kind.contract) for (_, kind), a in both if isinstance(kind, MemoryType)]
    said = tuple((name, *contract.words(partial(_length_text, trace))) for name, contract in kinds if contract)
    ragged = [(dim, share.ragged) for dim, share in shares.items() if share.ragged is not None]
    ends = ((trace.arrays[r.ends].value.name, _length_text(trace, dim), ENDS, "sorted") for dim, r in ragged)
    return (*said, *ends)


def _length_text(trace: Trace, dim: Any) -> str:
    found = dim if isinstance(dim, int) else trace.lengths.get(dim, trace.symbols.get(dim))
    if found is None:
        known = ", ".join(map(str, trace.lengths))
        raise SymbolError(f"Indices: into is {dim}, which no array has", loc=here(), remedy=f"the dims are {known}")
    return found.value.name if isinstance(found, Number) else str(found)


def _rows_and_cols(trace: Trace, geometry: Geometry) -> Sequence[Symbol]:
    """Return the dims of the first matrix product's rows and columns, or else those that the grid divides."""
    if trace.products:
        return trace.products[0].rows, trace.products[0].cols
    return sorted(geometry.shares, key=lambda d: geometry.shares[d].axis)[:2]


def unsaid_sizes(kernel: WaveKernel, sizes: Mapping[Symbol, Any]) -> list[Symbol]:
    """Return the array sizes without a value, which a call's arrays give."""
    arrays = [kind for _, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    own = [
        s for kind in arrays if kind.layout for e in kind.layout.shape if e is not None for s in expression(e).symbols()
    ]
    dims = [d for kind in arrays for d in kind.dims if isinstance(d, Symbol)]
    return [d for d in (*dims, *own) if d not in sizes]


def places_of_sizes(kernel: WaveKernel, dynamic: Sequence[Symbol]) -> dict[Symbol, tuple[int, int]]:
    """Return the first array and axis of a call that each dynamic size is read from."""
    arrays = [kind for _, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    found: dict[Symbol, tuple[int, int]] = {}
    for at, kind in enumerate(arrays):
        for axis, dim in enumerate(kind.dims):
            if isinstance(dim, Symbol) and dim in dynamic:
                found.setdefault(dim, (at, axis))
    return found


def missing_sizes(kernel: WaveKernel, sizes: Mapping[Symbol, Any]) -> list[str]:
    """Return the names of the array sizes without a value, each once."""
    return list(dict.fromkeys(s.name for s in unsaid_sizes(kernel, sizes)))


def missing_text(names: Sequence[str]) -> str:
    """Return `size K is missing`, `sizes K, N are missing`."""
    return f"size {names[0]} is missing" if len(names) == 1 else f"sizes {', '.join(names)} are missing"


def _checked_max_sizes(kernel: WaveKernel, max_sizes: object, left_open: Sequence[Symbol]) -> Mapping[Symbol, int]:
    """Return the largest values of dynamic sizes; an error for anything else in the option."""
    if not isinstance(max_sizes, Mapping):
        raise SymbolError(f"max_sizes is {max_sizes!r}", loc=here(), remedy="write max_sizes={N: 4096, …}")
    for dim, most in max_sizes.items():
        if dim not in left_open:
            known = ", ".join(map(str, left_open)) or "none"
            what = f"max_sizes: {dim} is no dynamic size of {kernel.name}"
            raise SymbolError(what, loc=here(), remedy=f"leave it out; the dynamic sizes are {known}")
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_OPEN:
            what = f"max_sizes: {dim} is {most!r}, no number from 1 to {MOST_OPEN:,}"
            raise SymbolError(what, loc=here(), remedy=f"write max_sizes={{{dim}: 4096}}")
    return max_sizes


def _check_open(kernel: WaveKernel, dynamic: Sequence[Symbol], sizes: Mapping[Symbol, Any]) -> None:
    names = [name for name, _ in parameters_of(kernel)]
    for s in dynamic:
        if not s.name.isidentifier():
            raise _not_by_name(s, kernel)
        if s in sizes:
            remedy = "leave it out of one of them"
            raise SymbolError(f"{s} is in subs and in dynamic_symbols", loc=here(), remedy=remedy)
        if s.name in names:
            what = f"{kernel.name}: {s} is an argument and a dynamic symbol"
            raise SymbolError(what, loc=kernel.loc, remedy="rename one of them")


def _not_by_name(s: Symbol, kernel: WaveKernel) -> SymbolError:
    """Return the error for a dynamic symbol whose name no call can give."""
    user = next((c for c in kernel.constraints if s in c.symbols()), None)
    of = f"{type(user).__name__} depends on {s}, which" if user is not None else str(s)
    return SymbolError(
        f"{kernel.name}: {of} is left dynamic, but {s} is no name in Python, by which a call could give its value",
        loc=user.loc if user is not None else kernel.loc,
        remedy=f"give it a number in subs, WaveCompileOptions(subs={{{s.code}: …}}), or name it differently, such as "
        f"sym.{_as_name(s.name)}",
    )


def _as_name(text: str) -> str:
    """Return a text without the characters that no name in Python has."""
    kept = "".join(c for c in text if c.isalnum() or c == "_").lstrip("_0123456789")
    return kept or "X"


def _with_wishes(kernel: WaveKernel, geometry: Geometry, rows_and_cols: Sequence[Any], body: Block) -> Kernel:
    waves, wish = geometry.waves, geometry.hardware
    return Kernel(
        word(kernel.name),
        body,
        geometry.workgroups.value.name if isinstance(geometry.workgroups, Number) else geometry.workgroups,
        waves=tuple(waves[d].count if d in waves else 1 for d in rows_and_cols) if waves else (),
        lanes=wish.threads_per_wave,
        matrix=wish.mma_type.value if wish.mma_type else "",
    )


def _of_coordinates(said: Mapping[Symbol, Any]) -> list[Symbol]:
    """Return the symbols whose values are expressions of the coordinates of the workgroup's tile, in order of need."""
    found: list[Symbol] = []
    for _ in said:
        more = [s for s in said if s not in found and _depends(said[s], {*COORDINATES, *found})]
        if not more:
            break
        found += more
    return found


def _depends(value: Any, on: Collection[Symbol]) -> bool:
    return isinstance(value, Expression) and any(s in on for s in value.symbols())


def _run(trace: Trace, kernel: WaveKernel, given: Sequence[Argument], of_tile: Mapping[Symbol, Expression]) -> None:
    """Run the author's function; `of_tile` are symbols with a value in each tile."""
    for s, value in of_tile.items():
        trace.symbols[s] = value.evaluate({**trace.symbols, **trace.tile_at})
    arguments = [a.traced(trace) if isinstance(a, ScalarArgument) else a for a in given]
    trace.locate = here
    try:
        kernel.function(*arguments)
    except (TypeError, NameError) as error:
        if (ours := _explained(error)) is None:
            raise
        raise ours.at(raised_at(error)) from None
    finally:
        trace.locate = lambda: kernel.loc


def _explained(error: TypeError | NameError) -> TilewaveError | None:
    """Return an error of Python's in the author's function with what to write instead; None where that is unknown."""
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        return no_such_name(error.name or "")
    what, remedy = assigned_inside(error) if isinstance(error, UnboundLocalError) else misused(error)
    return TraceError(what, remedy=remedy) if what else None


def _place_workgroup(trace: Trace, geometry: Geometry, run: Callable[[], None]) -> None:
    """Set the tile of the workgroup, then run the author's function; a persistent kernel loops over its tiles."""
    w = trace.number(trace.emit(ir.Workgroup, type=INDEX_SCALAR))
    grid = geometry.grid
    if geometry.author_walks_grid:
        trace.symbols.update(zip(COORDINATES, (w, 0, 0), strict=True))
        trace.windows.update({dim: DimensionWindow.tile(0, share.tile) for dim, share in geometry.shares.items()})
        trace.windows.update({dim: trace.windows[other] for dim, other in geometry.goes_with.items()})
        trace.unplaced = frozenset(dim for dim, share in geometry.shares.items() if not _is_one_tile(trace, dim, share))
        run()
    elif geometry.persistent:
        trace.symbols.update(zip(COORDINATES, (w, 0, 0), strict=True))
        rounds = (grid.size + geometry.workgroups - 1 - w) // geometry.workgroups
        count = trace.fresh("round", INDEX_SCALAR)
        with trace.region():
            _take_tile(trace, geometry, w + trace.number(count) * geometry.workgroups)
            run()
            body = trace.block([count], [])
        trace.effect(ir.Loop, rounds.value, (), body)
    else:
        trace.symbols.update(
            zip(COORDINATES, (w % grid.rows, w // grid.rows % grid.cols, w // grid.plane), strict=True)
        )
        _take_tile(trace, geometry, w)
        run()


def _is_one_tile(trace: Trace, dim: Symbol, share: GridShare) -> bool:
    """Return whether a dimension certainly has one tile, which begins at 0."""
    length = trace.symbols[dim]
    return isinstance(length, int) and length <= share.tile


def _take_tile(trace: Trace, geometry: Geometry, number: Any) -> None:
    """Set the windows of the tile of that number."""
    grid = geometry.grid
    batch, row, col = (trace.fresh(name, INDEX_SCALAR) for name in ("tile_b", "tile_m", "tile_n"))
    sides = (grid.rows, grid.cols, grid.batches, geometry.workgroups)
    known = [0 if isinstance(n, Number) else n for n in sides]
    left_open = tuple(n.value for n in sides if isinstance(n, Number))
    trace.effect(ir.TileOf, number.value, *known, left_open, results=(batch, row, col))
    along = trace.number(row), trace.number(col), trace.number(batch)
    for dim, share in geometry.shares.items():
        along = ordered_in_group(trace, dim, share, along, grid.cols)
    for dim, share in geometry.shares.items():
        if share.ragged is not None:
            trace.windows[dim] = place_in_group(trace, dim, share, share.coordinate(along, grid.batches))
        else:
            trace.windows[dim] = share.window(along, grid.batches)
    trace.windows.update({dim: trace.windows[other] for dim, other in geometry.goes_with.items()})
    trace.tile_at.update(zip(COORDINATES, along, strict=True))


def parameters_of(kernel: WaveKernel) -> list[tuple[str, MemoryType | DType]]:
    """Return a kernel's arrays and scalars, as its author annotated them, in order."""
    try:
        annotations = inspect.get_annotations(kernel.function, eval_str=True)
    except NameError as error:
        raise TraceError(
            f"{kernel.name}: {error}",
            loc=kernel.loc,
            remedy="with `from __future__ import annotations`, what they name must be defined at the top of the file",
        ) from None
    found = []
    for name in inspect.signature(kernel.function).parameters:
        kind = BOOL if annotations.get(name) is bool else annotations.get(name)
        kind = INDEX if isinstance(kind, BoundSymbol) else kind
        if not isinstance(kind, (MemoryType, DType)):
            remedy = f"write {name}: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16]; a number given at the call is {name}: f32"
            what = f"{kernel.name}: {name} is not annotated as a memory or a number"
            raise TraceError(what, loc=kernel.loc, remedy=remedy)
        found.append((name, _with(kernel.memories.get(name), kind)))
    return found


def _bound_symbols(kernel: WaveKernel) -> set[str]:
    """Return the names of the arguments that are the values of symbols."""
    annotations = inspect.get_annotations(kernel.function, eval_str=True)
    return {name for name, kind in annotations.items() if isinstance(kind, BoundSymbol)}


def _with(more: MemoryLayout | Indices | None, kind: MemoryType | DType) -> MemoryType | DType:
    """Return the type of an array with a layout or contract that its annotation lacks."""
    if more is None or not isinstance(kind, MemoryType):
        return kind
    return replace(kind, layout=more) if isinstance(more, MemoryLayout) else replace(kind, contract=more)


def _argument(parameter: tuple[str, MemoryType | DType], word: str, kernel: WaveKernel, trace: Trace) -> Argument:
    """Return what the function gets for a parameter; `word` is its name in the IR."""
    name, kind = parameter
    subs = trace.symbols
    if isinstance(kind, DType):
        symbol = trace.symbols.get(Symbol(name))
        if isinstance(symbol, Number) and symbol.value.name == word:  # SymbolBind
            return ScalarArgument(symbol.value, kind)
        return ScalarArgument(Value(word, Scalar(I64 if kind == INDEX else kind)), kind)
    loc = _annotated_at(kernel, kind)
    space = kind.space if isinstance(kind.space, AddressSpace) else subs.get(kind.space)
    if space is None:
        what = f"{name}: {kind.space} is in the place of the address space, and has no value"
        given = f"give it a value: subs={{{kind.space}: {A_SPACE}, …}}"
        remedy = f"if {kind.space} is a size, {_with_space(kind)}; else {given}"
        raise SymbolError(what, loc=loc, remedy=remedy, missing=str(kind.space), example=A_SPACE)
    if not isinstance(space, AddressSpace):
        raise _number_for_space(name, kind, space, loc) if kind.space in kernel.spaces() else _no_space(name, kind, loc)
    for d in kind.dims:
        if d not in trace.lengths:
            trace.lengths[d] = size(rounded_where_open(d, subs), subs, loc)
    sizes = [trace.lengths[d] for d in kind.dims]
    laid_out = _laid_out(kernel, name, kind, subs, loc) if kind.layout is not None else {}
    sizes = [laid_out.get(d, n) for d, n in zip(kind.dims, sizes, strict=True)]
    extents = tuple(n.value.name if isinstance(n, Number) else n for n in sizes)
    return MemoryArgument(name, Value(word, IrMemory(extents, kind.dtype, "global")), kind.dims, space, laid_out)


def _laid_out(kernel: WaveKernel, name: str, kind: MemoryType, subs: Mapping[Symbol, Any], loc: Loc) -> dict[Any, Any]:
    """Return the lengths of an array that its layout gives, by the dims whose lengths they are not."""
    assert kind.layout is not None
    arrays = [(other, k) for other, k in parameters_of(kernel) if isinstance(k, MemoryType) and other != name]
    plain = {d for _, k in arrays for i, d in enumerate(k.dims) if k.layout is None or k.layout.shape[i] is None}
    return {d: size(e, subs, loc) for d, e in kind.layout.lengths(name, loc, kind.dims, subs, plain)}


def _want_spaces(kernel: WaveKernel) -> None:
    """Refuse a memory that has a dim of the kernel in the place of its address space."""
    parameters = [(name, kind) for name, kind in parameters_of(kernel) if isinstance(kind, MemoryType)]
    dims: set[object] = {getattr(c, "dim", None) for c in kernel.constraints}
    dims |= {s for _, kind in parameters for d in kind.dims for s in d.symbols()}
    for name, kind in parameters:
        if kind.space in dims:
            raise _no_space(name, kind, _annotated_at(kernel, kind))


def _number_for_space(name: str, kind: MemoryType, number: Any, loc: Loc) -> SymbolError:
    what = f"{name}: {kind.space} is {number}, no address space"
    return SymbolError(
        what, loc=loc, remedy=f"give it one: subs={{{kind.space}: {A_SPACE}}}, or {GLOBAL_ADDRESS_SPACE}"
    )


def _no_space(name: str, kind: MemoryType, loc: Loc) -> SymbolError:
    what = f"{name}: the address space is missing; {kind.space} is a size"
    return SymbolError(what, loc=loc, remedy=_with_space(kind))


def _with_space(kind: MemoryType) -> str:
    """Return what to write for a memory with a size in the place of its address space."""
    return f"write {MemoryType((*kind.dims, expression(kind.space)), GLOBAL_ADDRESS_SPACE, kind.dtype)}"


def _annotated_at(kernel: WaveKernel, kind: MemoryType) -> Loc:
    return kernel.loc if kind.loc.file.startswith("<") else kind.loc


def _whole_quotients(kernel: WaveKernel, kind: MemoryType | DType, values: Mapping[Symbol, Any]) -> Iterator[Assumed]:
    """Yield the conditions under which the dims of an array are whole numbers."""
    if isinstance(kind, MemoryType):
        for dim in kind.dims:
            yield from wholly_divided(dim, _annotated_at(kernel, kind), values)


def given_subs(subs: Mapping[Any, Any]) -> dict[Symbol, Any]:
    """Return each symbol's expression or address space; an error for anything else."""
    if not isinstance(subs, Mapping):
        raise SymbolError(f"subs is {subs!r}", loc=here(), remedy="write subs={M: 512, …}")
    for key in subs:
        if not isinstance(key, Symbol):
            raise SymbolError(f"subs: {key!r} is no symbol", loc=here(), remedy=f"write subs={{sym.{key}: …}}")
    want_no_hardware("subs", *subs)
    return {key: value if isinstance(value, AddressSpace) else _size_of(key, value) for key, value in subs.items()}


def _size_of(key: Symbol, value: Any) -> Expression:
    try:
        return expression(value)
    except SymbolError as error:
        what = f"subs: {key} is {value!r}, no whole number and no expression of symbols"
        raise SymbolError(what, loc=here(), remedy=error.remedy) from None


def check_subs(subs: Mapping[Any, Any], left_open: Mapping[Symbol, Number] | None = None) -> dict[Symbol, Any]:
    """Return sizes as ints, with expressions evaluated; an error for what is neither a size nor an address space.

    An expression of sizes that are `left_open` is a number that is known at the launch.
    """
    given = given_subs(subs)
    known: dict[Symbol, Any] = dict(left_open or {})
    for key in given:
        _find_value(key, given, known, ())
    return known


def _find_value(key: Symbol, given: Mapping[Symbol, Any], known: dict[Symbol, Any], asked: tuple[Symbol, ...]) -> None:
    """Put the value of `key` into `known`, after the values of its symbols; `asked` are the keys that wait for it."""
    if key in known or key not in given:
        return
    if key in asked:
        circle = " needs ".join(map(str, (*asked[asked.index(key) :], key)))
        raise SymbolError(f"subs goes in a circle: {circle}", loc=here(), remedy="give one of them a number")
    value = given[key]
    if not isinstance(value, AddressSpace):
        for s in value.symbols():
            _find_value(s, given, known, (*asked, key))
        numbers = {s: v for s, v in known.items() if isinstance(v, (int, Number))}
        value = value.evaluate(known if isinstance(value, Symbol) else numbers)
        if isinstance(value, int) and value < 0:
            remedy = f"write subs={{{key}: {-value}, …}}, or 0"
            raise SymbolError(f"subs: {key} is {value}; symbols are not negative", loc=here(), remedy=remedy)
    known[key] = value


def arguments(kernel: Kernel) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the memories and the symbols that a call passes."""
    memories = tuple(v for v in kernel.body.args if not isinstance(v.type, Scalar))
    return memories, tuple(v for v in kernel.body.args if isinstance(v.type, Scalar))
