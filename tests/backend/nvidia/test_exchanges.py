"""Tiles that workgroups hand to each other, in PTX and at the call: flags, fences, and memory of the launch."""

import re

import kernels
import pytest
from ptx_code import LARGE, assembled_well, build, gelu, half_gemm, needs_ptxas

import tilewave
from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.backend.nvidia.compiler import code_of
from tilewave.ir.ops import TakeOver
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A
from tilewave.runtime.gpu_launch import ScratchMemory

M, N, K = 4864, 4096, 4160
SLOTS, TILE_BYTES, WAVES, FLAG_BYTES = 120, 128 * 256 * 4, 12, 32
SCRATCH_BYTES = SLOTS * (TILE_BYTES + WAVES * FLAG_BYTES)


def large(kernel, **more):
    return build(kernel, kernels.sizes(M, N, K, **{**LARGE, **more}))


# -- what the assembler says


DTYPES = {
    "f16": (half_gemm(), 64),
    "bf16": (kernels.gemm(bf16, f32, out=bf16, epilogue=lambda x: cast(x, bf16)), 64),
    "f8e4m3fn": (kernels.gemm(f8e4m3fn, f32, out=f16, epilogue=lambda x: cast(x, f16)), 128),
    "i8": (kernels.gemm(i8, i32), 128),
    "gelu": (kernels.gemm(f16, f32, out=f16, epilogue=gelu), 64),
}


@needs_ptxas
@pytest.mark.parametrize("name", DTYPES)
def test_sums_stay_in_registers(name):
    kernel, depth = DTYPES[name]
    k = K * depth // 64
    made = build(kernel, kernels.sizes(M, N, k, **{**LARGE, "block_k": depth}))
    assert any(isinstance(op, TakeOver) for op in walk(made.lanes.body))
    assert assembled_well(made.asm) <= 168  # what 384 lanes can have


@pytest.fixture(scope="module")
def asm():
    return large(half_gemm()).asm


def in_order(text, *patterns):
    """Assert that each pattern is found after the one before."""
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found, f"{pattern} is not found behind {text[max(0, at - 200) : at]!r}"
        at = found.end()
    return at


def test_a_flag_is_raised_behind_all_that_the_wave_stored(asm):
    stores = re.findall(r"st\.global\.v4\.[bf]32", asm)
    assert len(stores) == 32  # 128 sums of a lane
    last = asm.rindex("st.global.v4")
    in_order(asm[last:], r"fence\.acq_rel\.gpu;", r"bar\.warp\.sync", r"@p st\.release\.gpu\.global\.b32 \[.*\], 1;")
    assert len(re.findall(r"st\.release\.gpu", asm)) == 1


def test_a_flag_is_awaited_before_anything_is_loaded_and_lowered_for_the_next_launch(asm):
    wait = asm.index("ld.acquire.gpu")
    assert "ld.global" not in asm[:wait]
    in_order(
        asm[wait:], r"bra again", r"bar\.warp\.sync", r"@p st\.relaxed\.gpu\.global\.b32 \[.*\], 0;", r"ld\.global\.v4"
    )
    assert len(re.findall(r"ld\.global\.v4\.[bf]32", asm)) == 32
    assert "ld.global.nc" not in asm


def test_lanes_touch_neighbouring_bytes_of_their_wave_s_part(asm):
    far = [int(x or 0) for x in re.findall(r"st\.global\.v4\.[bf]32 \s*\[%\w+\+?(-?\d*)\]", asm)]
    assert [x - far[0] for x in far] == [512 * i for i in range(32)]


SINGLE = """
kernel @k {workgroups = 2, level = lane, waves = [4, 1], lanes = 32} (%c: memory<2x128x4xDTYPE, global>) {
  %lane = lane() : index
  %wave = wave() : index
  %w = workgroup() : index
  %c0 = const() {value = 0} : index
  %c32 = const() {value = 32} : index
  %first = mul(%wave, %c32) : index
  %row = add(%first, %lane) : index
  %e = make_exchange() : exchange<2x128x4xDTYPE>
  %x = load(%c, [%w, %row, %c0], []) {steps = [[0, 0, 1]]} : vector<4xDTYPE>
  hand_over(%x, %e, %w)
  %y = take_over(%x, %e, %c0) : vector<4xDTYPE>
  store(%y, %c, [%w, %row, %c0], []) {steps = [[0, 0, 1]]}
}
"""


@pytest.mark.parametrize(("dtype", "add"), [("f32", "add.rn.f32"), ("i32", "add.s32")])
def test_what_is_taken_over_is_added(dtype, add):
    kernel = verify(parse(SINGLE.replace("DTYPE", dtype)))
    code = code_of(kernel, SM_90A, ALIGNED)
    mine, others = (set(x.split(", ")) for x in re.findall(r"ld\.global\.v4\.\w+ \s*\{(.*)\}", code.ptx))
    added = [re.split(r",? \s*", line)[-2:] for line in re.findall(rf"{re.escape(add)} \s*(.*);", code.ptx)]
    assert sum({a, b} & mine != set() and {a, b} & others != set() for a, b in added) == 4
    *_, last = code.arguments
    assert (last.kind, last.scratch_bytes) == ("scratch", 2 * (128 * 4 * 4 + 4 * FLAG_BYTES))


# -- what a launch provides


@pytest.fixture
def gemm():
    return wave_compile(WaveCompileOptions(subs=kernels.sizes(M, N, K, **LARGE), target="sm_90a"), half_gemm())


def tensors(torch):
    at, shapes = (0x1000000, 0x8000000, 0x10000000), ((M, K), (N, K), (M, N))
    return [
        torch.Tensor(*given, dtype="torch.float16", strides=(given[1][1], 1)) for given in zip(at, shapes, strict=True)
    ]


def scratch(fake):
    """The addresses that launches were given."""
    return [seen.words[9] for seen in fake.launches]


def test_a_launch_has_zeros_for_its_slots_and_flags(gemm, fake, torch):
    gemm(*tensors(torch))
    (seen,) = fake.launches
    assert [len(argument) for argument in seen.arguments] == [8] * 10 + [128] * 3
    assert fake.memory[seen.words[9]].content == bytes(SCRATCH_BYTES)


def test_launches_of_one_stream_share_their_slots_and_those_of_two_do_not(gemm, fake, torch):
    given = tensors(torch)
    for stream in (0x1, 0x2, 0x1):
        torch.streams[0] = stream
        gemm(*given)
    first, second, again = scratch(fake)
    assert first == again != second


def test_a_graph_has_slots_of_its_own_whether_it_is_recorded_first_or_later(gemm, fake, torch):
    given = tensors(torch)
    torch.streams[0] = 0x2
    for recorded in ({}, {0x2: 1}, {}, {0x2: 1}):
        fake.capturing = recorded
        gemm(*given)
    plain, graph, plain_again, graph_again = scratch(fake)
    assert plain == plain_again != graph == graph_again
    other = wave_compile(WaveCompileOptions(subs=kernels.sizes(M, N, K, **LARGE), target="sm_90a"), half_gemm())
    fake.launches.clear()
    fake.capturing = {}
    for stream, recorded in ((0x1, {}), (0x2, {0x2: 1}), (0x2, {})):
        torch.streams[0], fake.capturing = stream, recorded
        other(*given)
    assert len({*scratch(fake)}) == 3


def test_arrays_that_lanes_load_need_no_slots(gemm):
    plain = gemm.build.program.code_for(Specialization(BY_LANES))
    assert not any(a.kind == "scratch" for a in plain.arguments)


def test_a_kernel_that_is_not_split_asks_for_nothing(fake, torch):
    whole = wave_compile(WaveCompileOptions(subs=kernels.sizes(4096, N, K, **LARGE), target="sm_90a"), half_gemm())
    code = whole.build.program.code_for(ALIGNED)
    assert not any(a.kind == "scratch" for a in code.arguments)


def test_a_saved_kernel_remembers_its_slots(gemm, tmp_path, fake, torch):
    gemm.save(tmp_path / "gemm.tilewave")
    loaded = tilewave.load(tmp_path / "gemm.tilewave")
    loaded(*tensors(torch))
    (seen,) = fake.launches
    assert fake.memory[seen.words[9]].content == bytes(SCRATCH_BYTES)
    (slot,) = (s for s in _slots(loaded) if isinstance(s, ScratchMemory))
    assert slot.bytes == SCRATCH_BYTES


def _slots(compiled):
    (program,) = compiled.build.program.programs.values()
    return program.code.launch.description.slots
