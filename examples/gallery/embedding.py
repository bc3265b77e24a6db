"""Rows of a table by index: each token's vector. An index that is out of bounds, such as -1, gives a row of zeros."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f16, i32, read, sym, wave, write

T, V, D = sym.T, sym.V, sym.D  # tokens, words, elements of a vector
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 256, 1)])
def embedding(ids: Memory[T, G, i32], table: Memory[V, D, G, f16], out: Memory[T, D, G, f16]):
    write(read(table, at={V: read(ids)}), out)


def rows_of(ids, table):
    ids = ids.astype(int)
    return np.where((ids >= 0)[:, None], table[ids], 0)


def case(tokens=100, words=300, size=300):
    rng = np.random.default_rng(18)
    table, ids = rng.standard_normal((words, size)).astype(np.float16), rng.integers(-1, words, tokens)
    return Case(embedding, (ids.astype(np.int32), table), (np.empty((tokens, size), np.float16),), rows_of, rows_of)


if __name__ == "__main__":
    present(case(), embedding.name)
