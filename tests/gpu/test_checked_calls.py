"""Assertions of calls with `check=True`, evaluated on the GPU that the arrays are on."""

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import AccessError, InterpreterError

pytestmark = pytest.mark.gpu
T, V, D, G = sym.T, sym.V, sym.D, GLOBAL_ADDRESS_SPACE
M, N, K = sym.M, sym.N, sym.K


def test_an_assertion_names_the_element_and_leaves_the_arrays_alone(torch):
    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        assert_(total < 200.0, "small sums")
        write(total, c)

    a, b = (torch.ones(n, 200, device="cuda", dtype=torch.float16) for n in (300, 260))
    c = torch.zeros(300, 260, device="cuda")
    for _ in range(2):
        a[290, 7] = 2
        with pytest.raises(InterpreterError, match=r"assert_ fails at M = 290, N = 0 .*: small sums"):
            product(a * 0.999, b, c, check=True)
        assert not c.any()
        a[290, 7] = 1
        product(a * 0.99, b, c, check=True)
        assert (c > 190).all()
        c.zero_()


def test_contracts_and_assertions_of_one_call(torch):
    @wave([WorkgroupConstraint(T, 16, 0)])
    def put(slots: Memory[T, G, i32, Indices(unique=True)], x: Memory[T, G, f32], out: Memory[V, G, f32]):
        rows = read(slots)
        assert_(rows < 40, "slots of the pool")
        write(read(x), out, at={V: rows})

    slots, x = torch.arange(37, device="cuda", dtype=torch.int32), torch.ones(37, device="cuda")
    out = torch.zeros(50, device="cuda")
    put(slots, x, out, check=True)
    assert out.sum() == 37
    slots[20] = 40
    with pytest.raises(InterpreterError, match="assert_ fails at T = 20: slots of the pool"):
        put(slots, x, out, check=True)
    slots[21] = 40
    with pytest.raises(AccessError, match=r"slots\[20\] and \[21\] are both 40"):
        put(slots, x, out, check=True)
    assert np.isfinite(out.cpu().numpy()).all()
