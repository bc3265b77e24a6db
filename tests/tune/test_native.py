"""The chooser in machine code finds the config that the cost model ranks first."""

import random

import pytest
from kernels import K, M, N, gemm

from tilewave import *
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.runtime.native.choice import NO_CONFIG, NativeChoice
from tilewave.tune.default import TunableKernel

LONGEST = 1 << 15


def drawn(count, seed, grain=1):
    draw = random.Random(seed)
    return [[grain * max(1, round(LONGEST ** draw.random() / grain)) for _ in range(3)] for _ in range(count)]


def product(layout):
    axes = (K, M) if layout[0] == "T" else (M, K), (N, K) if layout[1] == "T" else (K, N)
    return product_kernel(ProductForm(f16, f16, *axes))


KERNELS = {
    "NT": lambda: product("NT"),
    "TN": lambda: product("TN"),
    "f32": lambda: gemm(f32),
    "f8": lambda: gemm(f8e4m3fn),
}


@pytest.mark.parametrize("name", KERNELS)
def test_machine_code_finds_what_python_ranks_first(name):
    tiles = TunableKernel.of(KERNELS[name](), {}, (), {}, "sm_90a")
    quick = tiles.quick_choice()
    for numbers in (*drawn(12, 1), *drawn(12, 2, grain=64), [1, 1, 1], [LONGEST] * 3):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        found = quick([sizes[s] for s in tiles.left_open])
        assert found == tiles.predicted(sizes)[0].text, sizes


def test_on_other_chips_too():
    tiles = TunableKernel.of(gemm(), {}, (), {}, "gfx942")
    quick = tiles.quick_choice()
    for numbers in drawn(12, 3):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        assert quick([sizes[s] for s in tiles.left_open]) == tiles.predicted(sizes)[0].text


def test_batch_invariant_kernels_choose_as_they_rank():
    tiles = TunableKernel.of(product("NT"), {}, (), {}, "sm_90a").for_all_batches()
    quick = tiles.quick_choice()
    for numbers in drawn(12, 4):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        assert quick([sizes[s] for s in tiles.left_open]) == tiles.predicted(sizes)[0].text


def test_tuning_records_leave_the_choice_to_python(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewave.tune.default.records_exist", lambda second: True)
    tiles = TunableKernel.of(gemm(), {}, (), {}, "sm_90a")
    assert tiles.quick_choice()([64, 64, 64]) == ""


def test_the_model_of_a_cpu_stays_in_python():
    """It computes with floats, which a program has none of."""
    assert TunableKernel.of(gemm(), {}, (), {}, "cpu").quick_choice() is None


def test_of_equal_configs_the_first_is_chosen():
    times = [lambda sizes: 5 * sizes[0], lambda sizes: 3 * sizes[0], lambda sizes: 3 * sizes[0]]
    assert NativeChoice.of(1, times)([7]) == 1


def test_numbers_beyond_64_bits_choose_nothing():
    assert NativeChoice.of(1, [lambda sizes: sizes[0] * sizes[0], lambda sizes: 7])([1 << 40]) == NO_CONFIG


def test_a_time_that_cannot_be_recorded_has_no_program():
    assert NativeChoice.of(1, [lambda sizes: 1 if sizes[0] > 3 else 2]) is None
