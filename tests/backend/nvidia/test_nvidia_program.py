"""Which code a call takes, what it passes to the driver, and what is refused."""

from __future__ import annotations

import kernels
import numpy as np
import pytest
from gemm_tensors import K, M, N, tensors
from ptx_code import half_gemm

from tilewave import *
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.backend.nvidia.specialize import alignment
from tilewave.errors import CallError, SlowCodeWarning, SpillWarning
from tilewave.ir.types import F16, F32
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N
from tilewave.runtime.arrays import ArrayView


@pytest.fixture
def gemm():
    """Compiled again, or loaded from the cache, because a program remembers the driver that it was loaded by."""
    sizes = kernels.sizes(M, N, K, block_m=128, block_n=128, block_k=64)
    return wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), half_gemm())


def array(pointer, shape, strides, dtype=F16):
    return ArrayView(pointer, shape, strides, dtype, "cuda:0", False, None)


@pytest.mark.parametrize(
    ("view", "bytes_"),
    [
        (array(0x1000, (8, 8), (16, 2)), 16),
        (array(0x1008, (8, 8), (16, 2)), 8),
        (array(0x1002, (8, 8), (16, 2)), 2),
        (array(0x1000, (8, 8), (20, 2)), 4),
        (array(0x1000, (1, 8), (20, 2)), 16),  # one row has no distance to another
        (array(0x1000, (3, 8, 8), (1 << 20, 18, 2)), 2),
        (array(0x1000, (8, 8), (-16, 2)), 16),
        (array(0x1004, (8,), (4,), F32), 4),
    ],
)
def test_an_array_is_as_aligned_as_its_address_and_its_rows(view, bytes_):
    assert alignment(view, 16) == bytes_


def views(gemm, a):
    return [a, array(0x40000, (N, K), (2 * K, 2)), array(0x90000, (M, N), (2 * N, 2))]


def test_arrays_that_the_copy_engine_takes_get_the_kernel_that_copies(gemm):
    variant = gemm.build.program.plans.key_for(views(gemm, array(0x10000, (M, K), (2 * K, 2))))
    assert variant == ALIGNED
    assert "cp.async.bulk" in gemm.build.program.code_for(variant).ptx


@pytest.mark.parametrize(
    ("a", "variant"),
    [
        (array(0x10002, (M, K), (2 * K, 2)), Specialization(BY_LANES, (("a", 2),))),
        (array(0x10000, (M, K), (2 * K + 4, 2)), Specialization(BY_LANES, (("a", 4),))),
        (array(0x10000, (M, K), (2, 2 * M)), Specialization(BY_LANES, (("a", 0),))),
    ],
)
def test_arrays_that_it_cannot_take_are_loaded_by_lanes(gemm, a, variant):
    found = gemm.build.program.plans.key_for(views(gemm, a))
    assert found == variant
    ptx = gemm.build.program.code_for(found).ptx
    assert "cp.async.bulk" not in ptx
    assert "wgmma" in ptx


def test_why_tells_what_arrays_keep_the_code_from(gemm, torch):
    well = tensors(torch)
    assert gemm.why(*well) == gemm.why()
    (*before, narrow, other) = gemm.why(*tensors(torch, at=(0x10002, 0x40000, 0x90000)))
    assert tuple(before) == gemm.why().rows
    assert {narrow.step, other.step} == {"call"}
    assert narrow.what == (
        "a begins at 0x10002, and TMA needs a multiple of 16 bytes, so lanes load all tiles in this call"
    )
    assert other.what.startswith("the base or row stride of a is aligned to 2 bytes, not 16")


def test_a_call_launches_every_workgroup_with_maps_of_its_arrays(gemm, fake, torch):
    gemm(*tensors(torch))
    (seen,) = fake.launches
    code = gemm.build.program.code_for(ALIGNED)
    assert seen.function == "gemm"
    assert seen.grid == (gemm.build.lanes.workgroups, 1, 1)
    assert seen.block == (384, 1, 1)
    assert seen.shared_bytes == code.shared_bytes
    assert [len(argument) for argument in seen.arguments] == [8] * 9 + [128] * 3
    assert seen.words[:9] == (0x10000, K, 1, 0x40000, K, 1, 0x90000, N, 1)
    assert {m.pointer for m in fake.maps} == {0x10000, 0x40000, 0x90000}


def test_f32_is_copied_as_it_is_even_where_products_ignore_bits(fake, torch):
    sizes = kernels.sizes(M, N, K, block_m=128, block_n=128, block_k=32)
    asked = kernels.gemm(f32, f32, constraints=(kernels.TF32,))
    compiled = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), asked)
    at, shapes = (0x10000, 0x40000, 0x90000), ((M, K), (N, K), (M, N))
    compiled(*(torch.Tensor(*given, dtype="torch.float32") for given in zip(at, shapes, strict=True)))
    float32, rows_of_128_bytes = 7, 3  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_128B
    assert {(m.dtype, m.box[0], m.swizzle) for m in fake.maps} == {(float32, 32, rows_of_128_bytes)}
    assert len(fake.maps) == 3


PROGRAMMATIC_SERIALIZATION = 6


def test_kernels_may_start_before_their_predecessor_has_ended_whatever_loads_their_tiles(gemm, fake, torch):
    gemm(*tensors(torch))
    gemm(*tensors(torch, a_strides=(K + 2, 1)))
    for launched in fake.launches:
        assert [number for number, _ in launched.attributes] == [PROGRAMMATIC_SERIALIZATION]
    assert len(fake.launches) == 2


def test_a_second_call_asks_for_its_launch_alone(gemm, fake, torch):
    given = tensors(torch)
    gemm(*given)
    del fake.calls[:]
    gemm(*given)
    context = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}
    assert {*fake.calls} - context == {"cuLaunchKernelEx"}


def test_rows_that_lie_badly_are_launched_without_maps(gemm, fake, torch):
    gemm(*tensors(torch, a_strides=(K + 2, 1)))
    (seen,) = fake.launches
    assert [len(argument) for argument in seen.arguments] == [8] * 9
    assert seen.words[:3] == (0x10000, K + 2, 1)


@pytest.fixture
def spilling(fake, monkeypatch):
    """Every kernel spills."""
    ask = fake.do_cuFuncGetAttribute

    def spilling(out, attribute, function):
        ask(out, attribute, function)
        if attribute == 3:  # local bytes
            out[0] = 64

    monkeypatch.setattr(fake, "do_cuFuncGetAttribute", spilling)


@pytest.mark.parametrize("strides", [{}, {"a_strides": (K + 2, 1)}], ids=["copies", "loads"])
def test_a_kernel_that_spills_says_so_and_runs(gemm, fake, torch, spilling, strides):
    with pytest.warns(SpillWarning, match="64 bytes of a lane are spilled; smaller tiles need fewer registers") as told:
        gemm(*tensors(torch, **strides))
    assert {warning.filename for warning in told} == {__file__}, "the author's line"
    assert len(fake.launches) == 1


def test_a_call_of_the_author_s_kernel_that_spills_says_so(fake, torch, spilling):
    @wave([WorkgroupConstraint(sym.M, 64, 0), WorkgroupConstraint(sym.N, 64, 1), TilingConstraint(sym.K, 64)])
    def mine(
        a: Memory[sym.M, sym.K, SHARED_ADDRESS_SPACE, f16],
        b: Memory[sym.N, sym.K, SHARED_ADDRESS_SPACE, f16],
        c: Memory[sym.M, sym.N, GLOBAL_ADDRESS_SPACE, f16],
    ):
        @iterate(sym.K, init_args=[Register[sym.M, sym.N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(cast(total, f16), c)

    with pytest.warns(SpillWarning, match="mine: 64 bytes of a lane are spilled") as told:
        mine(*tensors(torch))
    assert {warning.filename for warning in told} == {__file__}, "the author's line"


@pytest.mark.filterwarnings("error::tilewave.errors.SlowCodeWarning")
def test_a_built_in_kernel_that_spills_is_not_the_caller_s(fake, torch, spilling):
    """A built-in kernel's tiles are not the caller's; a caller who compiles it with a tile gets the warning."""
    kernel = product_kernel(ProductForm(F16, F16))
    kernel(*tensors(torch))
    assert len(fake.launches) == 1
    made = kernel.compile(target="sm_90a", subs={BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64})
    with pytest.raises(SpillWarning):
        made(*tensors(torch))


def test_products_that_wait_for_each_other_are_told_and_run(gemm, fake, torch, monkeypatch):
    monkeypatch.setattr("tilewave.runtime.cuda.CudaProgram.log", lambda *given: "ptxas info : (C7510) serialized")
    with pytest.warns(SlowCodeWarning, match="products wait for each other: .*C7510") as told:
        gemm(*tensors(torch))
    assert {warning.filename for warning in told} == {__file__}, "the author's line"
    assert len(fake.launches) == 1


def test_arrays_on_the_cpu_are_refused_at_the_call(gemm, fake, torch):
    given = tensors(torch)
    given[1].is_cuda, given[1].number = False, -1
    with pytest.raises(CallError) as caught:
        gemm(*given)
    assert caught.value.loc.file == __file__
    with pytest.raises(CallError) as caught:
        gemm(*(np.ones(p.shape, np.float16) for p in gemm.parameters))
    assert caught.value.loc.file == __file__
    assert caught.value.remedy == 'pass a copy of a on cuda, or compile with target="cpu"'
    assert fake.launches == []


def test_the_second_process_takes_the_code_from_the_cache(gemm, monkeypatch):
    ptx = gemm.asm
    monkeypatch.setattr(
        "tilewave.backend.nvidia.compiler.assembled", lambda *given: pytest.fail("it was compiled again")
    )
    sizes = kernels.sizes(M, N, K, block_m=128, block_n=128, block_k=64)
    again = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), half_gemm())
    assert again.asm == ptx
    assert again.build.program.code_for(ALIGNED) == gemm.build.program.code_for(ALIGNED)


def test_a_kernel_that_ran_tells_what_the_driver_made_of_it(gemm, fake, torch):
    gemm(*tensors(torch))
    assert gemm.resources.assembled.registers == 40
    assert gemm.resources.assembled.log == "ptxas info    : Used 40 registers"


def test_a_compiled_kernel_shows_what_was_emitted(gemm):
    assert gemm.asm.encode() == gemm.code_object
    assert "define ptx_kernel void @gemm(" in gemm.llvm_ir
    assert gemm.resources.waves == (12, 1)
