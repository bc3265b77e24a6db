"""Random mixtures of experts, and their results in float64 with a bound of the error."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

U = 2.0**-24
"""The unit roundoff of f32, in which sums are."""
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Mixture:
    """The tokens of a mixture of experts, how they like each expert, and the matrices of experts."""

    x: Any
    logits: Any
    w1: Any
    w2: Any

    @property
    def arrays(self):
        return self.x, self.logits, self.w1, self.w2

    @property
    def unit(self):
        """The unit roundoff of tokens and matrices."""
        return float(ml_dtypes.finfo(self.x.dtype).eps) / 2

    def of(self, tokens):
        """Return the mixture of some tokens."""
        return replace(self, x=self.x[tokens], logits=self.logits[tokens])


def mixture(tokens, hidden=40, narrow=24, experts=6, dtype=np.float32, favoured=(), seed=0):
    """Return a random mixture; `favoured` experts are chosen before all others, by every token."""
    rng = np.random.default_rng(seed)
    x, w1, w2 = (
        rng.standard_normal(shape).astype(dtype)
        for shape in ((tokens, hidden), (experts, 2 * narrow, hidden), (experts, hidden, narrow))
    )
    logits = rng.standard_normal((tokens, experts)).astype(np.float32)
    logits[:, list(favoured)] += 20
    return Mixture(x, logits, w1, w2)


def silu(x):
    return x / (1 + np.exp(-x))


def routed(logits, top_k, scoring="softmax", renormalize=True):
    """Return the experts of each token, those of the first logits among equal ones, and their weights."""
    logits = logits.astype(np.float64)
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    if scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        powers = np.exp(logits - logits.max(1, keepdims=True))
        scores = powers / powers.sum(1, keepdims=True)
    weights = np.take_along_axis(scores, experts, 1)
    return experts, weights / weights.sum(1, keepdims=True) if renormalize else weights


def expected(of, top_k, scoring="softmax", renormalize=True, activation=silu):
    """Return the results in float64, and how far those of a right layer may be off.

    The layer adds in f32 and rounds three times to the dtype of its arrays: hidden numbers, rows, results. A value of
    an activation changes by at most 1.2 times as much as its argument.
    """
    experts, weights = routed(of.logits, top_k, scoring, renormalize)
    x, w1, w2 = (array.astype(np.float64) for array in (of.x, of.w1, of.w2))
    depth, narrow = x.shape[1], w2.shape[2]
    found, off = np.zeros(x.shape), np.zeros(x.shape)
    for t, (row, chosen) in enumerate(zip(x, experts, strict=True)):
        for expert, weight in zip(chosen, weights[t], strict=True):
            gate, up = np.split(w1[expert] @ row, 2)
            gate_off, up_off = np.split((depth + 4) * U * (abs(w1[expert]) @ abs(row)), 2)
            value = activation(gate)
            hidden = value * up
            hidden_off = (1.2 * gate_off + 8 * U * abs(value)) * abs(up) + (abs(value) + 1.2 * gate_off) * up_off
            hidden_off += 1.1 * of.unit * abs(hidden)
            result = w2[expert] @ hidden
            result_off = abs(w2[expert]) @ (1.01 * hidden_off + narrow * U * abs(hidden)) + 1.1 * of.unit * abs(result)
            found[t] += weight * result
            off[t] += weight * (result_off + (top_k + 64) * U * abs(result))
    return found, 1.1 * off + of.unit * abs(found)


def want_near(found, wanted):
    """Raise unless results are as near as they must be to those in float64."""
    values, off = wanted
    assert found.shape == values.shape
    wrong = ~(abs(found.astype(np.float64) - values) <= off)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} are off, the first at {np.argwhere(wrong)[0]}"
