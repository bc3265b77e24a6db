"""layer_norm: rows with mean 0 and variance 1, then a weight and a bias; see `examples/rms_norm.py`, too."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WorkgroupConstraint,
    f32,
    read,
    rsqrt,
    scalar,
    sym,
    wave,
    write,
)

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE
Matrix = Memory[M, N, G, f32]
Row = Memory[N, G, f32]


@wave([WorkgroupConstraint(M, 4, 0)])
def layer_norm(x: Matrix, weight: Row, bias: Row, y: Matrix, eps: f32):
    numbers, length = read(x), scalar(N, f32)
    centred = numbers - numbers.sum(dim=N) / length
    variance = (centred * centred).sum(dim=N) / length
    write(centred * rsqrt(variance + eps) * read(weight) + read(bias), y)


EPS = 1e-5


def normed(x, weight, bias):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + EPS) * weight + bias


def case(m=256, n=768):
    rng = np.random.default_rng(6)
    x, (weight, bias) = rng.standard_normal((m, n), np.float32), rng.standard_normal((2, n), np.float32)

    def size(x, weight, bias):
        return (np.abs(x).max() + 1) * np.abs(weight) + np.abs(bias)

    inputs = x, weight, bias
    return Case(layer_norm, inputs, (np.empty_like(x),), normed, normed, 32, size, numbers={"eps": EPS})


if __name__ == "__main__":
    present(case(), layer_norm.name)
