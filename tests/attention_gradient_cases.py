"""The backward pass of attention in float64, with a bound on what rounding changes, and how its kernels are run.

With u the unit roundoff of the operands, e that of f32 arithmetic along a row, and all sums of absolute values:

    delta      y is rounded: u · |y| · |g|
    p          e, as scores, exponents and the log-sum-exp are f32; rounded to u before it is multiplied
    ds         p times the error of delta, e of all terms, u of itself
    gradients  these, through the products, and u of themselves
"""

from dataclasses import dataclass

import numpy as np
from kernels import MANTISSA, UNIT

from tilewave import *
from tilewave.kernels import AttentionTile, Scores

SMALL, GROUPS = AttentionTile(16, 16), AttentionTile(64, 64, 4)
TILES = {"numpy": SMALL, "cpu": SMALL, "lanes of gfx942": AttentionTile(32, 32, 2), "lanes of sm_90a": GROUPS}
TILES |= {"gfx942": SMALL, "gfx950": SMALL}


@dataclass(frozen=True)
class Case:
    queries: int
    keys: int
    scores: Scores
    sharing: int = 1
    size: int = 32
    size_v: int = 16
    biased: bool = False


CASES = {
    "plain": Case(20, 40, Scores(0.2)),
    "causal": Case(37, 41, Scores(0.2, causal=True), sharing=2),
    "more queries": Case(41, 20, Scores(0.2, causal=True)),
    "window": Case(50, 50, Scores(0.2, causal=True, window=9), size_v=32),
    "both sides": Case(33, 50, Scores(0.2, window=7), biased=True),
    "capped": Case(20, 33, Scores(1.5, soft_cap=2.0), sharing=3, biased=True),
}
LONG = {name: Case(4 * c.queries, 3 * c.keys, c.scores, c.sharing, 64, 32, c.biased) for name, c in CASES.items()}


class Exact:
    """What float64 gives for a case, and how far a result may be off."""

    def __init__(self, case, dtype):
        self.case, rng = case, np.random.default_rng(4)
        rows, keys = (1, 2, case.sharing, case.queries), (1, 2, case.keys)

        def drawn(*shape):
            return (rng.standard_normal(shape) / 2).astype(dtype.numpy)

        self.q, self.k = drawn(*rows, case.size), drawn(*keys, case.size)
        self.v, self.grad = drawn(*keys, case.size_v), drawn(*rows, case.size_v)
        self.bias = drawn(*rows, case.keys) if case.biased else None
        q, k, v, g = (x.astype(np.float64) for x in (self.q, self.k, self.v, self.grad))
        k, v = k[:, :, None], v[:, :, None]
        x, slope = q @ k.swapaxes(-1, -2) * case.scores.scale, 1.0
        if cap := case.scores.soft_cap:
            x, slope = cap * np.tanh(x / cap), 1 - np.tanh(x / cap) ** 2
        x = x if self.bias is None else x + self.bias.astype(np.float64)
        x = np.where(seen(case), x, -np.inf)
        with np.errstate(divide="ignore"):
            self.lse = np.log(np.exp(x).sum(-1))
        p = np.exp(x - np.where(np.isinf(self.lse), 0, self.lse)[..., None])
        self.y = p @ v
        delta, inner = (self.y * g).sum(-1, keepdims=True), g @ v.swapaxes(-1, -2)
        unscaled = p * (inner - delta)
        ds = unscaled * slope * case.scores.scale
        self.want = {"grad_q": ds @ k, "grad_k": (ds.swapaxes(-1, -2) @ q).sum(2), "grad_bias": unscaled}
        self.want["grad_v"] = (p.swapaxes(-1, -2) @ g).sum(2)
        unit, small = 2.0 ** -(MANTISSA[dtype.name] + 1), UNIT * (4 * (case.size + case.size_v + case.keys) + 64)
        terms = p * ((np.abs(self.y) * np.abs(g)).sum(-1, keepdims=True) + np.abs(g) @ np.abs(v).swapaxes(-1, -2))
        off = (unit + small) * terms
        off_ds = (off + unit * np.abs(unscaled)) * abs(case.scores.scale)
        q, k, v, g = (np.abs(a) for a in (q, k, v, g))
        self.most = {"grad_q": off_ds @ k, "grad_k": (off_ds.swapaxes(-1, -2) @ q).sum(2), "grad_bias": off}
        self.most["grad_v"] = ((unit + small) * p.swapaxes(-1, -2) @ g).sum(2)
        self.unit, self.dtype = unit, dtype

    def check(self, name, found):
        want = self.want[name]
        most = 1.1 * self.most[name] + self.unit * np.abs(want) + 2.0**-24
        assert found.shape == want.shape, name
        off = np.abs(found.astype(np.float64) - want)
        assert (off <= most).all(), f"{name} is off by {(off / most).max():.2f} of what rounding explains"


def seen(case):
    query, key = np.arange(case.queries)[:, None] + case.keys - case.queries, np.arange(case.keys)
    near = case.scores.window or case.keys + case.queries
    if case.scores.causal:
        return (key <= query) & (query - key < near)
    return (np.abs(query - key) < near) | (case.scores.window is None)


def run(kernel, way, *arrays):
    given = [x for x in arrays if x is not None]
    compiled = kernel.compile(target=way.removeprefix("lanes of "))
    if way == "cpu":
        compiled(*given)
    elif way == "numpy":
        compiled.interpret(*given)
    elif way.startswith("lanes"):
        compiled.interpret(*given, level="lane")
    else:
        compiled.emulate(*given)
