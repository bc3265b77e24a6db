"""f32 products on Hopper: selected by name, with operands whose last 13 bits are ignored, and never otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, TF32, B, G, K, M, N, gemm, poisoned, product, random_array, sizes
from lane_runs import ORDERS

from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED
from tilewave.backend.nvidia.compiler import code_of
from tilewave.errors import NOWHERE, ConstraintError, TargetError
from tilewave.interp.arithmetic import without_last_bits
from tilewave.ir.ops import Mma, TmaLoad, TmaStore, WgmmaShared
from tilewave.ir.parse import parse
from tilewave.ir.placements import row_elements
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import VerifyError, verify
from tilewave.kernels import error_bound
from tilewave.machine.chips import SM_90A

WISH = MMAType.F32_64xNx8_TF32
WAYS = ("copies", "loads")
PREFETCH = {"schedule": SchedulingType.PREFETCH, "num_stages": 2}


def asking(dtype=f32, wish=TF32, **more):
    return gemm(dtype, f32, constraints=(wish,), **more)


def compiled(kernel, subs, way="copies", target="sm_90a", **options):
    made = wave_compile(WaveCompileOptions(subs=subs, target=target, **options), kernel)
    return made if way == "copies" else replace(made, build=made.build.plain)


def bound_of(want, magnitude, k, wish=WISH):
    return error_bound(want, magnitude, k, f32, f32, wish)


def check(made, shape, order="random"):
    """Within the bound for tf32, and, since many bits are missing, not within that for f32."""
    m, n, k = shape
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (m, k), f32), random_array(rng, (n, k), f32)
    c = poisoned((m, n), f32)
    made.interpret(a, b, c, level="lane", order=order, seed=1)
    want, magnitude = product(a, b)
    off = np.abs(c - want)
    assert (off <= bound_of(want, magnitude, k)).all()
    assert (off > bound_of(want, magnitude, k, None)).any()


# -- what is computed


@pytest.mark.share(8)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((128, 256, 64), (128, 256, 32)), ((70, 72, 132), (64, 80, 64)), ((130, 100, 36), (128, 104, 24))],
    ids=str,
)
def test_products_of_f32_that_are_asked_for(shape, tile, way, order):
    made = compiled(asking(), sizes(*shape, *tile), way)
    assert any(isinstance(op, TmaLoad) for op in walk(made.ir().body)) == (way == "copies")
    check(made, shape, order)


def test_rows_that_the_copy_engine_cannot_take():
    shape = (65, 33, 35)
    made = compiled(asking(), sizes(*shape), **PREFETCH)
    assert not any(isinstance(op, TmaLoad) for op in walk(made.ir().body))
    check(made, shape)


@pytest.mark.parametrize(("a_dims", "b_dims"), [((K, M), (N, K)), ((M, K), (K, N))], ids=str)
def test_operands_that_lie_across(a_dims, b_dims):
    m, n, k = 64, 72, 40
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (m, k), f32), random_array(rng, (n, k), f32)
    c = poisoned((m, n), f32)
    given = [np.ascontiguousarray(x if dims[1] is K else x.T) for x, dims in ((a, a_dims), (b, b_dims))]
    compiled(asking(a_dims=a_dims, b_dims=b_dims), sizes(m, n, k)).interpret(*given, c, level="lane")
    want, magnitude = product(a, b)
    assert (np.abs(c - want) <= bound_of(want, magnitude, k)).all()


def test_batches():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, 1, 2),
            TilingConstraint(K, BLOCK_K),
            TF32,
        ]
    )
    def batched(a: Memory[B, M, K, G, f32], b: Memory[B, N, K, G, f32], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    rng = np.random.default_rng(4)
    a, b = random_array(rng, (3, 70, 52), f32), random_array(rng, (3, 36, 52), f32)
    c = poisoned((3, 70, 36), f32)
    compiled(batched, sizes(70, 36, 52, 64, 40, 32) | {B: 3}).interpret(a, b, c, level="lane")
    want, magnitude = product(a, b)
    assert (np.abs(c - want) <= bound_of(want, magnitude, 52)).all()


SHORT, LONG = np.float32(1 + 2.0**-10), np.float32(1 + 2.0**-10 + 2.0**-11)
"""What 10 bits after the leading one can represent, and what f32 would keep and tf32 does not."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", [0, 1])
def test_the_last_bits_of_both_operands_are_ignored(side, way):
    """Every sum has one product, by 1: what is left of the other operand is the result."""
    made = compiled(asking(), sizes(64, 64, 64), way)
    rng = np.random.default_rng(0)
    x = random_array(rng, (64, 64), f32)
    x[0, :2] = SHORT, LONG
    one = np.eye(64, dtype=np.float32)
    c = poisoned((64, 64), f32)
    made.interpret(*((x, one) if side == 0 else (one, x)), c, level="lane")
    found = c if side == 0 else c.T
    assert (found[0, 0], found[0, 1]) == (SHORT, SHORT)
    np.testing.assert_array_equal(found.view(np.uint32), x.view(np.uint32) & ~np.uint32(2**13 - 1))


def test_whole_tiles_are_multiplied_exactly():
    made = compiled(asking(), sizes(64, 64, 64))
    x, one = random_array(np.random.default_rng(0), (64, 64), f32), np.eye(64, dtype=np.float32)
    c = poisoned((64, 64), f32)
    made.interpret(x, one, c)
    np.testing.assert_array_equal(c, x)


def test_numbers_go_towards_zero_and_keep_sign_and_exponent():
    x = np.array([LONG, -LONG, 0.0, -0.0, np.inf, -np.inf, np.nan, 3.0e38, 2.0**-126], np.float32)
    kept = without_last_bits(x, 13)
    np.testing.assert_array_equal(kept[:6], np.array([SHORT, -SHORT, 0.0, -0.0, np.inf, -np.inf], np.float32))
    np.testing.assert_array_equal(np.signbit(kept[:6]), np.signbit(x[:6]))
    assert np.isnan(kept[6]) and 3.0e38 * (1 - 2.0**-10) < kept[7] <= 3.0e38 and kept[8] == x[8]
    assert without_last_bits(x, 0) is x


# -- what the passes make of it


def test_the_instruction_takes_32_bytes_of_depth():
    made = compiled(asking(), sizes(128, 256, 64, 128, 256, 32))
    (whole,) = (op for op in walk(made.ir("select_mma").body) if isinstance(op, Mma))
    assert whole.instruction == WISH.value
    (lanes,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaShared))
    assert (lanes.shape, lanes.instruction, lanes.ignored_bits) == ((64, 256, 32), WISH.value, 13)
    assert made.resources.instructions == (WISH.value,)
    assert any(isinstance(op, TmaStore) for op in walk(made.ir().body))
    assert verify(parse(str(made.ir()))) == made.ir()


@pytest.mark.parametrize(("depth", "row"), [(8, 8), (24, 8), (32, 32), (48, 16), (64, 32)])
def test_rows_of_128_bytes_are_32_numbers(depth, row):
    made = compiled(asking(), sizes(64, 64, 2 * depth, 64, 64, depth))
    (product,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaShared))
    assert product.shape[2] == depth
    assert {row_elements(memory.type) for memory in (product.a, product.b)} == {row}


@pytest.mark.parametrize("order", ORDERS)
def test_a_step_grows_to_a_multiple_of_8(order):
    made = compiled(asking(), sizes(64, 64, 60, 64, 64, 12))
    assert [op.shape[2] for op in walk(made.ir().body) if isinstance(op, WgmmaShared)] == [16, 16], (
        "in the loop, and of the step behind it, which is loaded ahead"
    )
    check(made, (64, 64, 60), order)


def test_kernels_that_do_not_ask_say_nothing_of_it():
    made = compiled(gemm(f16, f32), sizes(64, 64, 64))
    assert "ignored_bits" not in str(made.ir())


# -- what cannot be


def told(kernel, target="sm_90a"):
    with pytest.raises(ConstraintError) as found:
        compiled(kernel, sizes(64, 64, 64), target=target)
    assert found.value.loc != NOWHERE
    return found.value.what, found.value.remedy


def test_a_wish_with_other_dtypes_is_refused():
    what, remedy = told(asking(f16))
    assert what.startswith("MMAType.F32_64xNx8_TF32 computes f32 times f32 into f32, but the mma at ")
    assert what.endswith(" computes f16 times f16 into f32")
    assert remedy == "leave mma_type out"


def test_another_wish_is_not_taken_for_it():
    for wish in (MMAType.F32_16x16x4_F32, None):
        what, remedy = told(asking(wish=HardwareConstraint(mma_type=wish)))
        assert what.startswith("no matrix instruction of sm_90a is used for f32 times f32 into f32, which the mma at ")
        assert remedy.endswith("; or write mma_type=MMAType.F32_64xNx8_TF32, which ignores the last 13 bits of both")
    with_i8 = gemm(i8, i32, constraints=(HardwareConstraint(mma_type=MMAType.F32_16x16x4_F32),))
    assert told(with_i8)[1] == "leave mma_type out"


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_chips_that_have_exact_products_take_those(target):
    compiled = wave_compile(WaveCompileOptions(subs=sizes(64, 64, 64, 64, 64, 32), target=target), asking())
    assert compiled.resources.instructions == ("f32_16x16x4_f32",)


def test_the_cpu_computes_exactly_where_less_is_allowed():
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    wave_compile(WaveCompileOptions(subs=sizes(64, 64, 64, 64, 64, 32), target="cpu"), asking())(a, b, c)
    want, magnitude = (x.astype(float) @ y.astype(float).T for x, y in ((a, b), (abs(a), abs(b))))
    assert (abs(c - want) <= error_bound(want, magnitude, 64, f32, f32)).all()


PRODUCT = """kernel @k {{workgroups = 1, level = lane, waves = [4, 1], lanes = 32}} (%a: memory<64x64xf32, global>) {{
  %lane = lane() : index
  %c0 = const() {{value = 0}} : index
  %x = allocate() : memory<64x{depth}x{dtype}, shared, xor({chunk}, 8, 1)>
  %zero = const() {{value = 0.0}} : vector<1x8x2x2xf32>
  %z = wgmma_shared(%x, [%c0, %c0], %x, [%c0, %c0], %zero) {{shape = [64, 64, {depth}], instruction = x{bits}}} : \
vector<1x8x2x2xf32>
  store(%z, %a, [%lane, %c0], []) {{steps = [[0, 0], [0, 8], [8, 0], [0, 1]]}}
}}
"""


def product_of(dtype, bits):
    wide = {"f32": (32, 4), "f16": (64, 8)}[dtype]
    told = f", ignored_bits = {bits}" if bits else ""
    return verify(parse(PRODUCT.format(dtype=dtype, depth=wide[0], chunk=wide[1], bits=told)))


@pytest.mark.parametrize(("dtype", "bits"), [("f16", 3), ("f32", 24), ("f32", -1)])
def test_bits_that_no_operand_has_cannot_be_ignored(dtype, bits):
    with pytest.raises(VerifyError, match=f"cannot ignore {bits} bits of {dtype}"):
        product_of(dtype, bits)


def test_exact_products_of_f32_are_not_spelled_as_others():
    assert "k8.f32.tf32.tf32" in code_of(product_of("f32", 13), SM_90A, ALIGNED).ptx
    for bits in (0, 5):
        with pytest.raises(TargetError, match=f"wgmma ignores 13 bits of f32, not {bits}"):
            code_of(product_of("f32", bits), SM_90A, ALIGNED)
