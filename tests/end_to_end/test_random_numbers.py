"""Random numbers: published vectors, the same bits on every target, hostile seeds and indices, dropout."""

import numpy as np
import philox
import pytest
from hostile_indices import TARGETS, run
from one_op import CPU, EMULATED, INTEGER_NAMES, kernel_of
from one_op import run as run_op

import tilewave
from tilewave import *
from tilewave.errors import DTypeError
from tilewave.ir.types import DTYPES
from tilewave.kernels.dropouts import dropout_kernel
from tilewave.kernels.indexed import RowTile

M, N, G = sym.M, sym.N, GLOBAL_ADDRESS_SPACE
EVERYWHERE = ["tiles", "lanes of gfx942", "lanes of sm_90a", CPU[0], *EMULATED]
SEEDS = (0, 2**32 - 1, 2**32, 2**64 - 1, -1, -(2**63))
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Counters, keys and results of philox4x32 with 10 rounds, from kat_vectors of Random123 1.14."""


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("counter, key, wanted", VECTORS)
def test_the_reference_has_the_published_words(counter, key, wanted):
    assert [int(word) for word in philox.philox(words(counter), words(key))] == words(wanted)


def integers(name, count=300):
    dtype = DTYPES[name].numpy
    x = np.frombuffer(np.random.default_rng(0).bytes(count * dtype.itemsize), dtype).copy()
    x[:3] = 0, np.iinfo(dtype).min, np.iinfo(dtype).max
    return x


@pytest.mark.share(8)
@pytest.mark.parametrize("name", INTEGER_NAMES)
@pytest.mark.parametrize("way", EVERYWHERE)
def test_indices_of_every_dtype_have_the_same_bits_everywhere(way, name):
    x = integers(name)
    got = np.zeros(300, np.uint32), np.zeros(300, np.float32)
    kernel = kernel_of([DTYPES[name]], [(u32, lambda x: random_bits(7, x)), (f32, lambda x: tilewave.random(7, x))])
    run_op(way, kernel, [x, *got])
    np.testing.assert_array_equal(got[0], philox.bits(7, x))
    np.testing.assert_array_equal(got[1], philox.uniform(7, x))


@pytest.mark.parametrize("way", ["tiles", "lanes of sm_90a", CPU[0], EMULATED[0]])
def test_seeds_of_the_kernel(way):
    x = integers("i64", 64)
    kernel = kernel_of([i64], [(u32, lambda x, s=s: random_bits(s, x)) for s in SEEDS], tile=64)
    got = [np.zeros(64, np.uint32) for _ in SEEDS]
    run_op(way, kernel, [x, *got])
    for seed, found in zip(SEEDS, got, strict=True):
        np.testing.assert_array_equal(found, philox.bits(seed, x), str(seed))
    assert got[0][0] == 0x6627E8D5
    assert len({found.tobytes() for found in got}) == len(SEEDS) - 1  # 2 ** 64 - 1 has the bits of -1


@wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 64, 1)])
def drawn(seeds: Memory[M, G, i64], one: Memory[M, N, G, u32], own: Memory[M, N, G, f32], seed: i64):
    at = self_index(M, i64) * scalar(N, i64) + self_index(N, i64)
    write(random_bits(seed, at), one)
    write(tilewave.random(read(seeds), self_index(N)), own)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_of_a_call_and_seeds_of_each_row(target):
    seeds, at = np.array([3, -1, 2**63 - 1, 5, 5], np.int64), np.arange(5 * 70).reshape(5, 70)
    one, own = np.zeros((5, 70), np.uint32), np.zeros((5, 70), np.float32)
    run(drawn, target, seeds, one, own, -9)
    np.testing.assert_array_equal(one, philox.bits(-9, at))
    np.testing.assert_array_equal(own, philox.uniform(np.broadcast_to(seeds[:, None], at.shape), at % 70))


def test_numbers_are_uniform():
    at = np.arange(2**16)
    x = np.zeros(2**16, np.float32)
    run_op(CPU[0], kernel_of([i64], [(f32, lambda x: tilewave.random(1, x))]), [at, x])
    counts, deviation = np.histogram(x, 64, (0, 1))[0], np.sqrt(2**10)
    assert np.abs(counts - 2**10).max() < 5 * deviation
    assert x.min() >= 0 and x.max() < 1 and abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / 2**8


@pytest.mark.parametrize(
    "what, op", [("index", lambda x: tilewave.random(0, x)), ("seed", lambda x: random_bits(x, 0))]
)
def test_floats_are_refused(what, op):
    with pytest.raises(DTypeError, match=rf"{what} is a tile \[M\] \(8 f32\), and takes an integer") as caught:
        kernel_of([f32], [(f32, op)], tile=8).compile(target="numpy", subs={M: 8})
    assert f"write cast({what}, u64)" in caught.value.remedy


# -- dropout ----------------------------------------------------------------------------------------------------


def dropped(x, p, seed):
    at = np.arange(x.size).reshape(x.shape)
    scale = 1 / (1 - p) if p < 1 else 0.0
    with np.errstate(invalid="ignore"):
        return np.where(philox.uniform(seed, at) >= np.float32(p), x.astype(np.float64) * scale, 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_a_mask_is_that_of_seed_and_position(target, dtype):
    x = np.random.default_rng(0).standard_normal((5, 70)).astype(dtype.numpy)
    x[0, :4] = np.nan, np.inf, -np.inf, 0
    y = np.ones_like(x)
    run(dropout_kernel(RowTile(2, 32), dtype, dtype), target, x, y, 0.3, -5)
    want = dropped(x, 0.3, -5)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=float(np.spacing(dtype.numpy.type(1))))
    assert 0.2 < (want == 0).mean() < 0.4
