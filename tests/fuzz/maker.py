"""One random program in the making: its dims and arrays, and how they are read and written."""

from __future__ import annotations

import random
from collections.abc import Iterable

from .block import DTYPES, Block, Names
from .program import Array, Dim, Layout, Mapping, Number, Parameter, Place, Write

TILES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64)
MOST_WORKGROUPS, MOST_ELEMENTS = 48, 6000


class TooLarge(Exception):
    """A program would take too long to run."""


def check_size(dims: Iterable[Dim], is_product: bool) -> None:
    workgroups = elements = tile = step = 1
    for d in dims:
        workgroups *= d.tiles if d.axis is not None else 1
        elements *= d.size if d.axis is not None else 1
        tile *= d.tile if d.axis is not None else 1
        step = max(step, d.tile if d.walked else 1)
    most = MOST_ELEMENTS * (4 if is_product else 1)
    step = 1 if is_product else step  # a product's tiles have two of the three dims
    if workgroups > MOST_WORKGROUPS or elements > most or tile * step > most:
        raise TooLarge


class Maker:
    """One program in the making: its dims and arrays, and the choices that hold for all of it."""

    def __init__(self, rng: random.Random, target: str, large: bool) -> None:
        self.rng, self.target, self.large = rng, target, large
        self.names = Names()
        self.dims: dict[str, Dim] = {}
        self.arrays: dict[str, Array] = {}
        self.opens: dict[str, int] = {}
        self.numbers: tuple[Parameter, ...] = ()
        self.dealt = rng.random() < 0.08
        self.mood = rng.choice(["small", "small", "normal", "special", "extreme"])
        self.is_product = self.is_while = False

    def dim(self, name: str) -> Dim:
        return self.dims[name]

    def array(self, name: str) -> Array:
        return self.arrays[name]

    def has_functions(self, dtype: str) -> bool:
        return dtype != "f64" or self.target in ("numpy", "cpu")

    def may_ask_index(self, dim: str) -> bool:
        return dim in self.dims and not (self.dealt and self.dims[dim].axis is not None)

    # -- dims and arrays

    @property
    def is_ordinary(self) -> bool:
        """Large products are mostly what people write: whole steps, plain reads, rows or columns without gaps."""
        return self.large and self.is_product

    def size_for(self, tile: int) -> int:
        if self.is_ordinary:
            return self.rng.choice([tile - 1, tile, tile, tile + 1, 2 * tile])
        near = [
            1,
            tile - 1,
            tile,
            tile,
            tile + 1,
            2 * tile,
            2 * tile + 1,
            3 * tile - 1,
            self.rng.choice([2, 3, 5, 7, 11, 13]),
        ]
        return self.rng.choice([n for n in near if n >= 1])

    def grid_dims(self, count: int, tiles=TILES) -> tuple[str, ...]:
        axes = self.rng.sample(range(3), count)
        names = self.rng.sample(["M", "N", "B"], count)
        for name, axis in zip(names, axes, strict=True):
            tile = self.rng.choice(tiles)
            self.dims[name] = Dim(name, self.size_for(tile), tile, axis)
        self.check_size()
        return tuple(names)

    def check_size(self) -> None:
        check_size(self.dims.values(), self.is_product)

    def walked_dim(self, name: str, tiles=(1, 2, 3, 4, 5, 8, 16, 17)) -> str:
        tile = self.rng.choice(tiles)
        size = self.rng.choice([1, tile, 2 * tile, 2 * tile, 2 * tile + 1, 3 * tile, 5 * tile - 1, tile + 1])
        if self.is_ordinary:
            size = tile * self.rng.choice([1, 2, 2, 3, 4, 5])
        self.dims[name] = Dim(name, size, tile)
        self.check_size()
        return name

    def memory_dim(self, size: int) -> str:
        """A dim that only memories have."""
        name = self.names("P")
        self.dims[name] = Dim(name, size)
        return name

    def is_own(self, dim: str) -> bool:
        """Whether one workgroup has all of this dim."""
        d = self.dims[dim]
        return d.axis is None or d.tiles == 1

    def owned(self, dims) -> list[str]:
        return [d for d in dims if self.is_own(d)]

    def layout(self, rank: int) -> Layout | None:
        r = self.rng
        if r.random() < 0.5:
            return None
        if self.is_ordinary:
            order = tuple(r.sample(range(rank), rank))
            return Layout(order, (1,) * rank, (0,) * rank, tuple(r.choice([0, 0, 4]) for _ in range(rank)))
        steps = [1, 1, 1, 2] if self.target == "sm_90a" else [1, 1, 1, 2, -1, -2]
        return Layout(
            tuple(r.sample(range(rank), rank)),
            tuple(r.choice(steps) for _ in range(rank)),
            tuple(r.choice([0, 0, 1, 3]) for _ in range(rank)),
            tuple(r.choice([0, 0, 1, 5]) for _ in range(rank)),
        )

    def new_array(self, dims, dtype: str, content: str, prefix: str = "a") -> str:
        name = self.names(prefix)
        spaces = ["GLOBAL_ADDRESS_SPACE"] * (2 if self.is_product else 4) + ["SHARED_ADDRESS_SPACE", "SPACE"]
        space = self.rng.choice(spaces)
        self.arrays[name] = Array(name, tuple(dims), dtype, content, space, self.layout(len(dims)))
        return name

    def output_letter(self) -> str:
        """Return a letter for outputs, rarely one that compilers use for their own names."""
        return self.rng.choice(["o"] * 40 + ["c", "t"])

    def some_dims(self, dims, must=()) -> tuple[str, ...]:
        """A part of the dims, in some order."""
        others = [d for d in dims if d not in must]
        kept = list(must) + self.rng.sample(others, self.rng.randint(0 if must else 1, len(others)))
        self.rng.shuffle(kept)
        return tuple(kept)

    # -- reads and writes

    def read_input(self, block: Block, dims, dtype: str | None = None) -> str:
        """A read of a new array, or of one that is there."""
        known = [
            a
            for a in self.arrays.values()
            if set(a.dims) == set(dims) and a.content != "poison" and dtype in (None, a.dtype)
        ]
        if known and self.rng.random() < 0.2:
            return block.read(self.rng.choice(known).name)
        dtype = dtype or self.rng.choice(DTYPES)
        if self.rng.random() < 0.05:
            self.open_number(block)
        if self.rng.random() < (0.05 if self.is_ordinary else 0.25):
            return self.read_mapped(block, dims, dtype)
        return block.read(self.new_array(dims, dtype, self.mood))

    def open_number(self, block: Block) -> None:
        """A number that the call gives."""
        name = self.names("S")
        self.opens[name] = self.rng.randint(1, 9)
        block.add(Number(block.fresh(), name, self.rng.choice(["index", "i32", "i64"])))

    def read_mapped(self, block: Block, dims, dtype: str) -> str:
        """A read through a mapping from an array that fits it."""
        places, memory = [], []
        for d in dims:
            dim, place = self.place(d)
            memory.append(dim)
            places.append((dim, place))
        if self.rng.random() < 0.2:
            size = self.rng.randint(1, 4)
            extra = self.memory_dim(size)
            memory.append(extra)
            places.append((extra, Place(None, 1, self.rng.randrange(size))))
        order = self.rng.sample(range(len(memory)), len(memory))
        array = self.new_array([memory[n] for n in order], dtype, self.mood)
        return block.read(array, Mapping(tuple(dims), tuple(places)))

    def place(self, d: str) -> tuple[str, Place]:
        """Where along a memory the tile's dim d is read: as it is, shifted, reversed or rotated."""
        dim, r = self.dims[d], self.rng
        kind = r.choice(["same", "same", "shifted", "reversed", "rotated", "over"])
        if kind == "shifted":
            by = r.randint(0, 4)
            return self.memory_dim(dim.size + by + r.randint(0, 3)), Place(d, 1, by)
        if kind == "reversed":
            return d, Place(d, -1, dim.size - 1)
        if kind == "rotated":
            return d, Place(d, 1, r.randint(0, dim.size), modulo=dim.size)
        if kind == "over":
            last = (dim.tiles - 1) * dim.tile
            first_tile = min(dim.tile or dim.size, dim.size)
            least, most = -(first_tile - 1), dim.size - last - 1
            # up to here a part of each tile is in bounds; one further, all of one is out of bounds
            by = r.randint(least, most)
            further = {least: -1 - dim.size % 3, most: 1 + dim.size % 5}.get(by, 0)
            return d, Place(d, 1, by + further)
        return d, Place(d)

    def write_mapping(self, dims) -> Mapping | None:
        """A mapping that reaches every element of an array [dims] once."""
        if self.rng.random() < 0.7:
            return None
        places = []
        for d in dims:
            dim = self.dims[d]
            even = not dim.tile or dim.size % dim.tile == 0
            kind = self.rng.choice(["same", "reversed", "rotated" if even else "same"])
            if kind == "rotated":
                places.append((d, Place(d, 1, self.rng.randint(0, dim.size), modulo=dim.size)))
            else:
                places.append((d, Place(d) if kind == "same" else Place(d, -1, dim.size - 1)))
        return Mapping(self.some_dims((), dims), tuple(places))

    def write_output(self, block: Block, dims) -> None:
        """Something of these dims, written to a new array; perhaps twice, the second time something else."""
        dtype = self.rng.choice(DTYPES)
        x = block.made(dims, dtype)
        array = self.new_array(self.some_dims((), dims), dtype, "poison", self.output_letter())
        stored = self.array(array).dims
        mapping = self.write_mapping(stored)
        block.add(Write(x, array, mapping))
        if self.rng.random() < 0.15:
            block.grow(1)
            y = block.made(dims, dtype)
            owns_all = set(self.owned(dims)) == set(dims)
            block.add(Write(y, array, self.write_mapping(stored) if owns_all else mapping))

    def exchange(self, block: Block, dims) -> None:
        """Write to memory, then read back in the same workgroup, at the same or at other positions."""
        dtype = self.rng.choice([d for d in DTYPES if d != "bool"])
        x = block.made(dims, dtype)
        array = self.new_array(self.some_dims((), dims), dtype, self.rng.choice(["poison", self.mood]), "s")
        stored = self.array(array).dims
        if self.array(array).content != "poison" and self.rng.random() < 0.6:
            block.read(array, self.own_mapping(dims, stored))
            block.grow(1)
            x = block.made(dims, dtype)
        block.add(Write(x, array))
        block.read(array, self.own_mapping(dims, stored))
        block.grow(self.rng.randint(0, 2))
        if self.rng.random() < 0.4:
            block.add(Write(block.made(dims, dtype), array))
            if self.rng.random() < 0.5:
                block.read(array, self.own_mapping(dims, stored))

    def own_mapping(self, dims, stored) -> Mapping | None:
        """Other places of the same array that are this workgroup's too."""
        own = self.owned(dims)
        if not own or self.rng.random() < 0.2:
            return None
        places = {d: Place(d) for d in stored}
        pairs = [(a, b) for a in own for b in own if a < b and self.dims[a].size == self.dims[b].size]
        if pairs and self.rng.random() < 0.5:
            a, b = self.rng.choice(pairs)
            places[a], places[b] = Place(b), Place(a)
        for d in own:
            size = self.dims[d].size
            if places[d] == Place(d) and self.rng.random() < 0.7:
                by = self.rng.randint(0, size)
                places[d] = self.rng.choice([Place(d, -1, size - 1), Place(d, 1, by, modulo=size)])
        return Mapping(tuple(dims), tuple(places.items()))

    def add_waves(self, dims) -> None:
        if self.rng.random() < 0.5:
            return
        smallest = 1
        if self.is_product:
            smallest = 16 if self.target != "sm_90a" else 64
        for d in dims:
            dim = self.dims[d]
            parts = [n for n in (1, 2, 4) if dim.tile % n == 0 and (dim.tile // n) % smallest == 0]
            if dim.axis is not None and d in ("M", "N") and parts:
                self.dims[d] = Dim(d, dim.size, dim.tile, dim.axis, dim.tile // self.rng.choice(parts))
