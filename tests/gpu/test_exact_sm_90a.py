"""Casts between all dtypes and single ops on a real GPU, of all values of 8 and 16 bits: exact."""

import exact
import numpy as np
import pytest
from one_op import FLOAT_NAMES, INTEGER_NAMES, NAMES, M, kernel_of, pairs_of, words_of, wrong_casts, wrong_ops

from tilewave import *
from tilewave.ir.types import DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewave.errors.SlowCodeWarning")]


@pytest.fixture
def on_card(torch):
    """Return a function that runs a kernel on the GPU, and copies back what it wrote."""

    def sm_90a(kernel, arrays):
        compiled = wave_compile(WaveCompileOptions(subs={M: len(arrays[0])}, target="sm_90a"), kernel)
        bits = [torch.from_numpy(x.view(f"int{8 * x.itemsize}").copy()).cuda() for x in arrays]
        given = [t.view(getattr(torch, x.dtype.name)) for t, x in zip(bits, arrays, strict=True)]
        compiled(*given)
        torch.cuda.synchronize()
        for array, tensor in zip(arrays, bits, strict=True):
            array.view(tensor.cpu().numpy().dtype)[...] = tensor.cpu().numpy()

    return sm_90a


@pytest.mark.parametrize("old", (*NAMES, "index"))
def test_every_value_is_cast_exactly_to_every_dtype(on_card, old):
    assert wrong_casts(on_card, old, exact.every_value(old, DTYPES[old].numpy)) == []


@pytest.mark.parametrize("name", (*FLOAT_NAMES, *INTEGER_NAMES))
def test_ops_are_exact_on_every_pair_of_8_bits_and_on_hard_ones(on_card, name):
    operands = pairs_of(exact.every_value(name, DTYPES[name].numpy))
    assert wrong_ops(on_card, name, operands, words_of(name)) == []


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_ops_of_one_operand_are_exact_on_all_16_bits(on_card, name):
    assert wrong_ops(on_card, name, [exact.every_value(name, DTYPES[name].numpy)], ["neg", "abs"]) == []


def test_a_ragged_division_has_an_answer(on_card):
    a, b = np.array([7, -7, 5, -(1 << 31), -9], np.int32), np.array([2, 2, 0, -1, -4], np.int32)
    got = [np.full(5, 77, np.int32) for _ in "ab"]
    on_card(kernel_of([i32, i32], [(i32, lambda x, y: x // y), (i32, lambda x, y: x % y)], tile=4), [a, b, *got])
    assert [x.tolist() for x in got] == [[3, -4, 0, -(1 << 31), 2], [1, 1, 0, 0, -1]]
