"""Rows divided by one number each: by its reciprocal, and yet the nearest number everywhere."""

import numpy as np
import pytest

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE
HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
COLUMNS = 256


@wave([WorkgroupConstraint(M, 1, 0)])
def divided(x: Memory[M, N, G, f32], by: Memory[M, G, f32], y: Memory[M, N, G, f32], z: Memory[M, G, f32]):
    row = read(x)
    write(row / read(by), y)
    write(row.max(dim=N), z)  # rows of tiles with reductions are processed in slices of several vectors


def check(x, by, instruction_set):
    options = WaveCompileOptions(subs={M: x.shape[0], N: COLUMNS}, target="cpu", instruction_set=instruction_set)
    found = np.zeros_like(x)
    wave_compile(options, divided)(x, by, found, np.zeros_like(by))
    with np.errstate(all="ignore"):
        want = x / by[:, None]
    alike = (found.view(np.uint32) == want.view(np.uint32)) | (np.isnan(found) & np.isnan(want))
    at = tuple(np.argwhere(~alike)[0]) if not alike.all() else None
    assert at is None, f"{x[at]!r} / {by[at[0]]!r} is {want[at]!r}, not {found[at]!r}"


def divisors(rng, count):
    """Among them those whose digits are nearly all ones or zeros, for which reciprocals are worst."""
    digits = rng.integers(0, 1 << 23, count, dtype=np.uint32)
    digits[::4] = (1 << 23) - 1 - digits[::4] % 16
    digits[1::4] %= 16
    exponents = rng.integers(127, 127 + 24, count, dtype=np.uint32)
    return (exponents << 23 | digits).view(np.float32)


@pytest.mark.parametrize("instruction_set", HERE)
def test_numbers_of_every_size(instruction_set):
    rng = np.random.default_rng(3)
    by = divisors(rng, 1024)
    exponents = rng.integers(127 - 99, 254, (1024, COLUMNS), dtype=np.uint32)
    digits = rng.integers(0, 1 << 23, (1024, COLUMNS), dtype=np.uint32)
    digits[:, ::5] = (1 << 23) - 1 - digits[:, ::5] % 8
    check((exponents << 23 | digits).view(np.float32), by, instruction_set)


@pytest.mark.parametrize("instruction_set", HERE)
def test_exact_quotients_and_their_neighbours(instruction_set):
    """x = b · q rounded, and the adjacent numbers."""
    rng = np.random.default_rng(4)
    by = divisors(rng, 512)
    x = by[:, None] * rng.integers(1, 1 << 12, (512, COLUMNS)).astype(np.float32)
    for beside in (x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf)), -x):
        check(np.ascontiguousarray(beside), by, instruction_set)


SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 2.0**-100, 2.0**-101, -(2.0**-110), 3e38, np.inf, -np.inf, np.nan, 1.0]


@pytest.mark.share(8)
@pytest.mark.parametrize("instruction_set", HERE)
@pytest.mark.parametrize("number", SPECIAL)
def test_one_special_number_among_others(instruction_set, number):
    divisor = np.array([1, 3, 7.5, 2**24, 2**24 + 2, 0.3, 0, -0.0, -3, 1e-40, np.inf, np.nan], np.float32)
    x = np.random.default_rng(5).standard_normal((len(divisor), COLUMNS)).astype(np.float32)
    x[:, 77] = number
    check(x, divisor, instruction_set)
    check(np.full_like(x, number), divisor, instruction_set)


def test_the_reciprocal_is_taken_where_products_are_fused():
    for name, quick in (("avx512", True), ("avx2", True), ("neon", True), ("x86-64", False)):
        options = WaveCompileOptions(subs={M: 4, N: COLUMNS}, target="cpu", instruction_set=name)
        assert ("llvm.fma" in wave_compile(options, divided).llvm_ir) == quick, name
