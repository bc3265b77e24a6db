"""A kernel with indices from memory as a value: what it reads or writes at which indices, and hostile tables of them.

gather    out[t, d] = x[t, d] + table[...]          the table's positions are indices, or those of the tile
summed    the same, summed over a walked dim K of the indices
product   out[t, d] = sum over k of rows[i[t], k] * b[d, k]
scatter   table[...] = x[t, d]                       where the indices are said to be unique
atomic    table[...] is combined with x[t, d]
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

FORMS = ("gather", "gather", "summed", "product", "scatter", "scatter", "atomic", "atomic")
COMBINED = ("add", "min", "max", "and", "or")
TABLE_DIMS = ("V", "W")
"""Dims of the table that indices run along; T and D are those of the tiles."""


@dataclass(frozen=True)
class Indices:
    """An array of indices: its dims, T, D, K or none for one number at `at`; a `broken` contract is not kept."""

    dims: str
    dtype: str
    content: str
    contract: str = ""
    at: int = 0
    broken: bool = False


@dataclass(frozen=True)
class Indexed:
    """`places` gives each axis of the table: a dim of the tile, or "0 // 3", the first indices divided by 3."""

    form: str
    sizes: tuple[tuple[str, int], ...]
    tiles: tuple[tuple[str, int], ...]
    places: tuple[str, ...]
    indices: tuple[Indices, ...]
    dtype: str = "f32"
    combine: str = ""
    by_mapping: bool = False
    """Whether it is written with an IndexMapping and dynamic values, or with at=."""
    is_open: bool = False
    space: str = "GLOBAL_ADDRESS_SPACE"
    order: tuple[int, ...] = (0, 1)
    """The axes of the grid that T and D are tiled along."""
    seed: int = 0

    def size(self, dim: str) -> int:
        return dict(self.sizes)[dim]

    @property
    def table(self) -> tuple[str, ...]:
        """The dims of the table; one that indices give has a symbol of its own."""
        named = iter(TABLE_DIMS)
        return tuple(place if place in "TDK" else next(named) for place in self.places)

    @property
    def used(self) -> str:
        """The dims of a stored tile."""
        found = {d for d in self.places if d in ("T", "D")}
        found |= {d for place in self.places if (part := parsed(place)) for d in self.indices[part[0]].dims}
        return "".join(d for d in "TD" if d in found)

    @property
    def breaks_a_contract(self) -> bool:
        return any(i.broken for i in self.indices)


def parsed(place: str) -> tuple[int, str, int] | None:
    """Return (the array of indices, an operator, its number) of a place; None for a dim of the tile."""
    found = re.fullmatch(r"(\d)(?: (//|[-+*%]) (\d+))?", place)
    return (int(found[1]), found[2] or "", int(found[3] or 0)) if found else None


def generate_indexed(seed: int, target: str) -> Indexed:
    return _Maker(random.Random(f"indexed {seed}"), target, seed).case()


CONTENTS = ("hostile", "hostile", "hostile", "inside", "equal", "nowhere")


class _Maker:
    def __init__(self, rng: random.Random, target: str, seed: int) -> None:
        self.rng, self.target, self.seed = rng, target, seed

    def case(self) -> Indexed:
        r = self.rng
        form = r.choice(FORMS)
        tiles = {"T": r.choice([1, 8, 16, 16, 32]), "D": r.choice([8, 16, 32, 64]), "K": r.choice([4, 8])}
        if form == "product":
            tiles = {"T": r.choice([16, 32, 64]), "D": r.choice([16, 32, 64]), "K": r.choice([16, 32])}
        sizes = {d: self.size(tile) for d, tile in tiles.items()} | {d: r.choice([1, 7, 20, 33]) for d in TABLE_DIMS}
        indices = tuple(self.indices(form, n) for n in range(1 if form in ("product", "scatter") else r.randint(1, 2)))
        places = self.places(form, indices)
        case = Indexed(
            form,
            tuple(sizes.items()),
            tuple(tiles.items()),
            places,
            indices,
            self.dtype(form),
            r.choice(COMBINED) if form == "atomic" else "",
            r.random() < 0.35 and form != "product" and all(i.dims for i in indices),
            r.random() < 0.5,
            r.choice(["GLOBAL_ADDRESS_SPACE", "SHARED_ADDRESS_SPACE"]) if form in ("gather", "product") else GLOBAL,
            r.choice([(0, 1), (1, 0)]),
            self.seed,
        )
        if case.combine in ("and", "or"):
            case = replace(case, dtype=r.choice(["i32", "i64", "i8"]))
        return self.completed(case)

    def completed(self, case: Indexed) -> Indexed:
        """Return the case with T among the dims of a stored tile, so that workgroups along T store different ones."""
        if case.form not in ("scatter", "atomic") or "T" in case.used:
            return case
        return replace(case, indices=tuple(replace(i, dims="T" + i.dims.replace("T", "")) for i in case.indices))

    def size(self, tile: int) -> int:
        r = self.rng
        return max(1, r.choice([tile, tile - 1, tile + 1, 2 * tile + 3, 1, 5]))

    def indices(self, form: str, n: int) -> Indices:
        r = self.rng
        if form == "product":
            dims = "T"
        elif form == "summed":
            dims = "TK" if n == 0 else r.choice(["T", "K", "TK"])
        else:
            dims = r.choice(["T", "T", "T", "TD", "D", ""] if form != "scatter" else ["T", "T", "TD"])
        dtype = r.choice(["i32", "i32", "i64"])
        if form != "scatter":
            return Indices(dims, dtype, r.choice(CONTENTS), at=r.choice([0, 1, 2, 3]))
        broken = r.random() < 0.3
        return Indices(dims, dtype, "distinct", "unique" if r.random() < 0.9 else "", broken=broken)

    def places(self, form: str, indices: tuple[Indices, ...]) -> tuple[str, ...]:
        r = self.rng
        if form == "product":
            return ("0", "K")
        found = [str(n) + self.formula() for n in range(len(indices))]
        if form == "scatter" and r.random() < 0.4:
            found = ["0 // 3", f"0 % {r.choice([3, 3, 3, 2])}"]
        if "D" not in "".join(i.dims for i in indices):
            found.append("D")
        if r.random() < 0.2 and "T" in "".join(i.dims for i in indices) and len(found) < 3:
            found.append("T")
        r.shuffle(found)
        if r.random() < 0.4 and "D" in found:
            found.remove("D")
            found.append("D")
        return tuple(found)

    def formula(self) -> str:
        r = self.rng
        return "" if r.random() < 0.6 else f" {r.choice(['//', '%', '+', '-', '*'])} {r.choice([1, 2, 3, 7])}"

    def dtype(self, form: str) -> str:
        r = self.rng
        if form == "product":
            return r.choice(["f16", "f16", "bf16"])
        if form == "summed":
            return r.choice(["f32", "f32", "i32"])
        if form == "atomic":
            return r.choice(["f32", "f32", "i32", "f16", "bf16", "f64", "i64", "i8"])
        return r.choice(["f32", "f16", "f16", "bf16", "i32", "i8", "f64", "i64"])


GLOBAL = "GLOBAL_ADDRESS_SPACE"


def smaller(case: Indexed) -> Iterator[Indexed]:
    """Yield cases with less in them, the most first."""
    yield replace(case, is_open=False)
    yield replace(case, by_mapping=False)
    yield replace(case, space=GLOBAL)
    yield replace(case, order=(0, 1))
    yield replace(case, dtype="f32" if case.combine not in ("and", "or") else "i32")
    for n, one in enumerate(case.indices):
        plainer = [replace(one, dtype="i32"), replace(one, content="inside")] if not one.contract else []
        yield from (replace(case, indices=(*case.indices[:n], p, *case.indices[n + 1 :])) for p in plainer)
    for n, place in enumerate(case.places):
        if (part := parsed(place)) and part[1]:
            yield replace(case, places=(*case.places[:n], str(part[0]), *case.places[n + 1 :]))
    for which in ("sizes", "tiles"):
        given = getattr(case, which)
        for n, (d, size) in enumerate(given):
            for less in (1, size // 2, size - 1):
                if 0 < less < size:
                    yield replace(case, **{which: (*given[:n], (d, less), *given[n + 1 :])})


def shrink_indexed(case: Indexed, still_wrong) -> Indexed:
    found: Indexed | None = case
    while found is not None:
        case = found
        found = next((c for c in smaller(case) if c != case and still_wrong(c)), None)
    return case


def text_of_indexed(case: Indexed) -> str:
    return repr(case)


def indexed_of_text(text: str) -> Indexed:
    made = eval(text, {"Indexed": Indexed, "Indices": Indices})  # our own text
    assert isinstance(made, Indexed)
    return made
