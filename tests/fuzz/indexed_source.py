"""A kernel with indices from memory as an author writes it."""

from __future__ import annotations

from .indexed import Indexed, parsed

BEGIN = """import numpy as np

from tilewave import *

T, D, K, V, W, E = sym.T, sym.D, sym.K, sym.V, sym.W, sym.E
G = GLOBAL_ADDRESS_SPACE
"""


def indexed_source(case: Indexed) -> str:
    """Return the source of a kernel, named `kernel`."""
    lines = [BEGIN, "", f"@wave([{', '.join(_constraints(case))}])"]
    lines += ["def kernel(", *(f"    {a}: {kind}," for a, kind in annotations(case).items()), "):"]
    lines += [f"    {line}" for line in _body(case)]
    return "\n".join(lines) + "\n"


def subs_source(case: Indexed) -> str:
    known = {} if case.is_open else {d: n for d, n in case.sizes if d in _dims(case)}
    if any(not i.dims for i in case.indices):
        known["E"] = 3
    return "{" + ", ".join(f"sym.{d}: {n}" for d, n in known.items()) + "}"


def annotations(case: Indexed) -> dict[str, str]:
    """Return the kernel's arrays with their annotations, in the order of its parameters."""
    found = {}
    for n, i in enumerate(case.indices):
        contract = f", Indices({i.contract}=True)" if i.contract else ""
        found[f"i{n}"] = f"Memory[{', '.join(i.dims or 'E')}, G, {i.dtype}{contract}]"
    if case.form != "product":
        found["x"] = f"Memory[{', '.join(_tile(case))}, G, {case.dtype}]"
    else:
        found["x"] = f"Memory[D, K, {case.space}, {case.dtype}]"
    found["table"] = f"Memory[{', '.join(case.table)}, {case.space}, {case.dtype}]"
    if case.form in ("gather", "summed", "product"):
        found["out"] = f"Memory[T, D, G, {'f32' if case.form == 'product' else case.dtype}]"
    return found


def _tile(case: Indexed) -> str:
    return case.used if case.form in ("scatter", "atomic") else "TD"


def _dims(case: Indexed) -> str:
    return "".join(annotations(case).values())


def _constraints(case: Indexed) -> list[str]:
    tiles = dict(case.tiles)
    axes = dict(zip("TD", case.order, strict=True)) if "D" in _tile(case) else {"T": 0}
    found = [f"WorkgroupConstraint({d}, {tiles[d]}, {axis})" for d, axis in axes.items()]
    walked = [f"TilingConstraint(K, {tiles['K']})"] if case.form in ("summed", "product") else []
    return found + walked


def _body(case: Indexed) -> list[str]:
    where, given = _where(case), [f"i{n}_ = {_index(case, n)}" for n in range(len(case.indices))]
    match case.form:
        case "gather":
            return [*given, f"write(read(x) + read(table, {where}), out)"]
        case "scatter":
            return [*given, f"write(read(x), table, {where})"]
        case "atomic":
            return [*given, f"atomic_{case.combine}(read(x), table, {where})"]
        case "summed":
            begin, step = f"Register[T, D, {case.dtype}](0)", f"acc + read(table, {where}).sum(dim=K)"
        case _:
            begin, step = "Register[T, D, f32](0.0)", f"mma(read(table, {where}), read(x), acc)"
    total = "total" if case.form == "product" else "read(x) + total"
    return [
        "@iterate(K, init_args=[" + begin + "])",
        "def total(acc):",
        *(f"    {line}" for line in given),
        f"    return {step}",
        f"write({total}, out)",
    ]


def _index(case: Indexed, n: int) -> str:
    i = case.indices[n]
    return f"read(i{n})" if i.dims else f"read(i{n}, at={{E: {i.at}}})"


def _where(case: Indexed) -> str:
    """Return where the elements are in the table, as at=, or as a mapping and its dynamic values."""
    if not case.by_mapping:
        at = [f"{d}: {_formula(place, 'i{}_')}" for d, place in zip(case.table, case.places, strict=True) if d != place]
        return f"at={{{', '.join(at)}}}"
    dims = [d for d in "TDK" if d in case.places or any(d in i.dims for i in case.indices)]
    iterator = {d: f"IndexMapping.iterator({n})" for n, d in enumerate(dims)}
    memory = ", ".join(
        f"{d}: {iterator.get(place) or _formula(place, 'IndexMapping.dynamic_val({})')}"
        for d, place in zip(case.table, case.places, strict=True)
    )
    tile = ", ".join(f"{d}: {i}" for d, i in iterator.items())
    sides = (tile, memory) if case.form == "scatter" else (memory, tile)
    along = ", ".join("{" + ", ".join(f"{d}: {iterator[d]}" for d in i.dims) + "}" for i in case.indices)
    mapping = f"IndexMapping({len(dims)}, {{{sides[0]}}}, {{{sides[1]}}}, ({along},))"
    values = ", ".join(f"i{n}_" for n in range(len(case.indices)))
    return f"mapping={mapping}, mapping_dynamic_vals=({values},)"


def _formula(place: str, name: str) -> str:
    part = parsed(place)
    assert part is not None
    number, how, by = part
    return f"{name.format(number)} {how} {by}" if how else name.format(number)
