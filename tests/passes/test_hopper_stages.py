"""WaveCompileOptions(num_stages=n) on Hopper: the stages that TMA fills, and the error if they do not fit."""

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array

from tilewave import *
from tilewave.errors import ConstraintError
from tilewave.ir.ops import MakeMbarriers
from tilewave.ir.rewrite import walk
from tilewave.kernels import gemm


def compiled(shape, tile, out=f32, **options):
    made = gemm(shape, f16, out, tile=tile)
    return wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a", **options), made.kernel)


def stages(kernel):
    (found,) = {op.result.type.shape for op in walk(kernel.build.lanes.body) if isinstance(op, MakeMbarriers)}
    return found[0]


def test_unsaid_there_are_four_or_as_many_as_fit():
    assert stages(compiled((256, 512, 256), (128, 256, 64), f16)) == 4
    assert stages(compiled((256, 512, 256), (128, 256, 128), f16)) == 2


@pytest.mark.parametrize("num_stages", [1, 2, 3, 6])
def test_as_many_as_are_asked_for(num_stages):
    kernel = compiled((64, 128, 160), (64, 64, 32), num_stages=num_stages)
    assert stages(kernel) == num_stages
    rng = np.random.default_rng(num_stages)
    a, b, c = random_array(rng, (64, 160), f16), random_array(rng, (128, 160), f16), poisoned((64, 128), f32)
    kernel.interpret(a, b, c, level="lane", order="random", seed=num_stages)
    check_product(c, a, b)


def test_stages_that_do_not_fit_are_refused_with_what_takes_how_much():
    with pytest.raises(ConstraintError) as caught:
        compiled((256, 512, 256), (128, 256, 64), f16, num_stages=5)
    told = caught.value.what, *caught.value.remedy.splitlines()
    assert told[0] == "a workgroup needs 278,528 bytes of shared memory, but sm_90a has 232,448"
    assert any(line.startswith("81,920 bytes: 5x128x64xf16, from ") for line in told)
    assert told[-1] == "use smaller tiles, smaller steps, or fewer stages"
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize("num_stages", [0, -1, True, 2.0, "2"])
def test_a_number_of_buffers_is_a_whole_one(num_stages):
    with pytest.raises(TilewaveError, match="num_stages is"):
        compiled((256, 512, 256), (128, 256, 64), num_stages=num_stages)


def test_steps_of_a_ring_divide_nothing_and_count_in_32_bits():
    """Neither where tiles are multiplied nor where they are asked for."""
    blocks = compiled((256, 512, 8192), (128, 128, 64), f16, num_stages=6).asm.split("$L__BB")
    steps = [block for block in blocks if "mbarrier.try_wait" in block]
    assert ["wgmma.mma_async" in block for block in steps] == [True, False]
    said = [line.split()[0] for block in steps for line in block.splitlines()[1:] if line.startswith("\t")]
    assert len(said) > 30
    assert not [op for op in said if op.startswith(("mul.hi", "mul.wide", "rem", "div", "add.s64"))]
