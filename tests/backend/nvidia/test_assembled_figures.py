"""What `tilewave compile --target sm_90a` reports on registers, spills and occupancy, with and without an assembler."""

import json
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from tilewave.backend.nvidia import ptxas
from tilewave.cli.main import main
from tilewave.machine.chips import CHIPS

GEMM = Path(__file__).parents[3] / "examples" / "gemm.py"
LOG = """ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    {spilled} bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""


@pytest.fixture
def compiled(monkeypatch, capsys, tmp_path):
    """The table and the JSON of a compilation, with a ptxas that says what is asked, or with none."""

    def run(log):
        folder = tmp_path / "bin"
        folder.mkdir()
        if log:
            tool = folder / "ptxas"
            tool.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{log}END\n")
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("COLUMNS", "200")
        ptxas.assemble_ptx.cache_clear()
        texts = []
        for words in (["--json"], []):
            monkeypatch.setattr("sys.argv", ["tilewave", "compile", str(GEMM), "--target", "sm_90a", *words])
            with suppress(SystemExit):
                main()
            texts.append(capsys.readouterr().out)
        return json.loads(texts[0])["gemm"], texts[1]

    yield run
    ptxas.assemble_ptx.cache_clear()


def test_registers_spills_and_occupancy_are_told(compiled):
    record, table = compiled(LOG.format(registers=168, spilled=0))
    assert (record["registers"], record["spilled_bytes"]) == (168, 0)
    warps = 1
    for count in record["waves"]:
        warps *= count
    by_registers = 65536 // (168 * 32 * warps)
    by_shared = (228 << 10) // (record["shared_bytes"] + (1 << 10))
    assert record["workgroups_per_sm"] == min(64 // warps, by_registers, by_shared)
    assert record["occupancy"] == pytest.approx(record["workgroups_per_sm"] * warps / 64, abs=1e-4)
    for row in ("registers", "spilled bytes", "occupancy", "CTAs per SM"):
        assert f"│ {row} " in table


def test_stages_tma_and_wgmma_are_reported(compiled):
    record, table = compiled("")
    assert record["num_stages"] >= 2 and {*record["tma_loads"]} == {"a", "b"} and record["wgmma"]
    for row in ("stages", "TMA loads", "wgmma tile of a warpgroup"):
        assert f"│ {row} " in table


def test_a_spill_is_told(compiled):
    record, _ = compiled(LOG.format(registers=255, spilled=24))
    assert (record["registers"], record["spilled_bytes"]) == (255, 48)


def test_without_an_assembler_the_table_says_what_is_missing(compiled):
    record, table = compiled("")
    assert record["registers"] is None and record["occupancy"] is None
    told = "registers, spilled bytes, occupancy, CTAs per SM │ unknown: ptxas (CUDA toolkit)"
    assert told in table


@pytest.mark.parametrize("log", ["", LOG.format(registers=100, spilled=0)])
def test_no_row_is_empty(compiled, log):
    _, table = compiled(log)
    rows = [line.split("│")[1:3] for line in table.splitlines() if line.startswith("│")]
    assert rows and all(value.strip() for _, value in rows)


def test_workgroups_share_a_processor_by_what_there_is_least_of():
    chip = CHIPS["sm_90a"]
    assert chip.workgroups_together(4, 32, 1024) == 16  # 64 warps
    assert chip.workgroups_together(4, 128, 1024) == 4  # 65,536 registers
    assert chip.workgroups_together(4, 32, 100 << 10) == 2  # 228 KB, one of them taken from each
    assert chip.workgroups_together(8, 255, 0) == 1
