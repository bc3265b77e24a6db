"""What a kernel with indices from memory gives: every element in turn, by numpy, with whole numbers that are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .indexed import Indexed, Indices, parsed

KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
KINDS |= {"i8": np.int8, "i32": np.int32, "i64": np.int64}
UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
GUARD = 96
"""Elements before and after each array, which no kernel may touch."""


@dataclass
class Guarded:
    """An array inside a longer one, whose other elements hold a pattern."""

    memory: np.ndarray
    view: np.ndarray
    before: bytes

    @staticmethod
    def of(x: np.ndarray) -> Guarded:
        memory = np.full(x.size + 2 * GUARD, 93).astype(x.dtype)
        view = memory[GUARD : GUARD + x.size].reshape(x.shape)
        view[...] = x
        return Guarded(memory, view, memory.tobytes())

    @property
    def is_kept_around(self) -> bool:
        around = (self.memory[:GUARD], self.memory[len(self.memory) - GUARD :])
        return all((part.astype(np.float64) == 93).all() for part in around)


def arrays_of(case: Indexed) -> dict[str, np.ndarray]:
    """Return what a call is given, in the order of the kernel's parameters."""
    rng = np.random.default_rng(case.seed)
    found = {f"i{n}": indices_of(case, n, rng) for n in range(len(case.indices))}
    kind = KINDS[case.dtype]
    size = dict(case.sizes)
    tile = "DK" if case.form == "product" else case.used if case.form in ("scatter", "atomic") else "TD"
    for name, dims in (("x", tile), ("table", case.table)):
        found[name] = rng.integers(-3, 4, [size[d] for d in dims]).astype(kind)
    if case.form in ("gather", "summed", "product"):
        found["out"] = np.full((size["T"], size["D"]), 77).astype(np.float32 if case.form == "product" else kind)
    return found


def indices_of(case: Indexed, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return a table of indices for the axes that it is used along, most of them near both ends of these."""
    i = case.indices[n]
    shape = [case.size(d) for d in i.dims] or [3]
    count = int(np.prod(shape))
    end = case.size(next(d for d, p in zip(case.table, case.places, strict=True) if (q := parsed(p)) and q[0] == n))
    found = _content(i, count, end * 3 if any(p.startswith(f"{n} //") for p in case.places) else end, rng)
    return found.astype(KINDS[i.dtype]).reshape(shape)


def _content(i: Indices, count: int, end: int, rng: np.random.Generator) -> np.ndarray:
    inside = rng.integers(0, end, count)
    ends = np.array(ENDS[i.dtype] + [end, end + 1, -end], np.int64)
    match i.content:
        case "inside":
            return inside
        case "equal":
            return np.full(count, rng.integers(0, end))
        case "nowhere":
            return rng.choice(ends, count)
        case "distinct":
            found = rng.permutation(max(count, end))[:count]
            odd = rng.permutation(count)[: count // 4]
            found[odd] = -1
            found[odd[: len(ends)]] = ends[rng.permutation(len(ends))[: len(odd)]]
            return _broken(i, found, rng) if i.broken else _unique(found)
        case _:
            near = rng.integers(-3, end + 3, count)
            return np.where(rng.random(count) < 0.3, rng.choice(ends, count), near)


ENDS = {
    "i32": [-1, -1, -2, 2**31 - 1, -(2**31), 2**30, 2**24],
    "i64": [-1, -2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, -(2**32) + 2, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1],
}
"""Indices at the edges of numbers; some are valid ones once their upper half is lost."""


def _unique(x: np.ndarray) -> np.ndarray:
    """Return the same with -1 for each index that was there before."""
    _, first = np.unique(x, return_index=True)
    again = np.ones(len(x), bool)
    again[first] = False
    return np.where(again, -1, x)


def _broken(i: Indices, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(x) < 2:
        return _unique(x)
    a, b = rng.permutation(len(x))[:2]
    x = _unique(x)
    x[a] = x[b] = abs(int(x[b])) % 5
    return x


def is_broken(case: Indexed, given: dict[str, np.ndarray]) -> bool:
    """Return whether two indices that are said to be unique are equal."""
    for n, i in enumerate(case.indices):
        known = given[f"i{n}"].reshape(-1)
        known = known[known > -1]
        if i.contract == "unique" and len(np.unique(known)) < len(known):
            return True
    return False


class Collision(Exception):
    """Two elements of a scatter have one place, although the contracts are kept."""


def expected(case: Indexed, given: dict[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """Return the name of the array that is written, and what it holds."""
    with np.errstate(all="ignore"):
        size = dict(case.sizes)
        if case.form in ("scatter", "atomic"):
            return "table", _stored(case, given, case.used)
        at, inside = positions(case, given, "TDK" if case.form in ("summed", "product") else "TD")
        table = np.where(inside, given["table"][at], 0).astype(np.float64 if case.dtype != "i64" else np.int64)
        if case.form == "product":
            return "out", np.einsum("tdk,dk->td", table, given["x"].astype(np.float64))
        if case.form == "summed":
            depends = any("K" in i.dims for i in case.indices)
            assert depends and table.shape == (size["T"], size["D"], size["K"])
            table = table.sum(axis=2)
        return "out", given["x"].astype(table.dtype) + table


def _stored(case: Indexed, given: dict[str, np.ndarray], dims: str) -> np.ndarray:
    at, inside = positions(case, given, dims)
    places = tuple(np.broadcast_to(p, inside.shape)[inside] for p in at)
    found, x = given["table"].copy(), given["x"][inside]
    if case.form == "atomic":
        UFUNCS[case.combine].at(found, places, x)
        return found
    flat = np.ravel_multi_index(places, found.shape)
    if len(np.unique(flat)) < len(flat):
        raise Collision
    found[places] = x
    return found


def positions(case: Indexed, given: dict[str, np.ndarray], dims: str) -> tuple[Any, np.ndarray]:
    """Return the place of every element of a tile with these dims along each axis, 0 for those out of bounds."""
    shape = [case.size(d) for d in dims]
    counted = dict(zip(dims, np.indices(shape), strict=True))
    inside, at = np.ones(shape, bool), []
    for d, place in zip(case.table, case.places, strict=True):
        part = parsed(place)
        x = counted[place] if part is None else _index(case, given, part, counted)
        ok = (x >= 0) & (x < case.size(d))
        inside = inside & ok
        at.append(np.where(ok, x, 0).astype(np.int64))
    return tuple(at), inside


def _index(case: Indexed, given: dict[str, np.ndarray], part: tuple[int, str, int], counted: dict[str, Any]) -> Any:
    number, how, by = part
    i, x = case.indices[number], given[f"i{number}"]
    if i.dims:
        x = x[tuple(counted[d] for d in i.dims)]
    else:
        x = np.asarray(x[i.at] if i.at < len(x) else 0, x.dtype)
    x = np.asarray(x).astype(np.int64) if case.by_mapping else np.asarray(x)
    n = x.dtype.type(by)
    match how:
        case "//":
            return x // n
        case "%":
            return x % n
        case "+":
            return x + n
        case "-":
            return x - n
        case "*":
            return x * n
    return x
