"""A program as its author would write it: Python in the public language, a file that runs alone."""

from __future__ import annotations

from math import isfinite, prod

from .program import (
    FUNCTIONS,
    Array,
    Cast,
    Compute,
    Dim,
    Fill,
    Loop,
    Mapping,
    Mma,
    Number,
    Parameter,
    Place,
    Program,
    Read,
    Reduce,
    SelfIndex,
    Write,
)

ITERATORS = ("i", "j", "k", "l")
OFFSETS = ("ROW", "COLUMN", "BATCH")
"""The symbols that a kernel sets where its author deals the tiles, one for each axis of the grid."""


def kernel_source(program: Program) -> str:
    """Imports, symbols, constraints and the kernel."""
    return "\n".join([*_head(program), "", "", *_kernel(program), ""])


def _head(p: Program) -> list[str]:
    symbols = [d.name for d in p.dims] + [name for name, _ in p.opens]
    symbols += [s.dim for s in p.walk() if isinstance(s, Loop) and s.is_while]
    symbols += [*OFFSETS, "TILE"] if p.dealt else []
    symbols += [f"BLOCK_{d.name}" for d in p.dims if d.tile] if p.named_tiles else []
    symbols += ["SPACE"] if any(a.space == "SPACE" for a in p.arrays) else []
    return [
        "import numpy as np",
        "import tilewave",
        "from tilewave import *",
        "from tilewave.mapping import *",
        "",
        *(f"{s} = sym.{s}" for s in dict.fromkeys(symbols)),
        f"{', '.join(ITERATORS)} = (IndexMapping.iterator(n) for n in range({len(ITERATORS)}))",
    ]


def _kernel(p: Program) -> list[str]:
    lines = ["@wave(", "    [", *(f"        {c}," for c in constraints(p)), "    ]", ")"]
    lines += ["def kernel(", *(f"    {_argument(a)}," for a in p.parameters), "):"]
    return lines + (_dealt(p) if p.dealt else _block(p, p.body, 1))


def _argument(a: Array | Parameter) -> str:
    if isinstance(a, Parameter):
        return f"{a.name}: {dtype(a.dtype)}"
    return f"{a.name}: Memory[{', '.join(a.dims)}, {a.space}, {dtype(a.dtype)}]"


def dtype(name: str) -> str:
    return "tilewave.bool" if name == "bool" else name


def _tile(p: Program, d: Dim) -> str:
    return f"BLOCK_{d.name}" if p.named_tiles else str(d.tile)


def tiles(p: Program, d: Dim) -> str:
    """How many there are along a dim, as its author writes it."""
    return f"ceiling({d.name} / {_tile(p, d)})" if d.name in p.left_open else str(d.tiles)


def constraints(p: Program) -> list[str]:
    found = [f"WorkgroupConstraint({d.name}, {_tile(p, d)}, {d.axis})" for d in p.dims if d.axis is not None]
    found += [f"TilingConstraint({d.name}, {_tile(p, d)})" for d in p.dims if d.walked]
    loops = dict.fromkeys(s.dim for s in p.walk() if isinstance(s, Loop) and s.is_while)
    found += [f"TilingConstraint({name})" for name in loops]
    found += [f"WaveConstraint({d.name}, {d.wave})" for d in p.dims if d.wave]
    found += ["TilingConstraint(TILE)"] if p.dealt else []
    found += [f"GridConstraint({p.workgroups})"] if p.workgroups else []
    found += [p.mapping] if p.mapping else []
    if p.threads_per_wave or p.mma_type:
        wish = [f"threads_per_wave={p.threads_per_wave}"] if p.threads_per_wave else []
        wish += [f"mma_type=MMAType.{p.mma_type}"] if p.mma_type else []
        found.append(f"HardwareConstraint({', '.join(wish)})")
    return found


def subs(p: Program) -> dict[str, str]:
    found = {d.name: str(d.size) for d in p.dims if d.name not in p.left_open}
    found |= {f"BLOCK_{d.name}": str(d.tile) for d in p.dims if d.tile} if p.named_tiles else {}
    return found | ({"SPACE": "SHARED_ADDRESS_SPACE"} if any(a.space == "SPACE" for a in p.arrays) else {})


def options(p: Program) -> dict[str, str]:
    """The fields of WaveCompileOptions, the target aside, as texts."""
    found = {"subs": "{" + ", ".join(f"{s}: {v}" for s, v in subs(p).items()) + "}"}
    if p.prefetch:
        found["schedule"] = "SchedulingType.PREFETCH"
    if p.buffers is not None:
        found["num_stages"] = str(p.buffers)
    dynamic = [name for name, _ in p.opens] + [*p.left_open] * p.declared_open
    if dynamic:
        found["dynamic_symbols"] = f"[{', '.join(dynamic)}]"
    return found


def _dealt(p: Program) -> list[str]:
    """Return the body in a loop over the tiles, `workgroups` at a time."""
    by_axis = {d.axis: d for d in p.dims if d.axis is not None}
    stop = _product(p, list(by_axis.values()))
    lines = [f"    @iterate(TILE, start=scalar(WORKGROUP_0), condition=TILE < {stop})", "    def every_tile():"]
    lines += ["        tile = self_index(TILE)"]
    for axis, name in enumerate(OFFSETS):
        if axis in by_axis:
            d = by_axis[axis]
            below, count = ([by_axis[n] for n in range(axis) if n in by_axis], [d])
            divided = f"tile // {_scalar(p, below)} % {_scalar(p, count)}"
            lines.append(f"        set_symbol({name}, {divided} * {d.tile})")
    return [*lines, *_block(p, p.body, 2), f"        set_symbol(TILE, tile + {p.workgroups})"]


def _product(p: Program, dims: list[Dim]) -> str:
    """The number of tiles of all of them."""
    if any(d.name in p.left_open for d in dims):
        return " * ".join(tiles(p, d) for d in dims)
    return str(prod(d.tiles for d in dims))


def _scalar(p: Program, dims: list[Dim]) -> str:
    """Return the product of dims as a divisor for scalar arguments of the kernel."""
    text = _product(p, dims)
    return text if text.isdigit() else f"scalar({text})"


def _block(p: Program, body, depth: int) -> list[str]:
    lines = []
    for s in body:
        lines += [" " * 4 * depth + line for line in _statement(p, s)]
    return lines or [" " * 4 * depth + "pass"]


def _statement(p: Program, s) -> list[str]:
    match s:
        case Read(name, array, mapping):
            return [f"{name} = read({array}{_how(s)}{_mapping(p, p.array(array), mapping, reads=True)})"]
        case Fill(name, dims, kind, value):
            return [f"{name} = Register[{', '.join(dims)}, {dtype(kind)}]({number(value)})"]
        case Number(name, value, kind):
            return [f"{name} = scalar({value if isinstance(value, str) else number(value)}, {dtype(kind)})"]
        case SelfIndex(name, dim, kind):
            return [f"{name} = self_index({dim}, {dtype(kind)})"]
        case Compute(name, op, args):
            return [f"{name} = {_computed(op, [x if isinstance(x, str) else number(x) for x in args])}"]
        case Cast(name, x, kind):
            return [f"{name} = cast({x}, {dtype(kind)})"]
        case Mma(name, a, b, acc):
            return [f"{name} = mma({a}, {b}, {acc})"]
        case Reduce(name, x, dims, how):
            along = dims[0] if how.startswith("arg") else f"[{', '.join(dims)}]"
            return [f"{name} = {x}.{how}(dim={along})"]
        case Write(x, array, mapping):
            return [f"write({x}, {array}{_how(s)}{_mapping(p, p.array(array), mapping, reads=False)})"]
        case Loop():
            return _loop(p, s)
    raise NotImplementedError(s)


def _how(s: Read | Write) -> str:
    return f", elements_per_thread={s.per_thread}" if s.per_thread else ""


def _loop(p: Program, s: Loop) -> list[str]:
    how = f", start={s.start}, condition={s.dim} < {s.stop}" if s.is_while else ""
    carried = f", init_args=[{', '.join(s.init)}]" if s.init else ""
    lines = [f"@iterate({s.dim}{carried}{how})", f"def {s.name}({', '.join(s.params)}):", *_block(p, s.body, 1)]
    if s.is_while:
        lines.append(f"    set_symbol({s.dim}, self_index({s.dim}) + {s.step})")
    if s.returns:
        lines += [f"    return {', '.join(s.returns)}", "", f"{', '.join(s.results)} = {s.name}"]
    return ["", *lines, ""]


def _computed(op: str, args: list[str]) -> str:
    if op == "neg":
        return f"-{args[0]}"
    if op == "~":
        return f"~{args[0]}"
    if op.startswith("**"):
        return f"{args[0]} ** {op[2:]}"
    if op in (*FUNCTIONS, "minimum", "maximum", "abs", "select"):
        return f"{op}({', '.join(args)})"
    return f"{args[0]} {op} {args[1]}"


def number(value) -> str:
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _mapping(p: Program, a: Array, mapping: Mapping | None, reads: bool) -> str:
    if mapping is None and not p.dealt:
        return ""
    tile = mapping.tile if mapping else a.dims
    where = dict(mapping.places) if mapping else {d: Place(d) for d in a.dims}
    iterator = {d: ITERATORS[n] for n, d in enumerate(tile)}
    memory = ", ".join(f"{d}: {_place(p, where[d], iterator)}" for d in a.dims)
    names = ", ".join(f"{d}: {iterator[d]}" for d in tile)
    inputs, outputs = (memory, names) if reads else (names, memory)
    return f", mapping=IndexMapping({len(tile)}, inputs={{{inputs}}}, outputs={{{outputs}}})"


def _place(p: Program, place: Place, iterator: dict[str, str]) -> str:
    terms = []
    if place.along is not None:
        axis = p.dim(place.along).axis
        along = iterator[place.along]
        if p.dealt and axis is not None:
            along = f"({along} + {OFFSETS[axis]})"
        terms.append(along if place.sign > 0 else f"{place.offset} - {along}")
    if place.offset and (place.along is None or place.sign > 0):
        terms.append(str(place.offset))
    terms += [s if coefficient == 1 else f"{coefficient} * {s}" for s, coefficient in place.symbols]
    text = " + ".join(terms) or "0"
    return f"({text}) % {place.modulo}" if place.modulo else text
