"""Arguments that are arrays of indices: random ones that keep their contracts."""

import numpy as np
import pytest

from tilewave import *
from tilewave.analysis.contracts import want_kept
from tilewave.bench.arguments import make_arguments
from tilewave.errors import NOWHERE

T, V, D = sym.T, sym.V, sym.D
G = GLOBAL_ADDRESS_SPACE


@pytest.mark.parametrize("rows", [40, 5])
@pytest.mark.parametrize("promised", [{"unique": True}, {"into": V, "unique": True, "sorted": True}, {"into": V}])
def test_indices_keep_their_contract(promised, rows):
    @wave([WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 64, 1)])
    def added(slots: Memory[T, G, i32, Indices(**promised)], x: Memory[T, D, G, i32], out: Memory[V, D, G, i32]):
        atomic_add(read(x), out, at={V: read(slots)})

    made = added.compile(target="cpu", subs={T: 20, V: rows, D: 64})
    arrays = make_arguments(made, 0)
    want_kept(made.kernel, arrays, {}, NOWHERE)
    assert np.count_nonzero(arrays[0] >= 0) >= min(rows, 20)
    assert not np.array_equal(arrays[0], make_arguments(made, 1)[0]) or promised.get("sorted")
