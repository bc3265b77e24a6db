"""`ops.matmul` and `ops.linear` on arrays, against float64: layouts, batches, dtypes, odd sizes, refusals."""

import math

import numpy as np
import pytest
from row_kernels import close

from tilewave import *
from tilewave import ops
from tilewave.bench.tuning import tune
from tilewave.errors import CallError, DTypeError, TargetError
from tilewave.kernels import ACTIVATIONS, accumulator, error_bound
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.ops.digits import Digits, instruction_for
from tilewave.tune.default import TunableKernel
from tilewave.tune.store import Records

SHAPES = [
    ((5, 7), (7, 3)),
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((2, 5, 7), (1, 7, 3)),
    ((3, 1, 5, 7), (2, 7, 3)),
    ((2, 1, 2, 1, 5, 7), (1, 2, 1, 2, 7, 3)),
    ((1, 1), (1, 1)),
    ((0, 7), (7, 3)),
    ((5, 0), (0, 3)),
    ((5, 7), (7, 0)),
    ((0, 5, 7), (7, 3)),
    ((2, 0, 5, 7), (2, 1, 7, 3)),
    ((37, 131), (131, 41)),
]


def numbers(shape, dtype=f32, seed=0):
    rng = np.random.default_rng(seed + math.prod(shape))
    found = rng.integers(-5, 6, shape) if dtype.is_int else rng.standard_normal(shape)
    return found.astype(dtype.numpy)


def check_product(found, a, b, out=None):
    """Assert the right shape and dtype, and an error within that of k sums."""
    dtype = next(d for d in (f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i8) if d.numpy == a.dtype)
    out = out or ops.products.result_dtype(dtype)
    a, b = a.astype(np.float64), b.astype(np.float64)
    want = np.matmul(a, b)
    assert found.shape == want.shape and found.dtype == out.numpy
    bound = error_bound(want, np.matmul(abs(a), abs(b)), a.shape[-1], dtype, out)
    assert (abs(found.astype(np.float64) - want) <= bound).all()


@pytest.mark.share(6)
@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_shapes_are_those_of_matmul(a, b):
    """A second call is served by what the first one found out."""
    for seed in (0, 2):
        x, y = numbers(a, seed=seed), numbers(b, seed=seed + 1)
        check_product(ops.matmul(x, y), x, y)


def test_what_one_call_found_out_serves_others_whose_arrays_lie_alike():
    a, b = numbers((2, 19, 33)), numbers((2, 33, 19), seed=1)
    square = numbers((33, 33))
    for _ in range(2):
        assert np.array_equal(ops.matmul(square, square.T), ops.matmul(square, square.T.copy()))
        other = numbers((33, 33), seed=3)
        assert np.array_equal(ops.matmul(square, other.T), ops.matmul(square, other.T.copy()))
        out = np.zeros((2, 19, 38), np.float32)[:, :, ::2]
        assert ops.matmul(a, b, out=out) is out and np.array_equal(out, ops.matmul(a, b))
        assert np.array_equal(ops.matmul(a[::-1], b), ops.matmul(a[::-1].copy(), b))


def test_a_layer_s_second_call_reads_its_own_arrays():
    for seed in range(3):
        x, weight, bias = numbers((4, 5, 7), seed=seed), numbers((3, 7), seed=seed), numbers((3,), seed=seed)
        residual = numbers((5, 1), seed=seed)
        plain = ops.linear(x.reshape(20, 7), weight, bias).reshape(4, 5, 3)
        assert np.array_equal(ops.linear(x, weight, bias, residual=residual), plain + residual)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, f8e4m3fn, f8e5m2, i8], ids=str)
def test_every_dtype_that_has_products(dtype):
    a, b = numbers((19, 33), dtype), numbers((33, 21), dtype, 1)
    check_product(ops.matmul(a, b), a, b)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x) if x.ndim == 2 else x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
}


ROWS = (1, 2, 19)
"""With few rows, a b that is stored by columns is added up in another order than one that is stored by rows."""


@pytest.mark.share(8)
@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_b", LAYOUTS)
def test_every_layout_gives_the_product(of_a, of_b):
    for rows in ROWS:
        a, b = numbers((2, rows, 133)), numbers((2, 133, 21), seed=1)
        check_product(ops.matmul(LAYOUTS[of_a](a), LAYOUTS[of_b](b)), a, b)


@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_b", LAYOUTS)
def test_copies_in_one_layout_give_the_same_bits(of_a, of_b):
    for rows in ROWS:
        a, b = numbers((rows, 133)), numbers((133, 21), seed=1)
        copies = [np.ascontiguousarray(x) for x in (LAYOUTS[of_a](a), LAYOUTS[of_b](b))]
        assert np.array_equal(ops.matmul(*copies), ops.matmul(a, b))


@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_b", [name for name in LAYOUTS if name != "columns"])
def test_only_contiguous_columns_of_b_change_the_order_of_sums(of_a, of_b):
    for rows in ROWS:
        a, b = numbers((rows, 133)), numbers((133, 21), seed=1)
        assert np.array_equal(ops.matmul(LAYOUTS[of_a](a), LAYOUTS[of_b](b)), ops.matmul(a, b))


def test_the_same_layout_elsewhere_gives_the_same_bits():
    for rows in ROWS:
        a, b = numbers((rows, 133)), np.asfortranarray(numbers((133, 21), seed=1))
        padded = np.zeros((21, 140), np.float32)
        padded[:, 4:137] = b.T
        shifted = np.zeros(133 * 21 + 1, np.float32)[1:].reshape(21, 133)
        shifted[...] = b.T
        for other in (padded[:, 4:137].T, shifted.T):
            assert np.array_equal(ops.matmul(a, other), ops.matmul(a, b))


def test_a_matrix_that_lies_along_columns_has_a_kernel_for_that():
    a, b = numbers((19, 33)), numbers((33, 21), seed=1)
    dims = {name: kind.dims for name, kind in ops.matmul.kernel(a, b).function.__annotations__.items()}
    turned = ops.matmul.kernel(np.asfortranarray(a), np.asfortranarray(b)).function.__annotations__
    assert [str(d) for d in dims["a"]] == ["M", "K"] and [str(d) for d in dims["b"]] == ["K", "N"]
    assert [str(d) for d in turned["a"].dims] == ["K", "M"] and [str(d) for d in turned["b"].dims] == ["N", "K"]


def test_rows_that_all_meet_one_matrix_are_one_product():
    """A stack of inputs and one weight need no batches."""
    kernel = ops.matmul.kernel(numbers((4, 5, 7)), numbers((7, 3)))
    assert len(kernel.function.__annotations__["a"].dims) == 2


def test_out_is_written_and_may_have_another_dtype():
    a, b = numbers((19, 33), f16), numbers((33, 21), f16, 1)
    wide = np.full((19, 42), np.nan, np.float32)
    found = ops.matmul(a, b, out=wide[:, ::2])
    assert found.base is wide and np.isnan(wide[:, 1::2]).all()
    check_product(found, a, b, out=f32)


def test_out_of_too_many_batches_is_written_in_place():
    a, b = numbers((2, 1, 2, 1, 5, 7)), numbers((1, 2, 1, 2, 7, 3), seed=1)
    out = np.full((2, 2, 2, 2, 5, 6), np.nan, np.float32)[..., ::2]
    assert ops.matmul(a, b, out=out) is out
    check_product(out, a, b)


class OnlyDlpack:
    """An array that supports only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_whatever_speaks_dlpack_is_taken():
    a, b = numbers((5, 7)), numbers((7, 3), seed=1)
    assert np.array_equal(ops.matmul(OnlyDlpack(a), OnlyDlpack(b)), ops.matmul(a, b))


# -- linear ----------------------------------------------------------------------------------------------------------


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


REFERENCES = {
    None: lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
STEEPEST = 1.2
"""No activation has a slope of more."""
ROUNDINGS = 16
"""Roundings of an activation's operations and functions, in units of f32's last place, and of two sums."""


def test_every_activation_has_a_reference():
    assert {*REFERENCES} == {None, *ACTIVATIONS}


@pytest.mark.share(6)
@pytest.mark.parametrize("activation", REFERENCES)
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_a_layer_with_everything(activation, dtype):
    x, weight, bias = numbers((3, 5, 33), dtype), numbers((21, 33), dtype, 1), numbers((21,), dtype, 2)
    residual = numbers((3, 5, 21), dtype, 3)
    found = ops.linear(x, weight, bias, activation=activation, residual=residual)
    x, weight, bias, residual = (t.astype(np.float64) for t in (x, weight, bias, residual))
    sums, magnitude = x @ weight.T + bias, abs(x) @ abs(weight).T + abs(bias)
    bound = STEEPEST * error_bound(sums, magnitude, 34, dtype, accumulator(dtype))
    bound = bound + ROUNDINGS * 2.0**-24 * (abs(sums) + abs(residual))
    close(found, REFERENCES[activation](sums) + residual, bound, f"{activation} of {dtype}")


@pytest.mark.parametrize("shape", [(33,), (1, 33), (0, 33), (2, 0, 33)], ids=str)
def test_inputs_of_any_number_of_axes(shape):
    x, weight = numbers(shape), numbers((21, 33), seed=1)
    check_product(ops.linear(x, weight), x, weight.T)


def test_a_residual_is_broadcast():
    x, weight, residual = numbers((4, 5, 7)), numbers((3, 7), seed=1), numbers((5, 1), seed=2)
    found = ops.linear(x, weight, residual=residual)
    assert np.array_equal(found, ops.linear(x, weight) + residual)


def test_a_layer_s_kernel_says_what_it_does():
    x, weight, bias = numbers((5, 7)), numbers((3, 7)), numbers((3,))
    assert ops.linear.kernel(x, weight, bias, activation="gelu").name == "linear_bias_gelu"
    assert ops.linear.kernel(x, weight).name == "matmul"


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda: ops.matmul(numbers((5, 7)), numbers((3, 7))), CallError, "a has 7 columns, but b 3 rows"),
        (lambda: ops.matmul(numbers((2, 5, 7)), numbers((3, 7, 2))), CallError, "do not go together"),
        (lambda: ops.matmul(numbers((5, 7)), numbers((7, 3), f16)), DTypeError, "a is f32, but b is f16"),
        (lambda: ops.matmul(*[np.ones((3, 3), np.int32)] * 2), DTypeError, "no products of i32"),
        (lambda: ops.matmul(*[np.ones((3, 3), np.uint16)] * 2), DTypeError, "no products of u16"),
        (lambda: ops.matmul(np.float32(3).reshape(()), numbers((3,))), CallError, "a is a single number"),
        (lambda: ops.matmul([[1.0]], numbers((1, 1))), CallError, "not an array"),
        (lambda: ops.matmul(numbers((5, 7)), numbers((7, 3)), out=numbers((3, 5))), CallError, "out is 3x5"),
        (lambda: ops.linear(numbers((5, 7)), numbers((7, 3))), CallError, "weight is 7x3"),
        (lambda: ops.linear(numbers((5, 7)), numbers((3, 7)), numbers((7,))), CallError, "bias is 7"),
        (lambda: ops.linear(numbers((5, 7)), numbers((3, 7)), activation="mish"), CallError, "called 'mish'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_fit_is_refused_with_the_author_s_line(call, error, what):
    with pytest.raises(error, match=what) as raised:
        call()
    assert raised.value.loc.file == __file__


def test_an_out_that_lies_over_an_input_is_left_alone():
    a = numbers((7, 7))
    before = a.copy()
    with pytest.raises(CallError, match="overlaps"):
        ops.matmul(a, a, out=a)
    assert np.array_equal(a, before)


def test_products_of_f32_lose_digits_on_a_chip_only_where_that_is_allowed():
    with pytest.raises(TargetError, match="sm_90a has no products of f32 that keep all its digits"):
        instruction_for("sm_90a", f32, Digits.ALL)
    assert instruction_for("sm_90a", f32, Digits.FEWER) == MMAType.F32_64xNx8_TF32
    assert instruction_for("gfx942", f32, Digits.FEWER) is None


# how they are cut ---------------------------------------------------------------------------------------------------


def chosen(product, target, size, asked=None):
    """What is decided for a call with such sizes."""
    return undecided(product, target, asked).choices(dict.fromkeys((M, N, K), size))[0]


def undecided(product, target, asked=None):
    return TunableKernel.of(product_kernel(product, asked), {}, (), {}, target)


@pytest.mark.parametrize(("target", "least"), [("cpu", 64 * 64), ("gfx942", 128 * 256), ("sm_90a", 128 * 256)])
def test_small_products_get_small_tiles(target, least):
    """On a CPU, how large follows from its caches and instructions."""
    large, small = (chosen(ProductForm(f16, f16), target, size) for size in (8192, 64))
    tiles = [one.config[BLOCK_M] * one.config[BLOCK_N] for one in (large, small)]
    assert tiles[1] < tiles[0] >= least


def test_an_instruction_that_ignores_digits_is_known_to_the_choice():
    product, asked = ProductForm(f32, f32), MMAType.F32_64xNx8_TF32
    one = chosen(product, "sm_90a", 4096, asked)
    assert one.config[BLOCK_M] * one.config[BLOCK_N] >= 128 * 128
    made = wave_compile(WaveCompileOptions(subs=one.tiles, target="sm_90a"), product_kernel(product, asked))
    assert "tf32" in made.asm


def test_what_is_on_record_is_taken_and_looked_up_once(tmp_path, monkeypatch):
    """The kernel of an operation is tuned like any other, and calls of the same sizes take what was decided."""
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    product_kernel.cache_clear()
    a, b = numbers((24, 40)), numbers((40, 32))
    kernel = ops.matmul.kernel(a, b)
    within = Tune(BLOCK_M=3, BLOCK_N=5, BLOCK_K=64)
    tune(kernel, {M: 24, N: 32, K: 40}, "cpu", "model", within=within, records=tmp_path)
    looked = []
    found = Records.look_up
    monkeypatch.setattr(Records, "look_up", lambda self, key: looked.append(key) or found(self, key))
    for _ in range(3):
        assert np.allclose(ops.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)
    (made,) = kernel.kept["call"]._kernels.values()
    served = made.by_size.of([(24, 40), (40, 32)])
    assert served.choice.config == {BLOCK_M: 3, BLOCK_N: 5, BLOCK_K: 64} and served.choice.record
    assert len(looked) <= 2  # for typical sizes, and for those of the calls
    product_kernel.cache_clear()
