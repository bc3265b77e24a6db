"""Random programs with reductions: of rows that fit in a workgroup, of tiles in a loop, of products."""

from __future__ import annotations

import random

from .block import Block
from .generate import AnyKernel
from .maker import TooLarge
from .ownership import WrongProgram
from .program import Dim, IllTyped, Program, Reduce, Scope, check
from .reference import expected

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 37, 64, 65, 100, 128, 257)


def generate_reduced(seed: int, target: str) -> Program:
    """The first valid program that the seed gives; something is reduced in it."""
    rng = random.Random(f"reduced {target} {seed}")
    while True:
        maker = ReducedKernel(rng, target, large=seed % 4 == 3)
        try:
            program = maker.program(seed)
            check(program)
            expected(program)
        except (IllTyped, WrongProgram, TooLarge):
            continue
        if any(isinstance(s, Reduce) for s in program.walk()):
            return program


class ReducedKernel(AnyKernel):
    """A kernel that reduces something somewhere."""

    def program(self, seed: int) -> Program:
        self.dealt = False  # where the tiles of such a kernel end is not known
        make = self.rng.choices([self.rows, self.walked, self.product], [50, 25, 25])[0]
        block = Block(self, self.rng, Scope.before(self))  # type: ignore[arg-type]  # it asks for dims, arrays, numbers
        make(block)
        return self.finished(seed, block)

    def whole_dim(self) -> str:
        """One that no constraint cuts."""
        name = self.names("W")
        self.dims[name] = Dim(name, self.rng.choice(LENGTHS))
        return name

    def rows(self, block: Block) -> None:
        """Rows, columns or all of a tile, with one or two dims that a workgroup has whole."""
        dims = self.grid_dims(self.rng.randint(1, 2), tiles=(1, 1, 2, 3, 4, 8, 16))
        for d in dims:
            dim = self.dims[d]
            if self.rng.random() < 0.3:  # the only tile of its dim: it can be reduced too
                self.dims[d] = Dim(d, self.rng.randint(1, dim.tile), dim.tile, dim.axis)
        self.add_waves(dims)
        whole = tuple(self.whole_dim() for _ in range(self.rng.choice([1, 1, 1, 2])))
        self.check_tile((*dims, *whole))
        for _ in range(self.rng.choice([1, 1, 2])):
            self.read_input(block, self.some_dims((*dims, *whole), whole))
        block.grow(self.rng.randint(0, 2))
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            block.reduce()
            block.grow(self.rng.randint(0, 2))
        self.write_output(block, dims)
        if self.rng.random() < 0.5:
            self.write_output(block, (*dims, *whole))

    def check_tile(self, dims) -> None:
        elements = 1
        for d in dims:
            elements *= self.dims[d].tile or self.dims[d].size
        if elements > 4096:
            raise TooLarge

    def read_input(self, block: Block, dims, dtype: str | None = None) -> str:
        """In a loop, what was read is often reduced at once."""
        x = super().read_input(block, dims, dtype)
        if any(self.dims[d].walked for d in block.type(x).dims) and not self.is_product and self.rng.random() < 0.7:
            block.grow(self.rng.randint(0, 1))
            block.reduce()
        return x

    def epilogue(self, block: Block, dims) -> None:
        for d in dims:  # what is reduced is the only tile of its dim
            dim = self.dims[d]
            if self.rng.random() < 0.7 and not dim.wave:
                self.dims[d] = Dim(d, min(dim.size, dim.tile), dim.tile, dim.axis)
        block.grow(self.rng.choice([0, 0, 1]))
        for _ in range(self.rng.choice([1, 1, 2])):
            block.reduce()
            block.grow(self.rng.choice([0, 1]))
        super().epilogue(block, dims)
