"""Products whose sizes are open, each compiled once for all shapes, and what their results are held against."""

import ctypes
import mmap

import numpy as np
import seeds
from kernels import *

from tilewave import kernels as shipped
from tilewave.mapping import grouped

WGM, N_TILES, TOTAL_TILES = sym.WGM, sym.N_TILES, sym.TOTAL_TILES


class Product:
    """A kernel compiled once: a · bᵀ for arrays of any M, N and K."""

    def __init__(self, kernel, subs, dtype=f16, acc=f32, turned=(), dynamic=(), symbols=lambda m, n: {}):
        self.kernel, self.subs, self.dtype, self.acc, self.transposed = kernel, subs, dtype, acc, turned
        self.dynamic, self.symbols, self.made = dynamic, symbols, {}

    def compiled(self, instruction_set=None):
        if instruction_set not in self.made:
            subs = {s: value for s, value in self.subs.items() if s not in (M, N, K, *self.dynamic)}
            options = {"dynamic_symbols": list(self.dynamic), "instruction_set": instruction_set}
            self.made[instruction_set] = compiled(self.kernel, subs=subs, target="cpu", **options)
        return self.made[instruction_set]

    def operands(self, m, n, k, seed=0):
        """Return a[m, k] and b[n, k], which a kernel may take transposed; and a poisoned c."""
        rng = np.random.default_rng(seed)
        return random_array(rng, (m, k), self.dtype), random_array(rng, (n, k), self.dtype), poisoned((m, n), self.acc)

    def check(self, m, n, k, instruction_set=None, seed=0):
        self.check_arrays(*self.operands(m, n, k, seed), instruction_set)

    def check_arrays(self, a, b, c, instruction_set=None):
        given = [x.T if name in self.transposed else x for name, x in (("a", a), ("b", b))]
        self.compiled(instruction_set)(*given, c, **self.symbols(*c.shape))
        if c.size:
            check_product(c, a, b, self.acc)


def of_document(number, **more):
    seed = seeds.SEEDS[number]
    return Product(seed.kernel, seed.subs(1, 1, 1, **more))


def tiles_of(m, n):
    columns = -(-n // 32)
    return {"N_TILES": columns, "TOTAL_TILES": -(-m // 48) * columns}


def of_shipped(dtype, tile=(64, 96, 32)):
    made = shipped.gemm((1, 1, 1), dtype, tile=tile)
    return Product(made.kernel, made.subs, dtype, shipped.accumulator(dtype))


def of_tests(*turned, dtype=f32, acc=f32, constraints=(), block=(32, 48, 24), **more):
    dims = {"a_dims": (K, M) if "a" in turned else (M, K), "b_dims": (K, N) if "b" in turned else (N, K)}
    kernel = gemm(dtype, acc, constraints=constraints, **dims)
    return Product(kernel, sizes(1, 1, 1, *block), dtype, acc, turned, **more)


PERSISTENT = seeds.SEEDS[2]
PRODUCTS = {
    "plain": of_document(0),
    "reordered": of_document(1, block_m=32, block_n=48, block_k=32, group_size_m=3),
    "persistent": Product(
        PERSISTENT.kernel,
        PERSISTENT.subs(1, 1, 1, block_m=48, block_n=32, block_k=32, num_ctas=5),
        dynamic=(N_TILES, TOTAL_TILES),
        symbols=tiles_of,
    ),
    "f32": of_shipped(f32),
    "f16": of_shipped(f16),
    "bf16": of_shipped(bf16, (64, 64, 64)),
    "i8": of_shipped(i8, (64, 64, 64)),
    "f64": of_tests(dtype=f64, acc=f64),
    "columns of a": of_tests("a"),
    "columns of b": of_tests("b", dtype=f16),
    "columns of both": of_tests("a", "b", dtype=i8, acc=i32),
    "a grid of three": of_tests(constraints=[GridConstraint(3)]),
    "a mapping": of_tests(constraints=[WorkgroupMapping("xcd_contiguous(2) >> grouped(3)")]),
    "a symbol besides": of_tests(
        constraints=[WorkgroupMapping(grouped(WGM))], dynamic=(WGM,), symbols=lambda m, n: {"WGM": 2}
    ),
    "a step of one": of_tests(block=(16, 8, 1)),
    "steps of five": of_tests(block=(16, 8, 5)),
}


def between_guards(x, at_end):
    """Return a copy of x in separate memory, with nothing readable right before or right after it."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    room = -(-max(x.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (begin, begin + page + room):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    first = page + (room - x.nbytes if at_end else 0)
    inside = np.frombuffer(memory, x.dtype, x.size, first).reshape(x.shape)
    inside[...] = x
    return inside
