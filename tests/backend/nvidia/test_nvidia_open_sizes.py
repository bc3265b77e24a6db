"""One kernel for all sizes on an NVIDIA chip: its binaries, which one a call takes, and what it is launched with."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import kernels
import pytest
from ptx_code import half_gemm

import tilewave
from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.errors import CallError
from tilewave.ir.launch import HostLaunch
from tilewave.kernels import gemm as mapped_gemm
from tilewave.machine.chips import CHIPS, TENSOR_MAPS
from tilewave.machine.tuning import PackingTuning
from tilewave.runtime.array_layouts import LINE

OPEN = (kernels.M, kernels.N, kernels.K)
PROGRAMMATIC_SERIALIZATION, CLUSTER = 6, 4
ON_LINES, UNALIGNED_LINES = ALIGNED, Specialization(16)
ANYWHERE = Specialization(BY_LANES, (("a", 2), ("b", 2), ("c", 2)))
ANY = Specialization(BY_LANES, (("a", 0), ("b", 0), ("c", 0)))


def left_open(subs):
    return {name: value for name, value in subs.items() if name not in OPEN}


@pytest.fixture
def gemm():
    sizes = left_open(kernels.sizes(1, 1, 1, block_m=128, block_n=256, block_k=64))
    return wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), half_gemm())


def tensors(torch, shape, at=(0x10000, 0x40000000, 0x80000000), strides=(None, None, None)):
    m, n, k = shape
    shapes = ((m, k), (n, k), (m, n))
    given = zip(at, shapes, strides, strict=True)
    return [torch.Tensor(p, s, dtype="torch.float16", strides=stride or ()) for p, s, stride in given]


CLASSES = {
    (256, 512, 128): ON_LINES,
    (1, 8, 64): ON_LINES,
    (1, 8, 8): UNALIGNED_LINES,  # b's rows
    (300, 264, 136): UNALIGNED_LINES,
    (100, 264, 301): ANYWHERE,
    (129, 250, 64): ANYWHERE,  # TMA would store six columns too many
    (5, 8, 0): ANY,  # no block could be loaded
}


@pytest.mark.parametrize("shape", CLASSES)
def test_how_arrays_lie_decides_which_code_they_take(gemm, fake, torch, shape):
    gemm(*tensors(torch, shape))
    assert CLASSES[shape].arrays in gemm.binaries
    assert set(gemm.build.program.programs) == {CLASSES[shape]}


def test_four_binaries_serve_all_arrays(gemm, fake, torch):
    for m in range(1, 20):
        gemm(*tensors(torch, (m, 256, 64)))
        gemm(*tensors(torch, (64 * m, 8 * m, 8 * m)))
        gemm(*tensors(torch, (m, m, m), strides=((2 * m, 2), None, None)))
    gemm(*tensors(torch, (64, 64, 64), at=(0x10002, 0x40000000, 0x80000000)))
    assert sorted(gemm.binaries) == ["any arrays", "contiguous rows", "rows on 16 bytes", "rows on cache lines"]
    assert fake.calls.count("cuModuleLoadDataEx") == 4


def test_why_tells_what_arrays_keep_it_from(gemm, torch):
    well = tensors(torch, (128, 256, 64))
    assert gemm.why(*well) == gemm.why()
    told = [row.what for row in gemm.why(*tensors(torch, (128, 250, 64))) if row.step == "call"]
    assert told[0] == (
        "c has rows of 500 bytes, and TMA stores need a multiple of 16, so lanes load all tiles in this call"
    )


@pytest.mark.parametrize("shape", [(256, 512, 128), (8192, 8192, 8192), (4864, 4096, 4160), (128, 256, 65536)])
def test_a_launch_passes_what_the_host_computes(gemm, fake, torch, shape):
    gemm(*tensors(torch, shape))
    (seen,) = fake.launches
    host = HostLaunch(gemm.build.lanes)
    m, n, k = shape
    numbers = {"M": m, "N": n, "K": k}
    found = host([numbers[name] for name in host.names[:3]])
    assert seen.grid == (found.workgroups, 1, 1)
    passed = dict(zip(host.names, found.numbers, strict=True))
    code = gemm.build.program.code_for(ON_LINES)
    for argument, word in zip(code.arguments, seen.words, strict=False):
        if argument.kind == "symbol":
            assert word == passed[argument.name], argument.name
    assert {(map_.pointer, map_.sizes[:2]) for map_ in fake.maps} == {
        (0x10000, (k, m)),
        (0x40000000, (k, n)),
        (0x80000000, (n, m)),
    }


EARLY = {(2048, 2048, 2048): True, (128 * 132, 256, 64): True, (128 * 133, 256, 64): False, (128, 256, 65536): False}


@pytest.mark.parametrize("shape", EARLY)
def test_an_early_start_is_asked_for_where_each_workgroup_has_one_whole_tile(gemm, fake, torch, shape):
    gemm(*tensors(torch, shape))
    (seen,) = fake.launches
    assert (PROGRAMMATIC_SERIALIZATION in [number for number, _ in seen.attributes]) == EARLY[shape]


@pytest.mark.parametrize("tiles", [1, 2, 5, 131, 132, 200])
def test_workgroups_that_share_copies_come_in_pairs(gemm, fake, torch, tiles):
    gemm(*tensors(torch, (128 * tiles, 256, 72)))
    (seen,) = fake.launches
    assert seen.grid[0] % 2 == 0 and min(tiles, 132) <= seen.grid[0] <= 132
    assert CLUSTER in [number for number, _ in seen.attributes]


@pytest.mark.parametrize("shape", [(0, 256, 64), (128, 0, 64), (0, 0, 0)])
def test_no_tiles_are_no_launch_and_nothing_is_compiled(gemm, fake, torch, shape):
    gemm(*tensors(torch, shape))
    assert fake.launches == [] and not gemm.build.program.programs


def test_more_tiles_than_a_launch_computes_are_refused(fake, torch):
    sizes = left_open(kernels.sizes(1, 1, 1, block_m=64, block_n=8, block_k=16))
    small = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), half_gemm())
    arrays = tensors(torch, (1 << 20, 1 << 17, 64))
    sized = small.sizes.of_call(arrays, {})
    with pytest.raises(CallError, match="tiles, and a launch computes 134,217,728 at most"):
        small.build.run(arrays, sized.numbers, sized.parameters)
    assert fake.launches == []


def test_a_second_call_asks_the_driver_for_new_maps_and_its_launch_alone(gemm, fake, torch):
    given = tensors(torch, (256, 512, 128))
    gemm(*given)
    assert len(fake.maps) == 3
    for arrays, maps in ((given, 0), (tensors(torch, (255, 512, 128)), 2), (given, 0)):
        del fake.calls[:]
        gemm(*arrays)
        made = ["cuTensorMapEncodeTiled"] * maps  # within a context, which autograd's threads do not have by default
        assert fake.calls == ["cuCtxGetCurrent", "cuCtxPushCurrent_v2", *made, "cuLaunchKernelEx", "cuCtxPopCurrent_v2"]


# -- the code itself


@pytest.fixture(scope="module")
def shipped():
    made = mapped_gemm((512, 512, 512), f16, f16, tile=(128, 256, 64), mapping="grouped(12)")
    return wave_compile(WaveCompileOptions(subs=left_open(made.subs), target="sm_90a"), made.kernel)


@pytest.mark.parametrize("variant", [ON_LINES, UNALIGNED_LINES], ids=["on lines", "off lines"])
def test_nothing_takes_a_remainder_and_an_early_start_is_prepared(shipped, variant):
    ptx = shipped.build.program.code_for(variant).ptx
    assert "wgmma" in ptx and "cp.async.bulk.tensor.2d.global" in ptx
    assert not [line for line in ptx.splitlines() if "rem." in line]
    assert "griddepcontrol.wait" in ptx


@pytest.mark.skipif(not ptxas(), reason="ptxas is not here")
@pytest.mark.parametrize("variant", [ON_LINES, UNALIGNED_LINES], ids=["on lines", "off lines"])
def test_open_sizes_take_no_more_registers_than_known_ones(shipped, variant):
    k = 4160 if variant == ON_LINES else 4168
    made = mapped_gemm((4864, 4096, k), f16, f16, tile=(128, 256, 64), mapping="grouped(12)")
    known = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel).resources.assembled
    found = assemble_ptx(shipped.build.program.code_for(variant).ptx, "sm_90a")
    assert (found.registers, found.spilled_bytes, found.serialized) == (known.registers, 0, ())


def test_lanes_are_given_an_address_where_an_array_is_empty(gemm, fake, torch):
    """Predicated lanes use the first element's address, also for an array without memory in torch."""
    gemm(*tensors(torch, (64, 64, 0), at=(0, 0, 0x80000000)))
    (seen,) = fake.launches
    code = gemm.build.program.code_for(ANYWHERE)
    pointers = [word for argument, word in zip(code.arguments, seen.words, strict=False) if argument.kind == "pointer"]
    assert pointers == [0x80000000] * 3


def test_a_size_that_is_given_is_held_against_arrays_seen_before(gemm, fake, torch):
    given = tensors(torch, (128, 256, 64))
    gemm(*given)
    gemm(*given, M=128)
    with pytest.raises(CallError, match="M is 64, but a is 128x64, which makes it 128"):
        gemm(*given, M=64)
    assert len(fake.launches) == 2


# -- arrays with the layout of earlier ones


ELSEWHERE = (0x2000000, 0x50000000, 0x90000000)
WELL = (256, 512, 128)
OTHERS = {
    "rows": ((255, 512, 128), {}),
    "columns": ((256, 264, 128), {"strides": (None, None, (512, 1))}),
    "steps": ((256, 512, 64), {"strides": ((128, 1), (128, 1), None)}),
    "strides": (WELL, {"strides": ((256, 1), None, None)}),
    "rows off lines": (WELL, {"strides": ((136, 1), None, None)}),
    "every third": (WELL, {"strides": ((384, 3), None, None)}),
    "ragged columns": ((256, 508, 128), {"strides": (None, None, (512, 1))}),
    "backwards": (WELL, {"strides": ((1, 256), None, None)}),
    "alignment": (WELL, {"at": (0x2000002, 0x50000000, 0x90000000)}),
    "alignment of what is written": (WELL, {"at": (0x2000000, 0x50000000, 0x90000008)}),
    "no elements": ((256, 512, 0), {"at": (0, 0, 0x90000000)}),
}


@pytest.mark.parametrize("change", OTHERS)
def test_what_was_prepared_for_others_is_not_taken_where_a_fact_differs(gemm, fake, torch, change):
    """The launch is that of a kernel which has seen nothing yet."""
    shape, lie = OTHERS[change]
    given = tensors(torch, shape, **{"at": ELSEWHERE, **lie})
    gemm(*tensors(torch, WELL))
    gemm(*given)
    forget(gemm)
    gemm(*given)
    first, found, wanted = (launched(fake, seen) for seen in fake.launches)
    assert found == wanted != first


def test_a_step_counts_from_the_second_row_on(gemm, fake, torch):
    for rows, taken in ((1, {ON_LINES}), (2, {ON_LINES, ANYWHERE})):
        gemm(*tensors(torch, (rows, 512, 128), strides=((130, 1), None, None)))
        assert set(gemm.build.program.programs) == taken


def launched(fake, seen):
    """A launch with the content of its tensor maps."""
    arguments = [fake.map_of(a) if len(a) == 128 else a for a in seen.arguments]
    return seen.grid, seen.attributes, seen.stream, arguments


def test_new_arrays_of_sizes_seen_before_are_not_looked_at_closely(gemm, fake, torch, monkeypatch):
    gemm(*tensors(torch, WELL))
    monkeypatch.setattr("tilewave.runtime.cuda_calls.check_call", None)
    monkeypatch.setattr(type(gemm.sizes), "of_call", None)
    gemm(*tensors(torch, WELL, at=ELSEWHERE))
    (_, _, _, first), (_, _, _, second) = (launched(fake, seen) for seen in fake.launches)
    assert sorted(m.pointer for m in second if not isinstance(m, bytes)) == list(ELSEWHERE)
    others = [(x, y) for x, y in zip(first, second, strict=True) if x != y]
    assert len(others) == 6, "three maps and three addresses"


def test_new_sizes_of_arrays_that_lie_as_others_did_are_not_looked_at_closely(gemm, fake, torch, monkeypatch):
    gemm(*tensors(torch, WELL))
    with monkeypatch.context() as patched:
        patched.setattr("tilewave.runtime.cuda_calls.check_call", None)
        patched.setattr(type(gemm.sizes), "of_call", None)
        for m in (255, 2, 8192):
            gemm(*tensors(torch, (m, *WELL[1:]), at=ELSEWHERE))
    found = [launched(fake, seen) for seen in fake.launches[1:]]
    for m, quick in zip((255, 2, 8192), found, strict=True):
        forget(gemm)
        gemm(*tensors(torch, (m, *WELL[1:]), at=ELSEWHERE))
        assert launched(fake, fake.launches[-1]) == quick


def forget(gemm):
    del gemm.build.program.__dict__["calls"]


def drawn_call(rng, torch):
    """Return arrays of random sizes and layouts; most agree, and most can be used."""
    m, n, k = (rng.choice((0, 1, 2, 16, 64, 128, 130, 256, 2048, rng.randrange(300))) for _ in range(3))
    given = []
    for at, (rows, columns) in zip(ELSEWHERE, ((m, k), (n, k), (m, n)), strict=True):
        rows, columns = (x + (rng.random() < 0.02) for x in (rows, columns))
        step = rng.choice((columns, columns, columns, columns + 8, columns + 1, 0, 2048))
        strides = rng.choice(((step, 1),) * 9 + ((1, rows), (2 * step, 2)))
        off = rng.choice((0, 0, 0, 0, 16, 8, 2, 1, -0x40000000))
        pointer = 0 if 0 in (rows, columns) and rng.random() < 0.8 else at + off
        dtype = "torch.float16" if rng.random() < 0.97 else "torch.float32"
        grad = rng.random() < 0.02
        given.append(torch.Tensor(pointer, (rows, columns), dtype, strides=strides, requires_grad=grad))
    return given


def came_to(gemm, fake, given):
    """What a call launched, or why it did not."""
    before = len(fake.launches)
    try:
        gemm(*given)
    except CallError as error:
        return error.what, error.remedy
    return [launched(fake, seen) for seen in fake.launches[before:]]


@pytest.mark.parametrize("seed", range(6))
def test_calls_of_all_kinds_come_to_what_they_would_come_to_as_the_first(gemm, fake, torch, monkeypatch, seed):
    monkeypatch.setattr(PackingTuning, "pays", lambda *_: False)  # packed copies have other addresses in every launch
    rng = random.Random(seed)
    calls = [drawn_call(rng, torch) for _ in range(60)]
    calls = [*calls, *(rng.choice(calls) for _ in range(60))]
    found = [came_to(gemm, fake, given) for given in calls]
    kinds = {type(one) for one in found}
    assert kinds == {tuple, list}, "some are refused, and some are not"
    for given, quick in zip(calls, found, strict=True):
        forget(gemm)
        assert came_to(gemm, fake, given) == quick


OWN = str(Path(tilewave.__file__).parent)


def test_no_chip_asks_for_more_alignment_than_arrays_are_told_apart_by():
    assert {chip.line_bytes <= LINE and LINE % chip.line_bytes == 0 for chip in CHIPS.values()} == {True}
    assert LINE % TENSOR_MAPS.grain_bytes == 0


def test_a_call_with_new_sizes_takes_few_calls_of_python(gemm, fake, torch):
    """Function calls are counted and not timed, so that the machine's load does not matter."""
    for m in (300, 301):
        gemm(*tensors(torch, (m, *WELL[1:])))
    counted = []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            counted.append(frame.f_code.co_name)

    given = tensors(torch, (302, *WELL[1:]))
    sys.setprofile(count)
    gemm(*given)
    sys.setprofile(None)
    assert len(counted) <= 5, counted


@pytest.mark.parametrize("at", [(0x90000000, 0x50000000, 0x90000000), (0x2000000, 0x50000000, 0x50000100)])
def test_new_arrays_that_overlap_are_refused_though_they_lie_as_others_did(gemm, fake, torch, at):
    gemm(*tensors(torch, WELL))
    with pytest.raises(CallError, match="c overlaps"):
        gemm(*tensors(torch, WELL, at=at))
    assert len(fake.launches) == 1


def test_a_size_that_is_given_is_held_against_new_arrays(gemm, fake, torch):
    gemm(*tensors(torch, WELL))
    with pytest.raises(CallError, match="M is 64, but a is 256x128, which makes it 256"):
        gemm(*tensors(torch, WELL, at=ELSEWHERE), M=64)
    assert len(fake.launches) == 1


def test_new_sizes_that_disagree_are_refused_by_both_arrays(gemm, fake, torch):
    gemm(*tensors(torch, WELL))
    a, b, c = tensors(torch, WELL, at=ELSEWHERE)
    c.shape = (255, 512)
    with pytest.raises(CallError, match="M is 256 by a, but 255 by c"):
        gemm(a, b, c)
    assert len(fake.launches) == 1


def test_thousands_of_sizes_are_forgotten_again(gemm, fake, torch, monkeypatch):
    monkeypatch.setattr("tilewave.runtime.cuda_calls.KEPT_CALLS", 8)
    monkeypatch.setattr("tilewave.runtime.sizes.KEPT_CALLS", 8)
    for m in range(1, 60):
        gemm(*tensors(torch, (m, 256, 64)))
    for kept in (gemm.build.program.calls.launches, gemm.sizes._kept):
        assert 0 < len(kept) <= 8
    assert not gemm.verdicts._right, "what is proved need not be remembered"
