"""The chooser in machine code finds the config that the cost model ranks first."""

import random

import pytest
from kernels import K, M, N, gemm

from tilewave import *
from tilewave.ir.host_program import quotient, rounded_up
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.runtime.native.choice import NativeChoice
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
    quick = tiles.recorded_choice()
    for numbers in (*drawn(12, 1), *drawn(12, 2, grain=64), [1, 1, 1], [LONGEST] * 3):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        found = quick([sizes[s] for s in tiles.left_open])
        assert found == tiles.predicted(sizes)[0].text, sizes


def test_on_other_chips_too():
    tiles = TunableKernel.of(gemm(), {}, (), {}, "gfx942")
    quick = tiles.recorded_choice()
    for numbers in drawn(12, 3):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        assert quick([sizes[s] for s in tiles.left_open]) == tiles.predicted(sizes)[0].text


def test_batch_invariant_kernels_choose_as_they_rank():
    tiles = TunableKernel.of(product("NT"), {}, (), {}, "sm_90a").for_all_batches()
    quick = tiles.recorded_choice()
    for numbers in drawn(12, 4):
        sizes = dict(zip((M, N, K), numbers, strict=True))
        assert quick([sizes[s] for s in tiles.left_open]) == tiles.predicted(sizes)[0].text


def test_tuning_records_leave_the_choice_to_python(monkeypatch):
    tiles = TunableKernel.of(gemm(), {}, (), {}, "sm_90a")
    for exist in (True, False):
        monkeypatch.setattr("tilewave.tune.default.records_exist", lambda second, exist=exist: exist)
        assert tiles.has_records() == exist


def test_the_model_of_a_cpu_stays_in_python():
    """It computes with floats, which a program has none of."""
    assert TunableKernel.of(gemm(), {}, (), {}, "cpu").recorded_choice() is None


def test_configs_that_are_left_out_are_not_chosen():
    tiles = TunableKernel.of(product("NT"), {}, (), {}, "sm_90a")
    native, sizes = tiles.recorded_choice(), {M: 100, N: 512, K: 4096}
    numbers, ranked = [sizes[s] for s in tiles.left_open], [one.text for one in tiles.predicted(sizes)]
    for count in (1, 5, len(ranked) - 1):
        assert native(numbers, ranked[:count]) == ranked[count]
        assert native.among(numbers, ranked[count:]) == ranked[count]
    assert native(numbers, ranked) == native.among(numbers, ()) == ""


def test_a_stored_choice_is_found_again_by_kernels_with_the_same_sizes_open(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    known = TunableKernel.of(product("NT"), {}, (), {}, "sm_90a")
    assert known.stored_choice() is None
    native = known.recorded_choice()
    stored = TunableKernel.of(product("NT"), {}, (), {}, "sm_90a").stored_choice()
    assert (stored.texts, stored.program, stored.result) == (native.texts, native.program, native.result)
    assert stored([100, 512, 4096]) == native([100, 512, 4096])
    assert TunableKernel.of(product("TN"), {}, (), {}, "sm_90a").stored_choice() is None
    assert TunableKernel.of(product("NT"), {N: 512}, (), {}, "sm_90a").stored_choice() is None
    assert known.for_all_batches().stored_choice() is None


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"bytes_of_parts": [3, 4], "given": 1}\nabcdefg'])
def test_what_is_no_stored_choice_is_recorded_anew(data):
    assert NativeChoice.restored(data) is None


def test_machine_code_of_a_choice_finds_the_same_configs():
    times = {str(n): lambda sizes, n=n: rounded_up(sizes[0], n) * (n + 7) + quotient(sizes[1], 3) for n in range(1, 70)}
    native, draw = NativeChoice.of(2, times), random.Random(5)
    numbers = [[draw.randrange(1 << draw.randrange(1, 40)) for _ in range(2)] for _ in range(300)]
    before = [native(some, ["3", "17"]) for some in numbers]
    native.compile()
    assert native.memory.address and [native(some, ["3", "17"]) for some in numbers] == before
    assert len({*before}) > 3


def test_of_equal_configs_the_first_is_chosen():
    times = {"a": lambda sizes: 5 * sizes[0], "b": lambda sizes: 3 * sizes[0], "c": lambda sizes: 3 * sizes[0]}
    assert NativeChoice.of(1, times)([7]) == "b"


@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_beyond_64_bits_choose_nothing(compiled):
    native = NativeChoice.of(1, {"a": lambda sizes: sizes[0] * sizes[0], "b": lambda sizes: 7})
    if compiled:
        native.compile()
    assert native([1 << 40]) == "" and native([2]) == "a"


def test_a_time_that_cannot_be_recorded_has_no_program():
    assert NativeChoice.of(1, {"a": lambda sizes: 1 if sizes[0] > 3 else 2}) is None
