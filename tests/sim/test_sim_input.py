"""What cannot be simulated is refused with words; what is odd is answered rightly; memory stays bounded."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from launches import chip

from tilewave.machine import L2, LastLevel
from tilewave.mapping import MappingError
from tilewave.sim import Gemm, Residency, SimError, simulate


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"m": 0}, "a gemm's m is a whole number from 1 to 2,147,483,647, not 0"),
        ({"k": -4}, "a gemm's k is a whole number"),
        ({"n": 12.5}, "a gemm's n is a whole number"),
        ({"m": True}, "a gemm's m is a whole number"),
        ({"m": 1 << 40}, "a gemm's m is a whole number"),
        ({"tile": (128, 256)}, "a tile has three sizes, not (128, 256)"),
        ({"tile": (0, 256, 64)}, "a tile's m is a whole number"),
        ({"tile": [128, 256, 64]}, "a tile has three sizes"),
        ({"dtype": "f17"}, "unknown dtype 'f17'"),
        ({"out": "half"}, "unknown dtype 'half'"),
        ({"walk": "back"}, "unknown direction of K: 'back'"),
        ({"workgroups": 0}, "a launch's number of workgroups is a whole number"),
        ({"m": 1 << 20, "n": 1 << 20}, "has 33,554,432 tiles of 128×256; at most 4,194,304 are simulated"),
    ],
    ids=str,
)
def test_gemms_that_cannot_be_are_refused(change, said):
    with pytest.raises(SimError) as error:
        Gemm(**{"m": 512, "n": 512, "k": 512, **change})
    assert said in str(error.value)


def test_other_mistakes_are_named():
    gemm = Gemm(512, 512, 512)
    with pytest.raises(SimError, match="unknown engine 'exact'"):
        simulate(gemm, "H200", engine="exact")
    with pytest.raises(SimError, match="a machine is one of"):
        simulate(gemm, 7)
    with pytest.raises(MappingError, match="there is no mapping"):
        simulate(gemm, "H200", "gruoped(4)")
    with pytest.raises(SimError, match="occupancy is a whole number from 1 to 64"):
        Residency(occupancy=0)
    with pytest.raises(SimError, match="skew_steps is a number of steps"):
        Residency(skew_steps=-1.0)
    with pytest.raises(SimError, match="a gemm has no symbols"):
        simulate(gemm, "H200", symbols={"WGM": 4})
    with pytest.raises(SimError, match="H200 has no matrix rate for f32") as error:
        simulate(Gemm(512, 512, 512, dtype="f32"), "H200")
    assert "f16, bf16" in str(error.value)


def test_a_formula_that_loses_tiles_is_not_simulated():
    def broken(w, grid):
        return w % grid.rows, w % grid.cols

    with pytest.raises(MappingError, match="broken fails on a grid of 4×2: workgroups 0 and 4 both compute"):
        simulate(Gemm(512, 512, 512), "H200", broken)
    columns = simulate(Gemm(512, 512, 512), "H200", lambda w, grid: (w % grid.rows, w // grid.rows))
    assert columns.hbm_read_bytes == simulate(Gemm(512, 512, 512), "H200", "linear()").hbm_read_bytes


@pytest.mark.parametrize("engine", ["closed", "trace"])
def test_a_tile_larger_than_the_matrix_reads_the_matrix_once(engine):
    report = simulate(Gemm(5, 7, 3), "MI300X", engine=engine)
    assert report.asked_bytes == report.hbm_read_bytes == (5 + 7) * 3 * 2
    assert report.hbm_write_bytes == 5 * 7 * 2
    assert report.tasks == report.launch_waves == 1


@pytest.mark.parametrize("engine", ["closed", "trace"])
def test_caches_smaller_than_a_slab_never_hit_across_beats(engine):
    gemm = Gemm(64, 64, 128, (16, 16, 8), workgroups=1)
    machine = chip(units_per_xcd=1, l2=L2(128), last_level=LastLevel(128))
    report = simulate(gemm, machine, engine=engine)
    assert report.hbm_read_bytes == pytest.approx(report.asked_bytes)


def test_more_workgroups_than_tiles_and_one_unit_are_fine():
    few = simulate(Gemm(256, 256, 64, workgroups=1000), "MI300X")
    assert few.workgroups == 2 and few.launch_waves == 1
    one = simulate(Gemm(1024, 1024, 64), chip(units_per_xcd=1))
    assert one.launch_waves == one.tasks == 32


def test_a_single_row_and_a_single_column_of_tiles():
    for shape in ((1, 1 << 16, 64), (1 << 16, 1, 64)):
        report = simulate(Gemm(*shape), "MI355X", "hilbert()")
        assert report.hbm_read_bytes == report.distinct_bytes


def test_the_report_is_plain_json():
    import json

    report = simulate(Gemm(1024, 1024, 1024), "MI300X", "grouped(4)")
    read = json.loads(json.dumps(report.to_json()))
    assert read["l2_hit"] == report.l2_hit and read["tflops"] == report.tflops and read["limit"] == report.limit
    assert [level["name"] for level in read["levels"]] == ["L2", "last level", "HBM"]
    with pytest.raises(AttributeError):
        report.l2_hit = 1.0


MILLIONS = """
import resource, time
from tilewave.sim import Gemm, simulate
start = time.process_time()
report = simulate(Gemm(1 << 17, 1 << 17, 4096, tile=(64, 64, 64)), "MI300X", "xcd_contiguous(8) >> grouped(8)")
print(report.tasks, time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_a_grid_of_millions_stays_in_bounded_memory():
    """4,194,304 tiles, the most there may be: under 3 GB and two minutes of one core."""
    run = subprocess.run([sys.executable, "-c", MILLIONS], capture_output=True, text=True, check=True)
    tasks, seconds, megabytes = map(float, run.stdout.split())
    assert tasks == 1 << 22
    assert seconds < 120 and megabytes < 3000


def test_too_long_a_trace_is_refused_before_it_takes_the_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    machine = chip(xcds=1024, units_per_xcd=1)
    with pytest.raises(SimError, match=r"a trace of this launch would follow .* lines"):
        simulate(Gemm(4096, 8192, 64, (16, 16, 8)), machine, engine="trace")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes
