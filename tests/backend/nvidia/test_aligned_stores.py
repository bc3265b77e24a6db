"""Unaligned rows of dynamic length are stored in aligned chunks, and element by element at their ends."""

import random

import numpy as np
import pytest
from host_lanes import rounds_addresses, run_on_host

from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.backend.nvidia.compiler import lowered_for
from tilewave.backend.targets import target_named
from tilewave.ir.ops import Misalignment, StoreUnaligned
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N

BLOCK_BYTES, POISON = 16, 0x5A
COPY = """
kernel @copy {{workgroups = 1, level = lane, waves = [1, 1], lanes = 32}} (%a: memory<4x64x{dtype}, global>,
    %c: memory<{{M}}x{{N}}x{dtype}, global>, %M: index, %N: index) {{
  %lane = lane() : index
  %zero = const() {{value = 0}} : index
  %eight = const() {{value = 8}} : index
  %width = const() {{value = {width}}} : index
  %last = const() {{value = {last}}} : index
  %row = floor_div(%lane, %eight) : index
  %own = mod(%lane, %eight) : index
  %off = misalignment(%c, [%row, %zero]) : index
  %left = sub(%width, %off) : index
  %before = mod(%left, %width) : index
  %chunks = mul(%own, %width) : index
  %column = add(%chunks, %before) : index
  %whole = less_equal(%column, %last) : bool
  %x = load(%a, [%row, %column], [%whole]) {{steps = [[0, 1]]}} : vector<{width}x{dtype}>
  store_unaligned(%x, %c, [%row, %column], [%whole]) {{steps = [[0, 1]], guard = [0, 1]}}
}}
"""
DTYPES = {"f16": np.float16, "i32": np.int32, "i8": np.int8}


@pytest.mark.parametrize("name", DTYPES)
def test_whole_chunks_of_every_row_are_stored_and_nothing_beside_them(name):
    draw, dtype = random.Random(name), DTYPES[name]
    size = np.dtype(dtype).itemsize
    width, columns = BLOCK_BYTES // size, 64
    kernel = verify(parse(COPY.format(dtype=name, width=width, last=columns - width)))
    key = Specialization(BY_LANES, (("a", size), ("c", size)))
    a = np.random.default_rng(3).integers(-100, 100, (4, columns)).astype(dtype)
    for _ in range(40):
        rows, cols, pitch = draw.randrange(1, 6), draw.randrange(1, 80), 80 + draw.randrange(BLOCK_BYTES)
        memory = np.full(rows * pitch * size + 8 * BLOCK_BYTES, POISON, np.uint8)
        begin = -memory.ctypes.data % BLOCK_BYTES + 2 * BLOCK_BYTES + size * draw.randrange(width)
        c = np.ndarray((rows, cols), dtype, memory, begin, (pitch * size, size))
        want = memory.copy()
        there = np.ndarray((rows, cols), dtype, want, begin, (pitch * size, size))
        for row in range(min(rows, 4)):
            before = -(c.ctypes.data + row * pitch * size) // size % width
            most = max(1, 8 * width)  # 8 lanes have a row
            ends = [at + width for at in range(before, most, width) if at <= columns - width]
            there[row, before : min(cols, max(ends, default=0))] = a[row, before : min(cols, max(ends, default=0))]
        run_on_host(kernel, [a, c], c.shape, key)
        np.testing.assert_array_equal(memory, want)


STAGED = """
kernel @staged {{workgroups = 1, level = lane, waves = [1, 1], lanes = 32}} (%a: memory<4x64x{dtype}, global>,
    %c: memory<32x{width}x{dtype}, global>) {{
  %lane = lane() : index
  %zero = const() {{value = 0}} : index
  %eight = const() {{value = 8}} : index
  %seven = const() {{value = 7}} : index
  %s = allocate() : memory<4x64x{dtype}, shared{placement}>
  %row = floor_div(%lane, %eight) : index
  %own = mod(%lane, %eight) : index
  %far = mul(%own, %seven) : index
  %column = {column} : index
  %x = load(%a, [%row, %zero], []) {{steps = [[0, {width}], [0, 1]]}} : vector<{chunks}x{width}x{dtype}>
  store(%x, %s, [%row, %zero], []) {{steps = [[0, {width}], [0, 1]]}}
  %y = load_unaligned(%s, [%row, %column], []) {{steps = [[0, 1]]}} : vector<{width}x{dtype}>
  store(%y, %c, [%lane, %zero], []) {{steps = [[0, 1]]}}
}}
"""


@pytest.mark.parametrize("placement", ["", ", pad({width})", ", xor({width}, 4, 1)", ", pad(2)"])
@pytest.mark.parametrize("name", DTYPES)
def test_unaligned_neighbours_in_shared_memory_are_those_of_two_blocks(name, placement):
    dtype, width = DTYPES[name], BLOCK_BYTES // np.dtype(DTYPES[name]).itemsize
    facts = {"dtype": name, "width": width, "chunks": 64 // width}
    facts["column"] = "add(%far, %row)" if width < 16 else "mul(%own, %row)"
    kernel = verify(parse(STAGED.format(placement=placement.format(width=width), **facts)))
    a = np.random.default_rng(5).integers(-100, 100, (4, 64)).astype(dtype)
    c = np.zeros((32, width), dtype)
    run_on_host(kernel, [a, c], ())
    for lane, row in ((lane, lane // 8) for lane in range(32)):
        column = lane % 8 * 7 + row if width < 16 else lane % 8 * row
        np.testing.assert_array_equal(c[lane], a[row, column : column + width])
    is_in_blocks = rounds_addresses(lowered_for(kernel, target_named("sm_90a").chip, ALIGNED).llvm_ir)
    assert is_in_blocks == (placement != ", pad(2)")


def made(tile, out):
    kernel = product_kernel(ProductForm(f16, out, (K, M), (N, K)))
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)


@pytest.mark.parametrize(
    ("shape", "tile", "out"),
    [
        ((70, 93, 8), (64, 64, 64), f16),
        ((130, 67, 5), (128, 64, 64), bf16),
        ((65, 131, 9), (64, 128, 64), f16),
        ((70, 93, 8), (64, 64, 64), f32),
        ((66, 35, 8), (64, 32, 64), f16),
    ],
    ids=str,
)
def test_products_with_unaligned_rows_are_right(shape, tile, out):
    m, n, k = shape
    rng, compiled = np.random.default_rng(m), made(tile, out)
    a, b = (rng.integers(-4, 5, sides).astype(np.float16) for sides in ((k, m), (n, k)))
    c = np.full((m, n), np.nan, out.numpy)
    compiled.interpret(a, b, c, level="lane", order="random", seed=n)
    np.testing.assert_array_equal(c.astype(float), a.astype(float).T @ b.astype(float).T)
    plain = list(walk(compiled.build.plain.lanes.body))
    assert any(isinstance(op, Misalignment) for op in plain) and any(isinstance(op, StoreUnaligned) for op in plain)
