"""Kinds of random kernels: products, chained products, and products of what was written."""

from __future__ import annotations

from .block import DTYPES, Block
from .elementwise import Elementwise
from .maker import TILES
from .program import FLOAT8, FLOATS, Dim, Fill, Mapping, Mma, Place, Write, multiply

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
DEPTHS = {"f32": (4, 8, 16, 32), "f16": (16, 32), "bf16": (16, 32), "i8": (32, 64), "f64": (4, 8, 16)}


class Products(Elementwise):
    """Kernels with matrix products."""

    def product_dims(self, batch: bool) -> None:
        self.is_product = True
        rows, cols = PRODUCT_TILES.get(self.target, (TILES[3:], TILES[3:]))
        if self.large:  # large tiles are loaded into shared memory in other ways than small ones
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
        """A product, written to memory, is an operand of the next, which loops over it in other steps."""
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
