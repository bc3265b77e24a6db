"""Two workgroups that share copies, as PTX and at the launch."""

import re

import kernels
import pytest
from fake_array_libraries import install_torch
from ptx_code import LARGE, assembled_well, build, half_gemm, needs_ptxas

from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED
from tilewave.ir.ops import TakeOver
from tilewave.ir.rewrite import walk

UNALIGNED_LINES = (384, 256, 520)
"""Rows of 1040 bytes; three tiles, the last of which has no partner."""


@pytest.fixture(scope="module")
def shared():
    return build(half_gemm(), kernels.sizes(*UNALIGNED_LINES, **LARGE))


@pytest.fixture(scope="module")
def alone():
    return build(half_gemm(), kernels.sizes(512, 512, 512, **LARGE))


def count(pattern, text):
    return len(re.findall(pattern, text))


def test_half_a_box_goes_to_both_and_the_other_half_to_none_but_itself(shared):
    copy = r"@p cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
    operands = r" \[%r\d+\], \[%rd\d+, \{%r\d+, %r\d+\}\], \[%r\d+\]"
    assert count(rf"{copy}\.multicast::cluster{operands}, %rs\d+;", shared.asm) == 1
    assert count(rf"{copy}{operands};", shared.asm) == 2  # all of a, and the other half of b
    assert count(r"mov\.u32\s+%r\d+, %cluster_ctarank;", shared.asm) >= 1
    boxes = {m.name: m.box for m in shared.program.code_for(ALIGNED).maps}
    assert boxes == {"a": (128, 64), "b": (128, 64), "c": (64, 64)}


def test_consumers_arrive_in_both_workgroups(shared):
    """Without a release in the scope of the cluster, which would wait for all stores in every step."""
    arrival = r"setp\.lt\.u32 p, %r\d+, 2;\n @p mapa\.shared::cluster\.u32 there, %r\d+, %r\d+;\n"
    assert count(arrival + r" @p mbarrier\.arrive\.shared::cluster\.b64 _, \[there\];", shared.asm) == 1
    assert "release.cluster.shared" not in shared.asm
    made = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", shared.asm)
    assert made == ["1"] * 4 + ["16"] * 4  # eight waves here and eight there


def test_workgroups_begin_and_end_together(shared):
    barrier = r"bar\.warp\.sync -1;\n barrier\.cluster\.arrive\.aligned;\n barrier\.cluster\.wait\.aligned;"
    assert count(barrier, shared.asm) == 2
    first, last = (m.start() for m in re.finditer(barrier, shared.asm))
    others = [
        m.start() for m in re.finditer(r"mbarrier\.(try_wait|arrive)|setmaxnreg|cp\.async\.bulk\.tensor", shared.asm)
    ]
    made = [m.start() for m in re.finditer(r"mbarrier\.init|fence\.mbarrier_init", shared.asm)]
    assert max(made) < first < min(others)
    assert re.match(r"(?s).{0,400}\bret;", shared.asm[last:])
    assert "bar.sync 0," not in shared.asm  # the cluster's barrier takes its place


def test_a_quarter_of_a_box_goes_to_four_workgroups():
    """80 tiles of 49 steps, 20 of them below each other."""
    four = build(half_gemm(), kernels.sizes(2560, 1024, 3080, **LARGE))
    assert four.lanes.cluster == 4 and four.program.code_for(ALIGNED).cluster == 4
    boxes = {m.name: m.box for m in four.program.code_for(ALIGNED).maps}
    assert boxes == {"a": (128, 64), "b": (64, 64), "c": (64, 64)}
    assert len(re.findall(r"multicast::cluster", four.asm)) == 1
    assert re.search(r"setp\.lt\.u32 p, %r\d+, 4;\n @p mapa", four.asm)
    made = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+);", four.asm)
    assert made == ["1"] * 4 + ["32"] * 4  # eight waves in each of four


def test_rows_on_lines_have_no_clusters(alone):
    assert "cluster_ctarank" not in alone.asm and "barrier.cluster" not in alone.asm and "mapa" not in alone.asm


@needs_ptxas
@pytest.mark.parametrize("shape", [UNALIGNED_LINES, (8200, 8200, 8200), (1025, 1001, 264)], ids=str)
def test_they_assemble_without_spills(shape):
    made = build(half_gemm(), kernels.sizes(*shape, **LARGE))
    assert made.lanes.cluster == 2
    assert assembled_well(made.asm) <= 168


SPLIT = (256, 256, 8200)
"""Two tiles, each in five parts."""


@needs_ptxas
@pytest.mark.parametrize("shape", [SPLIT, (8200, 8200, 8200)], ids=str)
def test_those_that_hand_over_parts_assemble_without_spills(shape):
    made = build(half_gemm(), kernels.sizes(*shape, **LARGE))
    assert made.lanes.cluster == 2 and any(isinstance(op, TakeOver) for op in walk(made.lanes.body))
    assert assembled_well(made.asm) <= 168


@needs_ptxas
def test_shared_memory_and_registers_do_not_grow(shared, alone):
    assert shared.program.code_for(ALIGNED).shared_bytes == alone.program.code_for(ALIGNED).shared_bytes
    assert assembled_well(shared.asm) == assembled_well(alone.asm)


# -- the launch


CLUSTER_DIMENSION = 4


@pytest.mark.parametrize(("k", "members"), [(520, 2), (512, 1)])
def test_a_launch_says_how_many_workgroups_are_a_cluster(k, members, fake, monkeypatch):
    torch = install_torch(monkeypatch)
    m, n, _ = UNALIGNED_LINES
    made = wave_compile(WaveCompileOptions(subs=kernels.sizes(m, n, k, **LARGE), target="sm_90a"), half_gemm())
    shapes = ((m, k), (n, k), (m, n))
    at = (0x100000, 0x400000, 0x900000)
    made(*(torch.Tensor(p, s, dtype="torch.float16", strides=(s[1], 1)) for p, s in zip(at, shapes, strict=True)))
    (seen,) = fake.launches
    told = [
        (number, [int.from_bytes(value[i : i + 4], "little") for i in (0, 4, 8)]) for number, value in seen.attributes
    ]
    clusters = [size for number, size in told if number == CLUSTER_DIMENSION]
    assert clusters == ([[members, 1, 1]] if members > 1 else [])
    assert seen.grid == (4 if members > 1 else 3, 1, 1)


def test_a_launch_of_clusters_has_slots_for_what_they_hand_over(fake, monkeypatch):
    torch = install_torch(monkeypatch)
    m, n, k = SPLIT
    made = wave_compile(WaveCompileOptions(subs=kernels.sizes(m, n, k, **LARGE), target="sm_90a"), half_gemm())
    at, shapes = (0x1000000, 0x8000000, 0x10000000), ((m, k), (n, k), (m, n))
    made(*(torch.Tensor(p, s, dtype="torch.float16", strides=(s[1], 1)) for p, s in zip(at, shapes, strict=True)))
    (seen,) = fake.launches
    assert seen.grid == (10, 1, 1) and CLUSTER_DIMENSION in [number for number, _ in seen.attributes]
    (slots,) = (a.scratch_bytes for a in made.build.program.code_for(ALIGNED).arguments if a.kind == "scratch")
    assert fake.memory[seen.words[9]].content == bytes(slots) and slots > 10 * 128 * 256 * 4
