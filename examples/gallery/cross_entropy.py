"""The loss of a classifier: log Σ exp(x) − x[label], a number for each row, in one reading."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WorkgroupConstraint,
    exp,
    f32,
    i32,
    log,
    read,
    select,
    self_index,
    sym,
    wave,
    write,
)

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 4, 0)])
def cross_entropy(x: Memory[M, N, G, f32], label: Memory[M, G, i32], loss: Memory[M, G, f32]):
    numbers = read(x)
    largest = numbers.max(dim=N)
    chosen = select(self_index(N, i32) == read(label), numbers, 0.0).sum(dim=N)
    write(log(exp(numbers - largest).sum(dim=N)) + largest - chosen, loss)


def loss_of(x, label):
    largest = x.max(axis=1)
    total = np.log(np.exp(x - largest[:, None]).sum(axis=1))
    return total + largest - x[np.arange(len(x)), label.astype(int)]


def case(m=256, n=1000):
    rng = np.random.default_rng(7)
    x, label = rng.standard_normal((m, n), np.float32), rng.integers(0, n, m).astype(np.int32)
    out = np.empty(m, np.float32)
    return Case(cross_entropy, (x, label), (out,), loss_of, loss_of, roundings=32, size=lambda x, _: abs(x).max(1) + 8)


if __name__ == "__main__":
    present(case(), cross_entropy.name)
