"""Kinds of random kernels: element by element, in loops, and through memory."""

from __future__ import annotations

from .block import DTYPES, Block
from .maker import Maker
from .program import Dim, Fill, Loop, Mapping, Number, Place, Write


class Elementwise(Maker):
    """Kernels without products."""

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
        """A loop over its own symbol, of 0 to 5 iterations; memories are read at positions that depend on it."""
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
