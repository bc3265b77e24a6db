"""Calls of the attention that comes along: arrays, a reference in float64, and how far a result may be off.

The bound counts roundings in f32, u each. With w the exact weights, x the exact scores as powers of 2, m the largest:

    product    head + 1 products and additions
    x          a factor, and its product; or, capped, tanh besides; a bias adds its own product and an addition
    weight     exp2 of x - m, which is rounded, as m may be before that, and of what every step and part changes of m;
               below 2⁻¹²⁶ it is nothing
    p          rounded to the dtype of v; what is smaller than its least number is lost
    y          a sum over keys in f32, rescaled once a step, divided by a sum over keys
    lse        m + log2(sum of weights), times log(2)
"""

import math
from dataclasses import dataclass, field

import numpy as np
from attention_kernels import EXP2_ULPS, SMALLEST, gamma
from function_values import bounds
from kernels import MANTISSA, UNIT, poisoned, random_array

from tilewave import *
from tilewave import kernels as shipped
from tilewave.kernels import Heads, Scores
from tilewave.kernels.attentions import attention_tile_for
from tilewave.kernels.split_kv import DecodeWay, rows_tile_for

TANH_ULPS, LOG2_ULPS = (
    max(column[name] for column in bounds().values() if name in column) for name in ("tanh", "log2")
)
LOG2_E = math.log2(math.e)
FLUSHED = 2.0**-126


@dataclass
class Problem:
    """The batches, heads of queries and of keys, queries and keys of a call, and its options."""

    batch: int
    heads: tuple
    queries: int
    keys: int
    size: int = 40
    size_v: int = 24
    dtype: object = f16
    out: object = None
    bias: object = None
    asked: dict = field(default_factory=dict)
    seed: int = 18

    def __post_init__(self):
        rng, (of_q, of_k) = np.random.default_rng(self.seed), self.heads
        shapes = (of_q, self.queries, self.size), (of_k, self.keys, self.size), (of_k, self.keys, self.size_v)
        self.q, self.k, self.v = (random_array(rng, (self.batch, *shape), self.dtype) for shape in shapes)
        self.out = self.out or self.dtype
        self.y = poisoned((self.batch, of_q, self.queries, self.size_v), self.out)
        self.lse = poisoned(self.y.shape[:3], f32)
        shape = (self.batch, of_q, self.queries, self.keys)
        self.added = None if self.bias is None else random_array(rng, shape, self.bias)

    @property
    def scores(self):
        asked = {"scale": None, "causal": False, "window": None, "soft_cap": None, **self.asked}
        return Scores.of("attention", Heads(self.size, self.size_v), **asked)

    @property
    def sharing(self):
        return self.heads[0] // self.heads[1]

    def hidden(self):
        """Which keys each query does not see."""
        place, key = np.arange(self.queries)[:, None] + self.keys - self.queries, np.arange(self.keys)
        hidden = np.zeros((self.queries, self.keys), bool)
        if self.scores.causal:
            hidden |= key > place
        if self.scores.window is not None:
            hidden |= np.abs(key - place) >= self.scores.window
        return hidden

    # -- the reference -------------------------------------------------------------------------------------------------

    def scored(self):
        """The scores as powers of 2, and how far they may be off."""
        s, head = self.scores, self.size
        q, k = self.q.astype(float), np.repeat(self.k.astype(float), self.sharing, axis=1).swapaxes(2, 3)
        product, magnitude = q @ k * s.scale, np.abs(q) @ np.abs(k) * abs(s.scale)
        if s.soft_cap is None:
            x, off = product * LOG2_E, gamma(head + 3) * magnitude * LOG2_E
        else:
            capped = np.tanh(product / s.soft_cap)
            off = gamma(head + 3) * magnitude / s.soft_cap + gamma(2 * TANH_ULPS + 2) * np.abs(capped)
            x, off = capped * s.soft_cap * LOG2_E, off * s.soft_cap * LOG2_E
        if self.added is not None:
            add = self.added.astype(float) * LOG2_E
            x, off = x + add, off + gamma(2) * np.abs(add) + UNIT * (np.abs(x + add) + off)
        return np.where(self.hidden(), -np.inf, x), off

    def wanted(self, steps):
        """y and lse in float64, 0 and -inf where nothing is seen, and by how much each may differ."""
        (x, off_x), keys = self.scored(), self.keys
        v = np.repeat(self.v.astype(float), self.sharing, axis=1)
        gone = np.isneginf(x)
        off_x = np.where(gone, 0, off_x)
        m = np.where(gone, -np.finfo(float).max, x).max(axis=3, keepdims=True, initial=-np.finfo(float).max)
        below = np.where(gone, 0, m - np.where(gone, 0, x))
        w = np.where(gone, 0, np.exp2(-below))
        total = w.sum(axis=3, keepdims=True)
        seen = total > 0
        largest = np.where(gone, 0, np.abs(x)).max(axis=3, keepdims=True, initial=0)
        off_w = np.log(2) * (off_x + UNIT * (below + 2 * largest)) + gamma((steps + 1) * (2 * EXP2_ULPS + 1))
        p_unit = 0 if self.dtype == f32 else 2.0 ** -(MANTISSA[self.dtype.name] + 1)
        off_sum = (
            w * (off_w + p_unit + gamma(keys + steps)) + ~gone * max(SMALLEST[self.dtype.name], FLUSHED)
        ) @ np.abs(v)
        safe = np.where(seen, total, 1)
        off_total = ((w * off_w).sum(axis=3, keepdims=True) + keys * FLUSHED) / safe + gamma(keys + steps + 3)
        assert off_total.max(initial=0) < 1, "anything would do"
        y, lse = w @ v / safe, np.where(seen, m + np.log2(safe), -np.inf)
        off = seen * (off_sum / safe + np.abs(y) * off_total) / (1 - off_total)
        if self.out != f32:
            off = off + seen * ((np.abs(y) + off) * 2.0 ** -(MANTISSA[self.out.name] + 1) + SMALLEST[self.out.name])
        roundings = UNIT * (2 * LOG2_ULPS + 4) * (np.abs(np.where(seen, m, 0)) + np.log2(safe))
        off_lse = off_x.max(axis=3, keepdims=True, initial=0) + off_total * LOG2_E / (1 - off_total)
        return y, off, (lse * np.log(2))[..., 0], ((off_lse + roundings) * np.log(2))[..., 0]

    def check(self, y, lse, steps):
        want, off, want_lse, off_lse = self.wanted(steps)
        within("y", y.astype(float), want, off)
        if lse is not None:
            within("lse", lse.astype(float), want_lse, off_lse)

    # -- ways to run it ------------------------------------------------------------------------------------------------

    def arrays(self):
        added = {} if self.added is None else {"bias": self.added}
        return {"q": self.q, "k": self.k, "v": self.v, **added, "y": self.y, "lse": self.lse}

    def call(self, function=shipped.attention):
        """By its public name, on this CPU."""
        function(**self.arrays(), **self.asked)
        parts = -(-self.keys // 256) if function is shipped.attention_decode else 0
        self.check(self.y, self.lse, -(-self.keys // 64) + 2 * parts)

    def run(self, way, tile=None):
        """`way` is a target, or `lanes of` one."""
        target, heads = way.removeprefix("lanes of "), Heads(self.size, self.size_v, self.sharing)
        tile = tile or attention_tile_for(target, heads, self.scores, self.dtype)
        kernel = shipped.attention_kernel(tile, heads, self.scores, *[self.dtype] * 3, self.out, self.bias, f32)
        execute(way, kernel.compile(target=target), *self.arrays().values())
        self.check(self.y, self.lse, -(-self.keys // tile.keys))

    def run_in_parts(self, way, length):
        """Both kernels of decode, parts of so many keys."""
        target, heads = way.removeprefix("lanes of "), Heads(self.size, self.size_v, self.sharing)
        of_k, rows, parts = self.heads[1], self.sharing * self.queries, -(-self.keys // length)
        tile = rows_tile_for(target, heads, self.dtype, rows)
        find = shipped.attention_splits_kernel(
            tile, heads, self.scores, self.queries, f32, *[self.dtype] * 3, self.bias
        )
        join = shipped.join_splits_kernel(self.size_v, f32, self.out, f32)
        means, sums = (poisoned((parts, self.batch, of_k, rows, *more), f32) for more in ((self.size_v,), ()))
        q, added = self.in_rows(self.q), [] if self.added is None else [self.in_rows(self.added)]
        execute(way, find.compile(target=target), q, self.k, self.v, *added, means, sums, length)
        found = means.reshape(parts, *self.y.shape), sums.reshape(parts, *self.lse.shape)
        execute(way, join.compile(target=target), *found, self.y, self.lse)
        self.check(self.y, self.lse, -(-self.keys // tile.keys) + 2 * parts)

    def in_rows(self, x):
        """Heads that share keys as rows of one."""
        shape = self.batch, self.heads[1], self.sharing * self.queries
        return None if x is None else x.reshape(*shape, x.shape[-1])

    def run_in_rows(self, way):
        """Decode where each head's keys are one part."""
        target, heads = way.removeprefix("lanes of "), Heads(self.size, self.size_v, self.sharing)
        of_k, rows = self.heads[1], self.sharing * self.queries
        chosen = DecodeWay.alone(target, heads, self.scores, self.dtype, rows)
        dtypes = *[self.dtype] * 3, self.out, self.bias
        kernel = shipped.attention_rows_kernel(chosen.tile, heads, self.scores, self.queries, f32, *dtypes, f32)
        q, y, added = (self.in_rows(x) for x in (self.q, self.y, self.added))
        lse, added = self.lse.reshape(self.batch, of_k, rows), [] if added is None else [added]
        execute(way, kernel.compile(target=target, num_stages=chosen.steps_ahead), q, self.k, self.v, *added, y, lse)
        self.check(self.y, self.lse, -(-self.keys // chosen.tile.keys))


def execute(way, compiled, *arguments):
    if way.startswith("lanes of"):
        compiled.interpret(*arguments, level="lane", order="random", seed=3)
        assert compiled.asm
    elif way.startswith("gfx"):
        compiled.emulate(*arguments, order="random", seed=5)
    else:
        compiled(*arguments)


def within(what, found, want, off):
    assert not np.isnan(found).any(), f"{what}: {np.isnan(found).sum()} elements are not written, or no numbers"
    endless = np.isinf(want)
    assert (found[endless] == want[endless]).all(), f"{what}: a row that sees nothing has another result"
    excess = np.abs(found[~endless] - want[~endless]) - off[~endless]
    assert excess.max(initial=-1) <= 0, f"{what}: {excess.max()} too much"
