"""Wait states after matrix instructions, across the ends of blocks."""

import numpy as np
import pytest

from tilewave import *
from tilewave.backend.amd import compiler
from tilewave.backend.amd.spelling import INTRINSICS
from tilewave.backend.amd.wait_states import FARTHEST, _blocks, _last_sums, settled, too_early
from tilewave.emulator.hazards import _result_delay
from tilewave.emulator.matrix import shape_of
from tilewave.emulator.step import MatrixTiming
from tilewave.errors import TargetError
from tilewave.machine.matrix import NAMED

CHIPS = ("gfx942", "gfx950")
F16 = "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[4:7]"
WIDE = "v_mfma_f32_32x32x8_f16 v[0:15], v[18:19], v[20:21], v[22:37]"
F32 = "v_mfma_f32_16x16x4_f32 v[0:3], v8, v9, v[4:7]"
WIDE_F32 = "v_mfma_f32_32x32x2_f32 v[0:15], v18, v20, v[22:37]"
I8 = "v_mfma_i32_16x16x32_i8 v[0:3], v[8:9], v[10:11], v[4:7]"
F8 = "v_mfma_f32_32x32x16_fp8_fp8 a[0:15], v[18:19], v[20:21], a[0:15]"
READ, WRITTEN, STORED = "v_add_f32_e32 v40, v41, v1", "v_mov_b32_e32 v1, 0", "global_store_dword v40, v1, s[0:1]"
FROM_MEMORY, FROM_SHARED = "buffer_load_dwordx2 v[0:1], v40, s[4:7], 0 offen", "ds_read_b128 v[0:3], v40"
AS_A = "v_mfma_f32_16x16x16_f16 v[50:53], v[0:1], v[44:45], 0"
AS_PART_OF_C = "v_mfma_f32_16x16x16_f16 v[0:3], v[46:47], v[44:45], v[0:3]"
NEEDED = [
    *((F16, after, 7, 8) for after in (READ, WRITTEN, STORED, FROM_MEMORY, FROM_SHARED, AS_A)),
    *((I8, after, 7, 8) for after in (READ, WRITTEN)),
    *((WIDE, after, 11, 12) for after in (READ, WRITTEN, STORED, FROM_MEMORY, FROM_SHARED, AS_A)),
    (WIDE, AS_PART_OF_C, 9, 10),
    *((F32, after, 10, 10) for after in (READ, WRITTEN, STORED, AS_A)),
    *((WIDE_F32, after, 18, 18) for after in (READ, WRITTEN, STORED, AS_A)),
    (WIDE_F32, AS_PART_OF_C, 16, 16),
    (F8, "v_accvgpr_read_b32 v1, a15", 11, 12),
    (F16, "v_mov_b32_e32 v7, 0", 3, 3),
    (F16, "ds_read_b32 v7, v40", 3, 3),
    (WIDE, "v_mov_b32_e32 v37, 0", 7, 7),
]
FREE = [
    (F16, AS_PART_OF_C),
    (F16, "v_add_f32_e32 v40, v41, v7"),
    (F16, "v_mov_b32_e32 v8, 0"),
    (F32, "v_mov_b32_e32 v7, 0"),
    (F16, "ds_write_b32 v40, v7"),
    (F16, "s_mov_b32 s1, 0"),
]


def nop(states):
    return "".join(f"\ts_nop {min(left, 16) - 1}\n" for left in range(states, 0, -16))


def edge(before, states, after):
    """Two blocks, and so many wait states between."""
    return f"k:\n\t{before}\n{nop(states)}.L1:\n\t{after}\n\ts_endpgm\n"


@pytest.mark.parametrize("before, after, on_gfx942, on_gfx950", NEEDED)
@pytest.mark.parametrize("chip", CHIPS)
def test_one_wait_state_less_is_found(chip, before, after, on_gfx942, on_gfx950):
    states = on_gfx942 if chip == "gfx942" else on_gfx950
    assert too_early(edge(before, states, after), chip) is None
    said = f"{after} comes {states - 1} wait states after {before}, and must come {states} after it"
    assert too_early(edge(before, states - 1, after), chip) == said


@pytest.mark.parametrize("before, after", FREE)
def test_what_needs_no_wait_states_is_left_alone(before, after):
    assert all(too_early(edge(before, 0, after), chip) is None for chip in CHIPS)


@pytest.mark.parametrize("name", sorted(INTRINSICS))
def test_numbers_are_those_by_which_the_emulator_judges(name):
    for chip in NAMED[name].chips:
        shape = shape_of(f"v_mfma_{name}")
        is_xdl = shape.source != "f32"
        timing = MatrixTiming(shape.passes, (), (), (), is_xdl, int(chip == "gfx950" and is_xdl), False)
        states = _result_delay(timing, "vector")
        before = f"v_mfma_{name} v[0:15], v[18:21], v[22:25], 0"
        assert states <= FARTHEST and too_early(edge(before, states, READ), chip) is None
        assert too_early(edge(before, states - 1, READ), chip) is not None


LOOPS = f"""k:
	s_mov_b32 s0, 0
.first:
	s_mov_b32 s1, 0
.outer:
	{{use}}
	s_mov_b32 s2, 0
.inner:
	s_add_i32 s2, s2, 1
	{F16}
	s_cbranch_scc1 .inner
	s_add_i32 s1, s1, 1
	s_cbranch_scc1 .outer
	s_add_i32 s0, s0, 1
{{states}}	s_cbranch_scc1 .first
	s_endpgm
"""


def test_the_shortest_way_counts():
    for states in (1, 4, 30):
        said = too_early(LOOPS.format(use=WRITTEN, states=nop(states)), "gfx942")
        assert said is not None and said.startswith(f"{WRITTEN} comes 3 wait states after")
    assert too_early(LOOPS.format(use=nop(4).strip() + "\n\t" + WRITTEN, states=""), "gfx942") is None


CHOICE = f"""k:
	{F16}
	s_cbranch_execz .after
	s_branch .other
{{then}}.after:
	{READ}
	s_endpgm
.other:
{nop(3)}	s_branch .after
"""


def test_both_ways_of_a_choice_count():
    assert "comes 1 wait states after" in (too_early(CHOICE.format(then=nop(9)), "gfx942") or "")


def test_what_others_wrote_in_between_is_theirs():
    text = (
        f"k:\n\t{F16}\n\ts_branch .L1\n.L1:\n{nop(6)}\tv_mov_b32_e32 v1, 0\n\tv_add_f32_e32 v40, v1, v1\n\ts_endpgm\n"
    )
    assert too_early(text, "gfx942") is None


def test_what_stands_behind_the_end_is_not_reached():
    assert too_early(f"k:\n\t{F16}\n\ts_endpgm\n.L1:\n\t{READ}\n\ts_endpgm\n", "gfx942") is None
    assert too_early(f"k:\n\t{F16}\n\ts_branch .L2\n.L1:\n\t{READ}\n.L2:\n\ts_endpgm\n", "gfx942") is None


M, N, K, L, G = sym.M, sym.N, sym.K, sym.L, GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 16), GridConstraint(2)])
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


def compiled_with(monkeypatch, chip, *answers):
    """Return the kernel's code, with the given answers in place of the checks of LLVM's output."""
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    given = list(answers)
    monkeypatch.setattr(compiler, "too_early", lambda asm, chip: given.pop(0))
    compiled = wave_compile(WaveCompileOptions(subs={M: 64, N: 64, K: 64}, target=chip), gemm)
    text = compiled.asm
    assert not given
    return compiled, text


def unsettled(asm, chip):
    """What matrix instructions still write at the end of their blocks."""
    return [sums for block in _blocks(asm).values() for sums in _last_sums(block, chip)]


@pytest.mark.parametrize("chip", CHIPS)
def test_a_kernel_that_lacks_some_is_compiled_with_them(monkeypatch, chip):
    _, plain = compiled_with(monkeypatch, chip, None)
    compiled, longer = compiled_with(monkeypatch, chip, "too early", None)
    assert "s_nop 15\n\ts_nop 3" in longer and "s_nop 15" not in plain
    assert any(unsettled(plain, chip)) and not any(unsettled(longer, chip))
    a, b = (np.random.default_rng(0).integers(-4, 5, (64, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    compiled.emulate(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_what_still_lacks_some_is_not_given_out(monkeypatch):
    with pytest.raises(TargetError, match="gemm: LLVM's code for gfx942 lacks wait states: too early"):
        compiled_with(monkeypatch, "gfx942", "too early", "too early")


PRODUCT = (
    "  %.t{} = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(<4 x half> %.a, <4 x half> %.b, <4 x float> %.c)"
)
SUM = "  %.t3 = fadd <4 x float> %.t1, %.t2"
WAITS = [
    "  call void @llvm.amdgcn.sched.barrier(i32 0)",
    "  call void @llvm.amdgcn.s.nop(i16 15)",
    "  call void @llvm.amdgcn.s.nop(i16 3)",
    "  call void @llvm.amdgcn.sched.barrier(i32 0)",
]


@pytest.mark.parametrize(
    "behind",
    [
        SUM,
        "  br label %.head1",
        "  ret void",
        "  %.t3 = load i32, ptr %.p",
        "  %.t3 = call i32 @llvm.amdgcn.workitem.id.x()",
    ],
)
def test_wait_states_stand_directly_behind_a_row_of_matrix_instructions(behind):
    row = [PRODUCT.format(1), "  %.t4 = bitcast <4 x float> %.t1 to <4 x i32>", PRODUCT.format(2)]
    lines = settled("\n".join([".body2:", SUM, *row, behind, ".end3:", SUM, ""])).splitlines()
    assert lines[:-2] == [".body2:", SUM, *row, *WAITS, behind, ".end3:", SUM]


def test_what_multiplies_no_matrices_is_settled_as_it_is():
    ir = f"declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16()\n.head1:\n.end3:\n{SUM}\n  ret void\n"
    declared = ["declare void @llvm.amdgcn.sched.barrier(i32)", "declare void @llvm.amdgcn.s.nop(i16)"]
    assert settled(ir).splitlines() == [*ir.splitlines(), *declared]
    assert settled(settled(ir)) == settled(ir)
