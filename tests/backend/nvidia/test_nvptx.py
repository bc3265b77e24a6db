"""What sm_90a's kernels become: PTX that NVIDIA's assembler takes without spills, with the instructions that count."""

import re

import kernels
import pytest
from ptx_code import LARGE, SEEDS, assembled_well, build, gelu, half_gemm, machine_code, needs_ptxas

from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED, Specialization
from tilewave.backend.nvidia.make import maker
from tilewave.backend.nvidia.program import NvidiaProgram
from tilewave.backend.nvidia.ptxas import PtxasFailed, assemble_ptx, read_log
from tilewave.backend.nvidia.spelling import Nvptx
from tilewave.backend.nvidia.text import sums_of_each_half
from tilewave.errors import TargetError
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.lower.gpu.kernel import lower_lanes
from tilewave.machine.chips import SM_90A

WAYS = ("copies", "loads")


def count(pattern, text):
    return len(re.findall(pattern, text))


# -- the assembler takes every class of kernels ------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [*SEEDS][:3])
def test_the_kernels_of_the_documents_assemble(seed, way):
    made = build(SEEDS[seed].kernel, SEEDS[seed].subs(512, 512, 256), way)
    assembled_well(made.asm)


DTYPES = {
    "bf16": (bf16, f32, bf16),
    "f8e4m3fn": (f8e4m3fn, f32, f16),
    "f8e5m2": (f8e5m2, f32, f32),
    "i8": (i8, i32, i32),
}


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_assembles(dtype, way):
    given, acc, out = DTYPES[dtype]
    kernel = kernels.gemm(given, acc, out=out, epilogue=(lambda x: cast(x, out)) if out is not acc else None)
    made = build(kernel, kernels.sizes(512, 512, 256, block_m=128, block_n=128, block_k=64), way)
    assembled_well(made.asm)
    assert f".{'s8' if dtype == 'i8' else dtype[2:6] if '8' in dtype else dtype}." in made.asm


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((512, 512, 256), (128, 256, 32)), ((512, 512, 256), (128, 256, 64)), ((300, 264, 136), (64, 96, 56))],
    ids=str,
)
def test_products_of_f32_that_are_asked_for_assemble(shape, tile, way):
    made = build(kernels.gemm(f32, f32, constraints=(kernels.TF32,)), kernels.sizes(*shape, *tile), way)
    assembled_well(made.asm)
    words = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+) \{[^}]*\}, da, db, (?:p|1), (.*);", made.asm)
    assert words == [(f"m64n{tile[1]}k8.f32.tf32.tf32", "1, 1")] * (tile[2] // 8)
    assert "stmatrix" not in made.asm
    assert ("cp.async.bulk.tensor" in made.asm) == (way == "copies")


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(300, 264, 136), (100, 77, 35), (1, 1, 1)])
def test_ragged_shapes_assemble(shape, way):
    assembled_well(build(half_gemm(), kernels.sizes(*shape, **LARGE), way).asm)


@needs_ptxas
@pytest.mark.parametrize("way", WAYS)
def test_an_epilogue_assembles(way):
    kernel = kernels.gemm(f16, f32, out=f16, epilogue=gelu)
    assembled_well(build(kernel, kernels.sizes(256, 512, 128, block_m=64, block_n=128, block_k=64), way).asm)


SPILLED_OF_GELU = {"copies": 8 + 4 + 4, "loads": 24 + 20 + 20}
"""Bytes of stack, stored and loaded again, by ptxas 13.0.88: of PTX that computes a tile part by part it moves parts
together, past the registers that there are. The same PTX at -O1, where it moves less, has no spill."""


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [gelu, exp, exp2, erf, log, log2, sin, sqrt], ids=lambda f: f.__name__)
def test_epilogues_of_large_tiles_assemble(function, way):
    out = f16 if function is gelu else f32
    kernel = kernels.gemm(f16, f32, out=out, epilogue=lambda x: function(x))
    most_spilled = SPILLED_OF_GELU[way] if function is gelu else 0
    assembled_well(build(kernel, kernels.sizes(256, 512, 128, **LARGE), way).asm, most_spilled)


@needs_ptxas
@pytest.mark.parametrize("dims", [{"a_dims": (kernels.K, kernels.M)}, {"b_dims": (kernels.K, kernels.N)}])
def test_operands_that_lie_across_assemble(dims):
    assembled_well(build(half_gemm(**dims), kernels.sizes(256, 512, 128, **LARGE)).asm)


@needs_ptxas
@pytest.mark.parametrize(
    "variant",
    [Specialization(widths=(("a", 2), ("b", 4), ("c", 8))), Specialization(widths=(("a", 0), ("b", 0), ("c", 0)))],
)
def test_arrays_that_lie_badly_get_code_that_assembles(variant):
    made = build(half_gemm(), kernels.sizes(256, 512, 128, block_m=128, block_n=128, block_k=64), "loads")
    assembled_well(made.program.code_for(variant).ptx)


@needs_ptxas
def test_what_the_assembler_refuses_is_told():
    with pytest.raises(PtxasFailed, match="nonsense"):
        assemble_ptx(".version 8.0\n.target sm_90a\n.address_size 64\nnonsense", "sm_90a")


# -- what the assembler takes wrongly ----------------------------------------------------------------------------------


HALF_OF_A_SUM = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0) {
	.reg .b16 	%rs<3>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<2>;
	ld.param.b64 	%rd1, [k_param_0];
	ld.global.b32 	%r1, [%rd1];
	mov.b32 	%r2, NUMBER;
	ADD 	%r3, %r1, %r2;
	mov.b32 	{%rs1, %rs2}, %r3;
	st.global.b16 	[%rd1], %rsHALF;
	ret;
}
"""


@needs_ptxas
@pytest.mark.parametrize("half", [1, 2])
@pytest.mark.parametrize("add", ["add.s16x2", "add.u16x2", "min.s16x2", "max.u16x2", "add.rn.f16x2"])
def test_a_constant_that_is_added_to_half_of_a_pair_is_in_the_code(add, half, tmp_path):
    def code(number):
        text = HALF_OF_A_SUM.replace("ADD", add).replace("HALF", str(half)).replace("NUMBER", str(number))
        return machine_code(sums_of_each_half(text), tmp_path)

    shift = 16 * (half - 1)
    assert code(0x30003000) != code(0x30003000 + (1 << shift))
    assert code(0x30003000) == code(0x30003000)


@pytest.mark.parametrize("number", [2, 3, 4, 16])
def test_no_pair_of_whole_numbers_is_added_at_once(number):
    body = """  %x = load(%a, [%lane, %c0], []) {steps = [[0, 1]]} : vector<NUMBERxi8>
  %c2 = const() {value = 2} : i8
  %twos = broadcast(%c2) : vector<NUMBERxi8>
  %y = add(%x, %twos) : vector<NUMBERxi8>
  store(%y, %b, [%lane, %c0], []) {steps = [[0, 1]]}""".replace("NUMBER", str(number))
    ptx = ptx_of(body, arguments=f"%a: memory<64x{number}xi8, global>, %b: memory<64x{number}xi8, global>")
    assert "16x2" not in ptx
    assert count(r"add\.s(16|32)\s", ptx) >= number


# -- the instructions that count ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copies():
    return build(half_gemm(), kernels.sizes(512, 512, 512, **LARGE))


@pytest.fixture(scope="module")
def loads():
    return build(half_gemm(), kernels.sizes(512, 512, 512, **LARGE), "loads")


def test_a_step_takes_one_product_for_each_32_bytes_of_depth(copies, loads):
    for made in (copies, loads):
        assert count(r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.f16\.f16", made.asm) == 4
        assert count(r"wgmma\.commit_group", made.asm) == count(r"wgmma\.wait_group", made.asm) == 1


def test_sums_of_two_blocks_of_rows_take_twice_as_many_products():
    made = build(kernels.gemm(f16, f32), kernels.sizes(512, 512, 512, block_m=256, block_n=64, block_k=64), "loads")
    blocks = 256 // 64 * 4 // made.lanes.waves[0]
    assert count(r"wgmma\.mma_async", made.asm) == 4 * blocks


def test_lanes_load_and_store_16_bytes_at_a_time(loads):
    assert count(r"ld\.global\.v4\.b32", loads.asm) == 128 * 8 // 256 + 256 * 8 // 256
    assert count(r"ld\.global", loads.asm) == count(r"ld\.global\.v4", loads.asm)
    assert count(r"st\.shared\.v4", loads.asm) == count(r"ld\.global", loads.asm)


@pytest.mark.parametrize(("aligned", "words"), [(8, r"v2\.b32"), (4, r"v4\.b32"), (2, r"v4\.b32")])
def test_arrays_at_odd_addresses_are_loaded_in_two_accesses_a_chunk(loads, aligned, words):
    """As aligned halves, or as the two aligned blocks that contain the chunk."""
    ptx = loads.program.code_for(Specialization(widths=(("a", aligned), ("b", aligned)))).ptx
    assert count(rf"ld\.global(?:\.nc)?\.{words}", ptx) == count(r"ld\.global", ptx) == 12 * 2


def test_stores_are_seen_by_products_behind_a_barrier(loads):
    assert count(r"bar\.sync", loads.asm) == 2  # after the stores, and after the products that read them
    assert count(r"fence\.proxy\.async\.shared::cta;\n bar\.sync 0, 256;", loads.asm) == 1
    before, _ = loads.asm.split("wgmma.mma_async", 1)
    assert before.rindex("st.shared") < before.rindex("fence.proxy.async.shared::cta;\n bar.sync")


def test_the_copy_engine_brings_tiles_and_takes_results(copies):
    assert count(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.mbarrier", copies.asm) == 2
    assert count(r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.bulk_group", copies.asm) == 2 * 256 // 64
    assert count(r"cp\.async\.bulk\.commit_group", copies.asm) == 2 * 256 // 64 // 2  # two chunks go together
    assert count(r"cp\.async\.bulk\.wait_group\.read 0", copies.asm) == 3  # before two fills, and at the end
    assert "ld.global" not in copies.asm
    assert "st.global" not in copies.asm


def test_what_lanes_stored_is_seen_by_copies_and_nothing_else_is_fenced(copies):
    words = re.findall(r"stmatrix|fence\.proxy\.async|bar\.sync|bulk_group|bulk\.wait_group\.read", copies.asm)
    assert (
        "".join(words).count("stmatrixfence.proxy.asyncbar.syncbulk_group") == count(r"fence\.proxy", copies.asm) == 2
    )


def test_two_chunks_go_together(copies):
    words = re.findall(r"shared::cta\.bulk_group|bulk\.commit_group", copies.asm)
    assert words == ["shared::cta.bulk_group", "shared::cta.bulk_group", "bulk.commit_group"] * 4


def test_maps_are_brought_near_before_anything_waits(copies):
    assert count(r"@p prefetch\.tensormap", copies.asm) == 3
    assert copies.asm.rindex("prefetch.tensormap") < copies.asm.index("bar.sync")


def test_sums_begin_with_the_first_product(copies):
    assert re.findall(r"da, db, (p|1), 1, 1, 0, 0;", copies.asm) == ["p", "1", "1", "1"]
    assert "0f00000000" not in copies.asm


def test_nothing_is_divided_and_waves_are_counted_once(copies):
    made = build(half_gemm(), kernels.sizes(4096, 4096, 512, **LARGE))
    for asm in (copies.asm, made.asm):
        assert count(r"\b(div|rem)\.", asm) == 0
        assert count(r"shfl\.sync", asm) == 1


def test_each_stage_has_a_signal_that_it_is_full_and_one_that_it_is_empty(copies):
    arrivals = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", copies.asm)
    assert arrivals == ["1"] * 4 + ["8"] * 4  # each of 8 waves says that it is done
    assert re.findall(r"expect_tx\.shared::cta\.b64 _, \[\S+\], (\d+)", copies.asm) == [str((128 + 256) * 64 * 2)]


def test_waves_that_multiply_get_the_registers_of_those_that_copy(copies, loads):
    assert re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+)", copies.asm) == [("inc", "232"), ("dec", "40")]
    assert "setmaxnreg" not in loads.asm


def test_narrow_results_go_to_shared_memory_as_fragments(copies):
    assert count(r"stmatrix\.sync\.aligned\.m8n8\.x4", copies.asm) == 256 // 16
    assert "st.shared" not in copies.asm
    wide = build(kernels.gemm(f16, f32), kernels.sizes(512, 512, 512, **LARGE))
    assert "stmatrix" not in wide.asm
    assert count(r"st\.shared\.v2", wide.asm) == 64


def test_the_author_s_lines_stay_and_nothing_is_compiled_for_a_debugger(copies):
    assert re.search(r"^\.target sm_90a$", copies.asm, re.MULTILINE)
    assert re.search(r'\.file\s+\d+ "\S*kernels\.py"', copies.asm)
    assert count(r"\.loc\s", copies.asm) > 10


def test_a_launch_passes_addresses_strides_and_maps(copies):
    code = copies.program.code_for(ALIGNED)
    maps = {m.name: (m.axes, m.box, m.swizzle_bytes) for m in code.maps}
    boxes = {"a": (128, 64), "b": (256, 64), "c": (64, 64)}
    assert maps == {name: ((0, 1), box, 128) for name, box in boxes.items()}
    assert count(r"\.param \.u64", copies.asm) == len(code.arguments) == 9
    assert count(r"\.param \.align 64 \.b8 \S+\[128\]", copies.asm) == 3
    assert code.shared_bytes <= 232448
    assert code.workgroup_size == 384


# -- single ops --------------------------------------------------------------------------------------------------------


def text_of(body, arguments="%a: memory<64x64xf16, global>", waves=4):
    head = f"kernel @k {{workgroups = 1, level = lane, waves = [{waves}, 1], lanes = 32}} ({arguments}) {{"
    start = "  %lane = lane() : index\n  %wave = wave() : index\n  %c0 = const() {value = 0} : index"
    return f"{head}\n{start}\n{body}\n}}\n"


def ptx_of(body, **more):
    kernel = parse(text_of(body, **more))
    verify(kernel)
    return NvidiaProgram(kernel, lambda rows: kernel, frozenset(), SM_90A, maker(str(kernel), SM_90A)).ptx


def test_waves_that_meet_in_groups_have_a_barrier_for_each():
    ptx = ptx_of("  barrier() {waves = 4}\n  barrier()\n  barrier() {waves = 2}", waves=8)
    assert count(r"bar\.sync %r\d+, 128;", ptx) == 1
    assert count(r"bar\.sync 0, 256;", ptx) == 1
    assert count(r"bar\.sync %r\d+, 64;", ptx) == 1
    assert "fence" not in ptx


def test_more_groups_than_the_chip_has_barriers_are_an_error():
    with pytest.raises(TargetError, match="16 barriers"):
        ptx_of("  barrier() {waves = 2}", waves=32)


def test_lanes_of_a_wave_meet_without_a_barrier_of_the_chip():
    ptx = ptx_of("  barrier() {waves = 1}", waves=16)
    assert count(r"bar\.warp\.sync", ptx) == 1 and "bar.sync" not in ptx


def exchanging(moves):
    body = """  %x = load(%a, [%lane, %c0], []) {steps = [[0, 1]]} : vector<8xf16>
  %r = rearrange(%x) {of_register = [1, 4, 2], of_lane = [2, 0, 0, 0, 0]} : vector<8xf16>
  %y = shuffle(%r) {of_register = MOVES, of_lane = [1, 2, 4, 16, 8]} : vector<8xf16>
  store(%y, %a, [%lane, %c0], []) {steps = [[0, 1]]}"""
    return ptx_of(body.replace("MOVES", moves))


@pytest.mark.parametrize(("moves", "words"), [("[0, 1, 2]", 4), ("[1, 0, 2]", 8)])
def test_lanes_exchange_whole_words_where_neighbours_stay_together(moves, words):
    assert count(r"shfl\.sync\.idx\.b32", exchanging(moves)) == words + 1  # one more for the number of the wave


@needs_ptxas
@pytest.mark.parametrize("moves", ["[0, 1, 2]", "[1, 0, 2]"])
def test_exchanges_of_lanes_spill_nothing(moves):
    assembled_well(exchanging(moves))


PRODUCT = """  %sa = allocate() : memory<64x64xf16, shared{placed}>
  %zero = const() {{value = 0.0}} : vector<1x8x2x2xf32>
  %z = wgmma_shared(%sa, [%c0, %c0], %sa, [%c0, %c0], %zero) {{shape = [64, 64, 64], instruction = x}} : \
vector<1x8x2x2xf32>
  %y = cast(%z) : vector<1x8x2x2xf16>
  store(%y, %a, [%lane, %c0], []) {{steps = [[0, 0], [0, 8], [8, 0], [0, 1]]}}"""


def test_rows_that_no_descriptor_names_are_an_error():
    assert "wgmma" in ptx_of(PRODUCT.format(placed=", xor(8, 8, 1)"))
    for placed in ("", ", pad(8)", ", xor(8, 4, 1)", ", xor(4, 8, 1)"):
        with pytest.raises(TargetError, match="wgmma_shared"):
            ptx_of(PRODUCT.format(placed=placed))


@pytest.mark.parametrize(
    ("depth", "placed", "mode"), [(64, "xor(8, 8, 1)", 1), (32, "xor(8, 4, 2)", 2), (16, "xor(8, 2, 4)", 3)]
)
def test_a_descriptor_says_how_long_rows_are(depth, placed, mode):
    body = PRODUCT.format(placed=", " + placed).replace("64x64xf16, shared", f"64x{depth}xf16, shared")
    body = body.replace("shape = [64, 64, 64]", f"shape = [64, 64, {depth}]")
    (said,) = set(map(int, re.findall(r"or\.b64\s+%rd\d+, %rd\d+, (-?\d+);", ptx_of(body))))
    assert said % 2**64 == mode << 62 | (8 * depth * 2 // 16) << 32 | 1 << 16


def test_memories_that_copies_reach_begin_at_multiples_of_1024():
    body = "  %x = allocate() : memory<3xf16, shared>\n" + PRODUCT.format(placed=", xor(8, 8, 1)")
    kernel = parse(text_of(body))
    lowered = lower_lanes(kernel, Nvptx(SM_90A))
    assert lowered.shared_bytes == 1024 + 64 * 64 * 2
    assert "@workgroup$memory, i32 1024)" in lowered.llvm_ir


def test_remarks_of_a_driver_s_assembler_are_read_as_well():
    log = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
    log += "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\nptxas info : Used 168 registers"
    told = read_log(log)
    assert (told.registers, told.spilled_bytes) == (168, 16)
    assert told.serialized[0].startswith("(C7510)")
