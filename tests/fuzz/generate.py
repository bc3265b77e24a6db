"""Random programs over the whole language, valid by construction: a seed and a target give one, always the same."""

from __future__ import annotations

import random
from dataclasses import replace

from .block import Block
from .maker import TooLarge
from .ownership import WrongProgram
from .products import Products
from .program import IllTyped, Loop, Program, Read, Scope, Write, check
from .reference import expected

MAPPINGS = ("grouped({n})", "snake({n})", "morton()", "hilbert()", "linear(along='n')", "xcd_contiguous({n})")
MAPPINGS += ("xcd_contiguous({n}) >> grouped({m})", "xcd_chunked({n}, {m})", "supertiles({n}, {m})")
MATRIX = {
    ("gfx942", "f16"): ("F32_16x16x16_F16", "F32_32x32x8_F16"),
    ("gfx950", "f16"): ("F32_16x16x16_F16", "F32_16x16x32_F16"),
    ("gfx942", "bf16"): ("F32_16x16x16_BF16",),
    ("gfx942", "f32"): ("F32_16x16x4_F32",),
    ("gfx942", "i8"): ("I32_16x16x32_I8",),
}


def generate(seed: int, target: str) -> Program:
    """The first valid program that the seed gives."""
    rng = random.Random(f"{target} {seed}")
    while True:
        maker = AnyKernel(rng, target, large=seed % 4 == 3)
        try:
            program = maker.program(seed)
            check(program)
            expected(program)
        except (IllTyped, WrongProgram, TooLarge):
            continue
        return program


class AnyKernel(Products):
    """A kernel of any kind, and what holds for all of them: order, workgroups, options."""

    def program(self, seed: int) -> Program:
        kinds = [self.pointwise, self.conversions, self.walked, self.whiled, self.product, self.chain, self.read_back]
        kinds += [self.product_of_what_was_written]
        make = self.rng.choices(kinds, [26, 10, 14, 10, 28, 7, 12, 5])[0]
        block = Block(self, self.rng, Scope.before(self))  # type: ignore[arg-type]  # it asks for dims, arrays, numbers
        make(block)
        return self.finished(seed, block)

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
        """Return whether the kernel is persistent; never with a loop over its own symbol, where the author would
        deal the tiles."""
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
        prefetch = r.random() < (0.6 if self.is_product else 0.2)
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
            prefetch=prefetch,
            buffers=r.choice([None, None, None, 1, *((2, 3) if prefetch else ())]),
            named_tiles=r.random() < 0.2,
        )
