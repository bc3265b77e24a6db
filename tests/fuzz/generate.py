"""Random programs over the whole language, valid by construction: a seed and a target give one, always the same."""

from __future__ import annotations

import random
from dataclasses import replace

from .block import DTYPES, Block, Names
from .ownership import WrongProgram
from .program import (
    FLOAT8,
    FLOATS,
    Array,
    Dim,
    Fill,
    IllTyped,
    Layout,
    Loop,
    Mapping,
    Mma,
    Number,
    Place,
    Program,
    Read,
    Scope,
    Write,
    check,
    multiply,
)
from .reference import expected

TILES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64)
MAPPINGS = ("grouped({n})", "snake({n})", "morton()", "hilbert()", "linear(along='n')", "xcd_contiguous({n})")
MAPPINGS += ("xcd_contiguous({n}) >> grouped({m})", "xcd_chunked({n}, {m})", "supertiles({n}, {m})")
MOST_WORKGROUPS, MOST_ELEMENTS = 48, 6000
PRODUCT_TILES = {
    "gfx942": ((16, 32, 48, 64), (16, 32, 64)),
    "gfx950": ((16, 32, 48, 64), (16, 32, 64)),
    "sm_90a": ((64, 64, 128), (8, 16, 24, 32, 64)),
}
"""Rows and columns that a matrix instruction of the target computes."""
PRODUCT_DTYPES = {
    "gfx942": ("f16", "bf16", "f32", "i8", "f8e4m3fnuz", "f8e5m2fnuz"),
    "gfx950": ("f16", "bf16", "f32", "i8", "f8e4m3fn", "f8e5m2"),
    "sm_90a": ("f16", "bf16", "i8", "f8e4m3fn", "f8e5m2"),
}
MATRIX = {
    ("gfx942", "f16"): ("F32_16x16x16_F16", "F32_32x32x8_F16"),
    ("gfx950", "f16"): ("F32_16x16x16_F16", "F32_16x16x32_F16"),
    ("gfx942", "bf16"): ("F32_16x16x16_BF16",),
    ("gfx942", "f32"): ("F32_16x16x4_F32",),
    ("gfx942", "i8"): ("I32_16x16x32_I8",),
}
DEPTHS = {"f32": (4, 8, 16, 32), "f16": (16, 32), "bf16": (16, 32), "i8": (32, 64), "f64": (4, 8, 16)}


def generate(seed: int, target: str) -> Program:
    """The first valid program that the seed gives."""
    rng = random.Random(f"{target} {seed}")
    while True:
        maker = Maker(rng, target, large=seed % 4 == 3)
        try:
            program = maker.program(seed)
            check(program)
            expected(program)
        except (IllTyped, WrongProgram, TooLarge):
            continue
        return program


class TooLarge(Exception):
    """It would take too long to run."""


class Maker:
    """One program in the making: its dims and arrays, and the choices that hold for all of it."""

    def __init__(self, rng: random.Random, target: str, large: bool) -> None:
        self.rng, self.target, self.large = rng, target, large
        self.names = Names()
        self.dims: dict[str, Dim] = {}
        self.arrays: dict[str, Array] = {}
        self.opens: dict[str, int] = {}
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

    def program(self, seed: int) -> Program:
        kinds = [self.pointwise, self.conversions, self.walked, self.whiled, self.product, self.chain, self.read_back]
        kinds += [self.product_of_what_was_written]
        make = self.rng.choices(kinds, [26, 10, 14, 10, 28, 7, 12, 5])[0]
        block = Block(self, self.rng, Scope(self))  # type: ignore[arg-type]  # it asks for dims and arrays alone
        make(block)
        return self.finished(seed, block)

    # -- dims and arrays

    def size_for(self, tile: int) -> int:
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
        workgroups = elements = tile = 1
        for d in self.dims.values():
            workgroups *= d.tiles if d.axis is not None else 1
            elements *= d.size if d.axis is not None else 1
            tile *= d.tile if d.axis is not None else 1
        step = max((d.tile for d in self.dims.values() if d.walked), default=1)
        most = MOST_ELEMENTS * (4 if self.is_product else 1)
        step = 1 if self.is_product else step  # a product's tiles have two of the three dims
        if workgroups > MOST_WORKGROUPS or elements > most or tile * step > most:
            raise TooLarge

    def walked_dim(self, name: str, tiles=(1, 2, 3, 4, 5, 8, 16, 17)) -> str:
        tile = self.rng.choice(tiles)
        size = self.rng.choice([1, tile, 2 * tile, 2 * tile, 2 * tile + 1, 3 * tile, 5 * tile - 1, tile + 1])
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
        """Seldom one that compilers like for names of their own."""
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
        if self.rng.random() < 0.25:
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
            first_tile = min(dim.tile, dim.size)
            return d, Place(d, 1, r.randint(-(first_tile - 1), dim.size - last - 1))
        return d, Place(d)

    def write_mapping(self, dims) -> Mapping | None:
        """A mapping that reaches every element of an array [dims] once."""
        if self.rng.random() < 0.7:
            return None
        places = []
        for d in dims:
            dim = self.dims[d]
            even = dim.size % dim.tile == 0
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
        """Through memory: written, then read back by the same workgroup, as it is or from other places of its own."""
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

    # -- kinds of kernels

    def pointwise(self, block: Block) -> None:
        dims = self.grid_dims(self.rng.randint(1, 3))
        for _ in range(self.rng.randint(1, 3)):
            self.read_input(block, self.some_dims(dims))
        block.grow(self.rng.randint(1, 7))
        if self.rng.random() < 0.1:
            self.exchange(block, dims)
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            self.write_output(block, dims)

    def conversions(self, block: Block) -> None:
        """Casts of hard numbers, one after the other."""
        dims = self.grid_dims(self.rng.randint(1, 2))
        self.mood = self.rng.choice(["special", "special", "extreme"])
        x = self.read_input(block, dims, self.rng.choice(["f64", "f64", *DTYPES]))
        for _ in range(self.rng.randint(1, 3)):
            x = block.cast(x, self.rng.choice(DTYPES))
        if self.rng.random() < 0.3:
            block.unary(x)
        self.write_last(block, dims)

    def write_last(self, block: Block, dims) -> None:
        x = list(block.scope.types)[-1]
        array = self.new_array(self.some_dims((), dims), block.type(x).dtype, "poison", self.output_letter())
        block.add(Write(x, array))

    def read_back(self, block: Block) -> None:
        """Kernels whose workgroups own whole dims, and pass things to themselves through memory."""
        dims = self.grid_dims(self.rng.randint(1, 2), tiles=(4, 8, 16, 32, 64))
        for d in dims:
            if self.rng.random() < 0.8:
                dim = self.dims[d]
                self.dims[d] = Dim(d, max(1, dim.tile - self.rng.choice([0, 0, 0, 1, 3])), dim.tile, dim.axis)
        self.add_waves(dims)
        self.read_input(block, self.some_dims(dims, dims))
        block.grow(self.rng.randint(0, 3))
        for _ in range(self.rng.choice([1, 1, 2])):
            self.exchange(block, dims)
        self.write_output(block, dims)

    def walked(self, block: Block) -> None:
        dims = self.grid_dims(self.rng.randint(1, 2))
        depth = self.walked_dim("K")
        self.read_input(block, self.some_dims(dims))
        self.loop(block, dims, depth, self.rng.random() < 0.25)
        if self.rng.random() < 0.3:
            self.loop(block, dims, depth, False)
        block.grow(self.rng.randint(0, 3))
        self.write_output(block, dims)

    def carried(self, block: Block, dims) -> list[str]:
        """What a loop begins with: tiles of the grid's dims, and numbers."""
        found = []
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            dtype = self.rng.choice([d for d in DTYPES if d != "bool"])
            some = self.some_dims(dims)
            if self.rng.random() < 0.2:
                found.append(block.add(Number(block.fresh(), block.literal(dtype), dtype)))
            else:
                found.append(block.add(Fill(block.fresh(), some, dtype, block.literal(dtype))))
        return found

    def loop(self, block: Block, dims, depth: str, nested: bool) -> None:
        init = self.carried(block, dims)
        params = [block.fresh("p") for _ in init]
        inner = block.inner(**{p: block.type(x) for p, x in zip(params, init, strict=True)})
        for _ in range(self.rng.randint(1, 2)):
            self.read_input(inner, self.some_dims((*dims, depth), (depth,)))
        inner.grow(self.rng.randint(1, 4))
        if nested:
            self.loop(inner, dims, self.walked_dim("L"), False)
        if not init or self.rng.random() < 0.5:
            self.write_inside(inner, (*dims, depth))
        returns = [inner.next_of(p) if self.rng.random() < 0.9 else p for p in params]
        self.close_loop(block, inner, depth, init, params, returns)

    def write_inside(self, inner: Block, dims) -> None:
        """A write in a loop: each step its own part; perhaps to an array that is read in place."""
        if not {d for d in self.dims if self.dims[d].walked} <= set(dims):
            return
        dtype = self.rng.choice(DTYPES)
        in_place = self.rng.random() < 0.4 and dtype != "bool"
        array = self.new_array(
            self.some_dims((), dims), dtype, self.mood if in_place else "poison", self.output_letter()
        )
        if in_place:
            inner.read(array, self.own_mapping(dims, self.array(array).dims) if self.rng.random() < 0.5 else None)
            inner.grow(1)
        inner.add(
            Write(inner.made(dims, dtype), array, None if in_place else self.write_mapping(self.array(array).dims))
        )

    def close_loop(self, block: Block, inner: Block, dim: str, init, params, returns, **rounds) -> list[str]:
        results = [block.fresh("r") for _ in init]
        name = block.fresh("loop")
        block.add(Loop(name, dim, *map(tuple, (init, params, inner.statements, returns, results)), **rounds))
        return results

    def whiled(self, block: Block) -> None:
        """A loop by a symbol of its own, of 0 to 5 rounds; memories are read at places that it decides."""
        dims = self.grid_dims(self.rng.randint(1, 2))
        self.dealt, self.is_while = False, True
        self.read_input(block, self.some_dims(dims))
        start, step, rounds = self.rng.randint(0, 3), self.rng.randint(1, 3), self.rng.randint(0, 5)
        stop = start + step * rounds - (self.rng.randrange(step) if rounds else 0)
        last = start + step * max(rounds - 1, 0)
        symbol = self.names("T")
        init = self.carried(block, dims)
        params = [block.fresh("p") for _ in init]
        inner = block.inner(**{p: block.type(x) for p, x in zip(params, init, strict=True)})
        self.read_by_symbol(inner, dims, symbol, last)
        inner.add(Number(inner.fresh(), symbol, self.rng.choice(["i32", "i64", "index"])))
        inner.grow(self.rng.randint(1, 4))
        if self.rng.random() < 0.3:
            self.exchange(inner, dims)
        returns = [inner.next_of(p) for p in params]
        bound = stop
        if self.rng.random() < 0.4 and stop >= 1:
            bound = self.names("LIMIT")
            self.opens[bound] = stop
        self.close_loop(block, inner, symbol, init, params, returns, start=start, stop=bound, step=step)
        block.grow(self.rng.randint(0, 2))
        self.write_output(block, dims)

    def read_by_symbol(self, inner: Block, dims, symbol: str, last: int) -> None:
        d = self.rng.choice(dims)
        extra = self.memory_dim(last + 1)
        places = [(e, Place(e)) for e in dims]
        if self.rng.random() < 0.5:
            places.append((extra, Place(None, 1, 0, ((symbol, 1),))))
        else:
            long = self.memory_dim(self.dims[d].size + last)
            places = [(long, Place(d, 1, 0, ((symbol, 1),))) if e == d else (e, p) for e, p in places]
        array = self.new_array([e for e, _ in places], self.rng.choice(DTYPES), self.mood)
        inner.read(array, Mapping(tuple(dims), tuple(places)))

    # -- products

    def product_dims(self, batch: bool) -> None:
        self.is_product = True
        rows, cols = PRODUCT_TILES.get(self.target, (TILES[3:], TILES[3:]))
        if self.large:  # such tiles are brought to shared memory in other ways than small ones
            rows = cols = (64,)
        axes = self.rng.sample(range(3), 3)
        for name, tiles, axis in zip("MN", (rows, cols), axes, strict=False):
            tile = self.rng.choice(tiles)
            self.dims[name] = Dim(name, self.size_for(tile), tile, axis)
        if batch:
            self.dims["B"] = Dim("B", self.rng.randint(1, 3), self.rng.choice([1, 1, 2]), axes[2])
        self.check_size()

    def rows_and_columns(self) -> list[str]:
        """M and N, either of them first where the target's instruction takes its tile as rows."""
        smallest = 64 if self.target == "sm_90a" else 1
        return self.rng.sample(["M", "N"], 2) if self.dims["N"].tile % smallest == 0 else ["M", "N"]

    def product_dtypes(self) -> tuple[str, str, str]:
        a = self.rng.choice(PRODUCT_DTYPES.get(self.target, (*FLOATS, "i8", "f16", "f32")))
        b = self.rng.choice([d for d in FLOAT8 if d in PRODUCT_DTYPES.get(self.target, FLOAT8)]) if a in FLOAT8 else a
        accs = ["i32"] if a == "i8" else ["f64"] if a == "f64" else ["f32"]
        if a in FLOATS and self.target in ("numpy", "cpu") and self.rng.random() < 0.15:
            accs = ["f64"]
        assert multiply(a, b, accs[0])
        return a, b, accs[0]

    def depth_dim(self, name: str, dtype: str) -> str:
        if self.target in ("numpy", "cpu"):
            return self.walked_dim(name, (1, 2, 3, 4, 5, 8, 16, 17, 32))
        return self.walked_dim(name, (32, 64) if self.large else DEPTHS.get(dtype, (32, 64)))

    def operand(self, block: Block, dims, dtype: str) -> str:
        """What is multiplied: just read, or changed after it was read, or cast from another dtype."""
        order = self.some_dims((), dims)
        kind = self.rng.choice(["read"] * 5 + ["changed", "cast"])
        if kind == "cast":
            x = self.read_input(block, order, self.rng.choice([d for d in DTYPES if d not in (dtype, "bool")]))
            return block.cast(x, dtype)
        x = self.read_input(block, order, dtype)
        if kind == "changed":
            op = self.rng.choice(["+", "*", "-", "maximum", "neg", "exp"])
            if op == "neg":
                return block.compute("neg", x)
            if op == "exp" and dtype in FLOATS and self.has_functions(dtype):
                return block.compute("exp", x)
            return block.compute(
                "+" if op == "exp" else op, x, block.rng.choice([1.0, 0.5, 2.0] if dtype in FLOATS else [1, 2, -3])
            )
        return x

    def calm(self) -> None:
        """Numbers whose products stay finite."""
        if self.mood == "special":
            self.mood = "normal"

    def product(self, block: Block) -> None:
        self.calm()
        batch = self.rng.random() < 0.15
        self.product_dims(batch)
        a, b, acc = self.product_dtypes()
        depth = self.depth_dim("K", a)
        lead = ("B",) if batch else ()
        dims = (*lead, *self.rows_and_columns())
        self.add_waves(dims)
        init = [block.add(Fill(block.fresh(), dims, acc, 0 if acc == "i32" else 0.0))]
        if self.rng.random() < 0.2:
            init += self.carried(block, dims)
        params = [block.fresh("p") for _ in init]
        inner = block.inner(**{p: block.type(x) for p, x in zip(params, init, strict=True)})
        total = self.multiplied(inner, lead, depth, (a, b, acc), params[0])
        returns = [total] + [inner.next_of(p) for p in params[1:]]
        self.close_loop(block, inner, depth, init, params, returns)
        self.epilogue(block, dims)

    def multiplied(self, inner: Block, lead, depth: str, dtypes, acc: str) -> str:
        """acc + a · b, written in one of several ways."""
        a = self.operand(inner, (*lead, "M", depth), dtypes[0])
        b = self.operand(inner, (*lead, "N", depth), dtypes[1])
        x, y = self.rng.sample([a, b], 2)
        if self.rng.random() < 0.75:
            return inner.add(Mma(inner.fresh(), x, y, acc))
        t = inner.type(acc)
        zero = inner.add(Fill(inner.fresh(), t.dims, t.dtype, 0 if t.dtype == "i32" else 0.0))
        p = inner.add(Mma(inner.fresh(), x, y, zero))
        if self.rng.random() < 0.3:
            p = inner.compute(self.rng.choice(["*", "+"]), p, 2 if t.dtype == "i32" else 0.5)
        return inner.compute(self.rng.choice(["+", "+", "-"]), *self.rng.sample([acc, p], 2))

    def epilogue(self, block: Block, dims) -> None:
        if self.rng.random() < 0.5:
            self.read_input(block, self.some_dims(dims))
        block.grow(self.rng.choice([0, 0, 1, 2, 4]))
        if self.rng.random() < 0.15:
            self.exchange(block, dims)
        self.write_output(block, dims)

    def chain(self, block: Block) -> None:
        """A product of a product: an inner loop in an outer one."""
        self.calm()
        self.product_dims(False)
        a, _, acc = self.product_dtypes()
        depth, length = self.depth_dim("K", a), self.chain_length(a)
        out = block.add(Fill(block.fresh(), ("M", "N"), acc, 0 if acc == "i32" else 0.0))
        p, q = block.fresh("p"), block.fresh("p")
        outer = block.inner(**{p: block.type(out)})
        zero = outer.add(Fill(outer.fresh(), ("M", length), acc, 0 if acc == "i32" else 0.0))
        inner = outer.inner(**{q: outer.type(zero)})
        x, y = (self.operand(inner, (d, depth), a) for d in ("M", length))
        total = inner.add(Mma(inner.fresh(), x, y, q))
        (first,) = self.close_loop(outer, inner, depth, [zero], [q], [total])
        if self.rng.random() < 0.3:
            first = outer.compute("*", first, 2 if acc == "i32" else 0.25)
        again = outer.cast(first, a)
        total = outer.add(Mma(outer.fresh(), again, self.operand(outer, ("N", length), a), p))
        self.close_loop(block, outer, length, [out], [p], [total])
        self.epilogue(block, ("M", "N"))

    def product_of_what_was_written(self, block: Block) -> None:
        """A product, written to memory, is an operand of the next, walked in other steps."""
        self.calm()
        self.product_dims(False)
        cols = self.dims["N"]
        self.dims["N"] = cols = Dim("N", min(cols.size, cols.tile), cols.tile, cols.axis)
        self.add_waves(("M", "N"))
        a, _, acc = self.product_dtypes()
        first = self.summed(block, "M", "N", self.depth_dim("K", a), a, acc)
        width = self.memory_dim(cols.size)
        array = self.new_array(self.some_dims((), ("M", width)), a, "poison", "s")
        places = (("M", Place("M")), (width, Place("N", self.rng.choice([1, 1, -1]))))
        places = (places[0], (width, Place("N", -1, cols.size - 1)) if places[1][1].sign < 0 else places[1])
        block.add(Write(block.cast(first, a), array, Mapping(("M", "N"), places)))
        length = self.depth_dim("L", a)
        self.dims[length] = Dim(length, cols.size, self.dims[length].tile)
        back = Mapping(("M", length), (("M", Place("M")), (width, Place(length))))
        self.summed(block, "M", "N", length, a, acc, lambda inner: inner.read(array, back))
        self.epilogue(block, ("M", "N"))

    def summed(self, block: Block, rows: str, cols: str, depth: str, dtype: str, acc: str, left=None) -> str:
        """The sum over a loop of products."""
        zero = block.add(Fill(block.fresh(), (rows, cols), acc, 0 if acc == "i32" else 0.0))
        p = block.fresh("p")
        inner = block.inner(**{p: block.type(zero)})
        x = left(inner) if left else self.operand(inner, (rows, depth), dtype)
        total = inner.add(Mma(inner.fresh(), x, self.operand(inner, (cols, depth), dtype), p))
        (result,) = self.close_loop(block, inner, depth, [zero], [p], [total])
        return result

    def chain_length(self, dtype: str) -> str:
        tiles = (16, 32, 64) if self.target not in ("numpy", "cpu") else (2, 4, 8, 16)
        return self.walked_dim("L", tiles if dtype not in ("i8", *FLOAT8) else (32, 64))

    # -- the whole

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

    def order(self) -> str:
        r = self.rng
        if r.random() < 0.7 or self.dealt:
            return ""
        if r.random() < 0.2:
            name = self.names("WGM")
            self.opens[name] = r.randint(1, 5)
            return f"WorkgroupMapping(grouped({name}))"
        if r.random() < 0.2:
            cut = [d for d in self.dims.values() if d.axis is not None]
            d = r.choice(cut)
            return f"ReorderingConstraint({d.tiles - 1} - WORKGROUP_{d.axis}, {d.axis})"
        return f"WorkgroupMapping({r.choice(MAPPINGS).format(n=r.randint(1, 9), m=r.randint(1, 4))})"

    def is_persistent(self, order: str) -> bool:
        """With a loop of its own symbol, the kernel's author would have to deal the tiles."""
        return self.rng.random() < 0.15 and not self.is_while and "Reordering" not in order

    def with_vectors(self, body: tuple) -> tuple:
        """Some reads and writes say how many elements a lane should take."""
        found = []
        for s in body:
            if isinstance(s, Loop):
                s = replace(s, body=self.with_vectors(s.body))
            elif isinstance(s, (Read, Write)) and self.rng.random() < 0.1:
                s = replace(s, per_thread=self.rng.choice([1, 2, 4, 8]))
            found.append(s)
        return tuple(found)

    def wish(self) -> str:
        """A matrix instruction by name, where the dtypes have one."""
        left = next((a.dtype for a in self.arrays.values() if "K" in a.dims), "")
        names = MATRIX.get((self.target, left), ())
        return self.rng.choice(names) if names and self.is_product and self.rng.random() < 0.2 else ""

    def finished(self, seed: int, block: Block) -> Program:
        r = self.rng
        dealt = self.dealt and any(d.axis is not None for d in self.dims.values())
        order = self.order()
        return Program(
            tuple(self.dims.values()),
            tuple(self.arrays.values()),
            self.with_vectors(tuple(block.statements)),
            seed,
            workgroups=r.randint(1, 6) if dealt or self.is_persistent(order) else 0,
            dealt=dealt,
            mapping=order,
            opens=tuple(self.opens.items()),
            threads_per_wave=r.choice([0, 0, 0, 64]),
            mma_type=self.wish(),
            prefetch=r.random() < (0.5 if self.is_product else 0.2),
            buffers=r.choice([None, None, None, 1, 2, 3]),
            named_tiles=r.random() < 0.2,
        )
