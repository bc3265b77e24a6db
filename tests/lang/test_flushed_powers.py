"""exp2(x, flush=True): 0 below -126 on every target, and exp2 elsewhere."""

import numpy as np
import pytest
from kernels import G, M

from tilewave import *

ARGUMENTS = np.array(
    [
        *(-np.inf, -1e30, -150, -127, np.nextafter(np.float32(-126), np.float32(-127)), -126, -125.5, -1, -0.0),
        *(0, 1e-40, 0.5, 1, 127, 128, 1e30, np.inf, np.nan),
        *np.linspace(-130, 130, 47),
    ],
    np.float32,
)
ULPS = {"numpy": 0.5, "cpu": 1, "gfx942": 1, "gfx950": 1}
"""As far off as docs/ref/language.md says of exp2."""


@wave([WorkgroupConstraint(M, 64, 0)])
def powers(x: Memory[M, G, f32], y: Memory[M, G, f32]):
    write(exp2(read(x), flush=True), y)


def check(y, ulps):
    near = ARGUMENTS < 128
    want = np.where(ARGUMENTS < -126, 0, np.exp2(ARGUMENTS.astype(np.float64)))[near]
    assert (np.abs(y[near] - want) <= ulps * np.spacing(want.astype(np.float32)).astype(np.float64)).all()
    assert np.isnan(y[np.isnan(ARGUMENTS)]).all() and (y[ARGUMENTS >= 128] == np.inf).all()
    assert (y[ARGUMENTS < -126] == 0).all() and not np.signbit(y[ARGUMENTS < -126]).any()


@pytest.mark.parametrize("target", ULPS)
@np.errstate(over="ignore")
def test_what_would_be_denormal_is_zero(target):
    made = wave_compile(WaveCompileOptions(subs={M: len(ARGUMENTS)}, target=target), powers)
    y = np.full_like(ARGUMENTS, 7)
    if target in ("numpy", "cpu"):
        made(ARGUMENTS, y)
    else:
        made.emulate(ARGUMENTS, y)
    check(y, ULPS[target])


def test_hopper_has_an_instruction_for_it():
    made = wave_compile(WaveCompileOptions(subs={M: 64}, target="sm_90a"), powers)
    assert "ex2.approx.ftz.f32" in made.asm


def test_chips_of_amd_have_one_too():
    plain = wave([WorkgroupConstraint(M, 64, 0)])(_without_flush)
    both = [wave_compile(WaveCompileOptions(subs={M: 64}, target="gfx942"), k).asm.count("v_") for k in (powers, plain)]
    assert both[0] < both[1]


def _without_flush(x: Memory[M, G, f32], y: Memory[M, G, f32]):
    write(exp2(read(x)), y)
