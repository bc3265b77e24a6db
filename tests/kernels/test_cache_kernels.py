"""Keys and values stored in a paged cache, plain and rotated, on every target."""

import numpy as np
import pytest
from hostile_indices import TARGETS, distinct, inside, run

from tilewave import *
from tilewave import kernels
from tilewave.errors import CallError, DTypeError
from tilewave.kernels.caches import CacheTile, cache_tile_for, kv_cache_write_kernel, rotary_cache_write_kernel

pytestmark = pytest.mark.share(4)
targets = pytest.mark.parametrize("target", TARGETS)
PAGES, PLACES, HEADS, SIZE = 9, 7, 3, 24


def numbers(*shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def problem(dtype=np.float16, tokens=37):
    x, slots = numbers(tokens, HEADS, SIZE, dtype=dtype), distinct(np.random.default_rng(1), tokens, PAGES * PLACES)
    return x, slots, np.full((PAGES, PLACES, HEADS, SIZE), -7, dtype)


def stored(x, slots, cache):
    """Return the cache with x in it."""
    want, there = cache.reshape(-1, HEADS, SIZE).copy(), inside(slots, PAGES * PLACES)
    want[slots[there]] = x[there]
    return want.reshape(cache.shape)


def rotated(x, cos, sin, positions):
    """Return x rotated, in float64, and what its roundings are shares of."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    there = inside(positions, len(cos))[:, None]
    c, s = (np.where(there, t[np.clip(positions, 0, len(t) - 1)], 0).astype(np.float64)[:, None] for t in (cos, sin))
    want = np.concatenate([a * c - b * s, b * c + a * s], axis=-1)
    most = np.concatenate([np.abs(a * c) + np.abs(b * s), np.abs(b * c) + np.abs(a * s)], axis=-1)
    return want, most


@targets
@pytest.mark.parametrize("tile", [CacheTile(1, 4, 32), CacheTile(4, 2, 16)], ids=str)
def test_tokens_are_stored_in_their_places(target, tile):
    x, slots, cache = problem()
    want = stored(x, slots, cache)
    made = run(kv_cache_write_kernel(tile, f16, i32, f16), target, x, slots, cache)
    np.testing.assert_array_equal(cache, want)
    assert made.proof.verdict in ("right for every size", "checked when it was compiled")


@targets
def test_tokens_are_rotated_on_the_way(target):
    x, slots, cache = problem(np.float32)
    angles = np.random.default_rng(2).random((50, SIZE // 2)).astype(np.float32) * 6
    cos, sin, positions = np.cos(angles), np.sin(angles), np.random.default_rng(3).integers(0, 50, 37)
    positions[:3] = -1, 2**31, 2**63 - 1
    rope, most = rotated(x, cos, sin, positions)
    want, bound = stored(rope, slots, cache.astype(np.float64)), stored(most, slots, 0 * cache)
    half = SIZE // 2
    halves = (x[..., :half], x[..., half:], slots, cache[..., :half], cache[..., half:])
    kernel = rotary_cache_write_kernel(CacheTile(2, 4, 16), f32, i32, f32, f32, f32, i64)
    run(kernel, target, *halves, cos, sin, positions)
    found = np.concatenate([halves[3], halves[4]], axis=-1)
    assert (np.abs(found - want) <= 3 * 2.0**-24 * bound).all()


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype, kept", [(f32, f32), (bf16, bf16), (f16, f8e4m3fn), (f64, f32)])
def test_caches_of_every_layout_and_dtype(heads_first, dtype, kept):
    x, slots, _ = problem(dtype.numpy)
    shape = (PAGES, HEADS, PLACES, SIZE) if heads_first else (PAGES, PLACES, HEADS, SIZE)
    cache = np.full(shape, -7, kept.numpy)
    seen = cache.transpose(0, 2, 1, 3) if heads_first else cache
    want = stored(x.astype(kept.numpy), slots, seen)
    kernels.kv_cache_write(x, slots, seen)
    np.testing.assert_array_equal(seen.astype(np.float64), want.astype(np.float64))


def test_a_call_rotates_halves_of_one_array():
    x, slots, cache = problem(np.float32)
    angles, positions = numbers(50, SIZE // 2, dtype=np.float32), np.arange(37) % 50
    rope, most = rotated(x, np.cos(angles), np.sin(angles), positions)
    want, bound = stored(rope, slots, cache.astype(np.float64)), stored(most, slots, 0 * cache)
    kernels.kv_cache_write(x, slots, cache, np.cos(angles), np.sin(angles), positions)
    assert (np.abs(cache - want) <= 3 * 2.0**-24 * bound).all()


def test_tiles_have_the_bytes_that_were_measured():
    assert cache_tile_for(8, 128, f16) == CacheTile(2, 8, 128)
    assert cache_tile_for(1, 576, bf16) == CacheTile(2, 1, 1024)
    assert cache_tile_for(64, 128, f16) == CacheTile(1, 16, 128)


def test_slots_that_collide_are_found(monkeypatch):
    x, slots, cache = problem()
    slots[:2] = 5
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    with pytest.raises(TilewaveError, match="are both 5, and they are said to be unique"):
        kernels.kv_cache_write(x, slots, cache)


X, SLOTS, ROW = np.ones((3, 2, 4), np.float32), np.zeros(3, np.int64), np.ones((9, 2), np.float32)
REFUSED = [
    (lambda y: kernels.kv_cache_write(X[0], SLOTS, y), CallError, "x has 2 axes, but it takes 3"),
    (lambda y: kernels.kv_cache_write(X, ROW, y), CallError, "slots has 2 axes, but it takes 1"),
    (lambda y: kernels.kv_cache_write(X, X[:, 0, 0], y), DTypeError, "slots is f32, but it names rows"),
    (lambda y: kernels.kv_cache_write(X, SLOTS[:2], y), CallError, "kv_cache_write: T is 3 by x, but 2 by slots"),
    (lambda y: kernels.kv_cache_write(X, SLOTS, y, ROW), CallError, "sin is missing"),
    (lambda y: kernels.kv_cache_write(X[..., :3], SLOTS, y, ROW, ROW, SLOTS), CallError, "heads of 3 elements in x"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_touched(call, error, message):
    y = np.full((2, 5, 2, 4), 5, np.float32)
    with pytest.raises(error) as found:
        call(y)
    assert message in str(found.value) and found.value.loc.file == __file__ and found.value.remedy
    assert (y == 5).all()
