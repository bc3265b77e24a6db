"""Register spills on an AMD chip are reported at the line that causes them."""

from types import SimpleNamespace

import pytest

from tilewave import WaveCompileOptions, f16, f32, wave_compile
from tilewave.errors import SpillWarning
from tilewave.kernels import gemm


def test_spilled_registers_are_told_at_the_author_s_line(monkeypatch):
    small = gemm((32, 32, 32), f16, f32, (32, 32, 32))
    made = wave_compile(WaveCompileOptions(subs=small.subs, target="gfx942"), small.kernel)
    resources = SimpleNamespace(vector_registers=512, accumulation_registers=256, spills=7)
    emulator = SimpleNamespace(chip=None, kernel=lambda name: SimpleNamespace(resources=resources))
    found = SimpleNamespace(Emulator=SimpleNamespace(from_assembly=lambda asm, cpu: emulator))
    monkeypatch.setattr("tilewave.backend.amd.program._emulator", lambda: found)
    monkeypatch.setattr("tilewave.emulator.statistics.waves_per_unit", lambda *given: 1)
    with pytest.warns(SpillWarning, match="gemm: 7 registers are spilled on gfx942") as told:
        assert made.build.program.registers == (512, 256, 7, 1)
    assert {warning.filename for warning in told} == {__file__}
