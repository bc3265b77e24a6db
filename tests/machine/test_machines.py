"""Machines: facts with sources, and strict user-defined descriptions."""

from __future__ import annotations

import csv
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from launches import chip

from tilewave.machine import L2, MACHINES, Hbm, Machine, MachineError, Merging, UnitRun, find, find_or_load, load
from tilewave.machine.cards import STANDING_FOR
from tilewave.sim import Gemm, simulate

TOML = """
name = "My chip"
target = "gfx942"
xcds = 4
units_per_xcd = 20
clock_hz = 2e9

[l2]
bytes = 4194304
ways = 16

[last_level]
bytes = 134217728

[hbm]
bytes = 64000000000
bytes_per_second = 3e12

[rates]
f16 = 400e12

[sources]
l2 = "a data sheet"
"""


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_number_of_a_machine_has_a_source(machine):
    numbers = {f.name for f in fields(Machine)} - {"name", "target", "sources", "dispatch_order"}
    missing = {name for name in numbers if getattr(machine, name) not in (None, ()) and not machine.source(name)}
    assert not missing
    assert len({s.field for s in machine.sources}) == len(machine.sources)


def test_machines_are_found_by_name_in_any_case():
    assert find("mi300x") is MACHINES["MI300X"]
    assert find_or_load("H200").units == 132
    with pytest.raises(MachineError, match="unknown machine 'MI300'; did you mean 'MI300X'") as error:
        find("MI300")
    assert error.value.remedy.startswith("The machines are MI300X, MI325X")


@pytest.mark.parametrize("card", STANDING_FOR.values(), ids=STANDING_FOR)
def test_a_chip_in_the_place_of_a_machine_names_the_card_that_stands_for_it(card):
    with pytest.raises(MachineError, match=f"unknown machine '{card.target}'; did you mean '{card.name}'"):
        find(card.target)


def test_rates_follow_from_units_and_clock():
    """Matrix throughput a cycle and unit is a power of two: a typing error would show."""
    for machine in MACHINES.values():
        per_cycle = machine.flops("f16") / machine.units / machine.clock_hz
        assert per_cycle == pytest.approx(2 ** round(np.log2(per_cycle)), rel=2e-3), machine.name
        assert machine.flops("i8") == pytest.approx(2 * machine.flops("f16"), rel=1e-3)


def test_xcds_are_dealt_in_turn_and_partitions_by_their_seats():
    xcd, _, _ = find("MI300X").places()
    assert xcd[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert np.bincount(xcd).tolist() == [38] * 8
    _, partition, group = find("H200").places()
    assert np.bincount(partition).tolist() == [66, 66]
    assert np.bincount(group).tolist() == [16] * 8 + [4]


def test_a_machine_of_ones_own(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text(TOML)
    machine = load(path)
    assert (machine.name, machine.units, machine.l2.ways, machine.flops("f16")) == ("My chip", 80, 16, 4e14)
    assert machine.source("l2") == "a data sheet"
    report = simulate(Gemm(4096, 4096, 4096), machine, "xcd_contiguous(4) >> grouped(4)")
    assert report.seconds_error == 0.5 and "no row of this machine is known" in report.fitted_on


WRONG = {
    "units_per_xcd = 20": ("units_per_xcd = 0", "units_per_xcd is a whole number of at least 1, not 0"),
    "xcds = 4": ("xcds = 4.5", "xcds is a whole number of at least 1, not 4.5"),
    "ways = 16": ("way = 16", "l2.way is no field"),
    "clock_hz = 2e9": ("", "clock_hz is missing"),
    'name = "My chip"': ("name = 7", "name is a text, not 7"),
    "bytes_per_second = 3e12": ("bytes_per_second = -1.0", "hbm.bytes_per_second is a number above 0, not -1.0"),
    "[rates]\nf16 = 400e12": ("[rates]\nf16 = inf", "the rate of f16 is a number above 0, not inf"),
    'l2 = "a data sheet"': ('l3 = "a data sheet"', "a source is given for 'l3', which is no field"),
    "xcds = 4\n": ("xcds = 1000000\n", "20,000,000 units are more than 65,536"),
    "clock_hz": ("clock_hz =", "is no TOML"),
}


@pytest.mark.parametrize(("right", "wrong"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_description_is_named(right, wrong, tmp_path):
    text, said = wrong
    path = tmp_path / "chip.toml"
    path.write_text(TOML.replace(right, text, 1))
    with pytest.raises(MachineError) as error:
        load(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(MachineError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")


HOSTILE = {
    "deep lists": ("xcds = " + "[" * 100_000, "its lists or tables are nested too deep"),
    "a number of 5,000 digits": ("xcds = " + "9" * 5000, "is no TOML: "),
    "a number of 4,000 digits": (TOML.replace("xcds = 4", "xcds = " + "9" * 4000), "not a number of 13288 bits"),
    "a rate of 4,000 digits": (TOML.replace("clock_hz = 2e9", "clock_hz = " + "9" * 4000), "not a number of 13288"),
    "a path as target": (TOML.replace("gfx942", "../../x"), "its target is a word such as gfx942 or sm_90a"),
    "an unknown dtype": (TOML.replace("f16 =", "f17 ="), "a rate is given for 'f17'; the dtypes are f64, f32, f16"),
    "bytes that are no text": (b"\xff\xfe", "is no TOML: "),
    "more than a description has": ("#" * (1 << 19), "cannot be read: it has 524,288 bytes"),
    "a name without end": (TOML.replace("My chip", "x" * 1000), "its name is a text of 1 to 80 characters"),
    "a name with a bell": (TOML.replace("My chip", "x\\u0007"), "its name is a text of 1 to 80 characters"),
}


@pytest.mark.parametrize("text, said", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_description_is_refused_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "chip.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MachineError) as error:
        load(path)
    assert said in str(error.value) and len(str(error.value)) < 500


def test_what_is_no_plain_file_is_no_description(tmp_path):
    pipe, link = tmp_path / "pipe.toml", tmp_path / "zero.toml"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path in (pipe, link, tmp_path):
        with pytest.raises(MachineError, match="cannot be read: it is not a plain file"):
            load(path)


def test_seats_must_fit_the_machine():
    good = chip(xcds=2, units_per_xcd=2, dispatch_order=(UnitRun(2, xcd=1), UnitRun(2, xcd=0)))
    assert good.places()[0].tolist() == [1, 1, 0, 0]
    for dispatch_order, said in {
        (UnitRun(3),): "its dispatch_order holds 3 units, but there are 4",
        (UnitRun(4),): "each of 2 xcds 2 units",
        (UnitRun(2, xcd=5), UnitRun(2)): r"dispatch_order\[0\].xcd is from 0 to 1, not 5",
        (UnitRun(2, xcd="a"), UnitRun(2)): r"dispatch_order\[0\].xcd is from 0 to 1, not 'a'",
        (UnitRun(1 << 59), UnitRun(2)): "its dispatch_order holds 576460752303423490 units, but there are 4",
        (UnitRun(2, partition=3), UnitRun(2, xcd=1)): "a run's partition is from 0 to 0",
    }.items():
        with pytest.raises(MachineError, match=said):
            chip(xcds=2, units_per_xcd=2, dispatch_order=dispatch_order)


@pytest.mark.parametrize(
    "change",
    [
        {"xcds": 0},
        {"units_per_xcd": 0},
        {"l2": L2(0)},
        {"l2": L2(1 << 20, partitions=9)},
        {"hbm": Hbm(1, 0.0)},
        {"merging": Merging(0, units=2)},
        {"merging": Merging(4, units=0)},
        {"xcds": True},
    ],
    ids=str,
)
def test_machines_that_cannot_be_are_refused(change):
    with pytest.raises(MachineError, match="machine small: "):
        chip(**change)


def test_a_merge_group_is_a_run_of_units_of_one_xcd():
    """Two xcds dealt in turn, five units each, two in a group: the last of an xcd is alone."""
    machine = chip(xcds=2, units_per_xcd=5, merging=Merging(4, units=2))
    assert machine.places()[2].tolist() == [0, 3, 0, 3, 1, 4, 1, 4, 2, 5]
    ordered = replace(machine, dispatch_order=(UnitRun(5, xcd=1), UnitRun(5, xcd=0)))
    assert ordered.places()[2].tolist() == [3, 3, 4, 4, 5, 0, 0, 1, 1, 2]
    assert replace(ordered, merging=None).places()[2].tolist() == [1] * 5 + [0] * 5


def test_merging_less_means_more_requests():
    gemm = Gemm(4096, 4096, 4096, workgroups=132)
    h200 = find("H200")
    merged, single = (simulate(gemm, m, "grouped(8)") for m in (h200, replace(h200, merging=Merging(1, units=16))))
    assert merged.l2_request_bytes < single.l2_request_bytes == single.asked_bytes + single.hbm_write_bytes


def test_data_files_are_read_as_they_are(request):
    """The rows that validation uses are those of the files, none left out."""
    from tilewave.sim import measured

    folder = request.config.rootpath / "tilewave" / "sim" / "data"
    counts = {path.name: len(list(csv.DictReader(path.read_text().splitlines()))) for path in folder.glob("*.csv")}
    assert counts == {
        "h200_l2_counters.csv": len(measured.counters()),
        "h200_unseen_counters.csv": len(measured.unseen_counters()),
        "h200_short_counters.csv": len(measured.short_counters()),
        "h200_to_and_fro.csv": len(measured.own_kernels()),
        "published_gemm_cache_rates.csv": len(measured.published_rates()),
        "wave_reordering.csv": len(measured.reorderings()),
        "h200_gemm_baselines.csv": len(measured.baselines()),
    }
    assert counts["h200_l2_counters.csv"] == 120


def test_a_power_limit_is_read_from_a_file(tmp_path):
    text = TOML + "\n[power]\nzeros = 1.5\n[power.clocks]\nf16 = 1.2e9\nbf16 = 1.3e9\n"
    (tmp_path / "chip.toml").write_text(text)
    card = load(tmp_path / "chip.toml")
    assert (card.sustained_hz("f16"), card.sustained_hz("bf16")) == (1.2e9, 1.3e9)
    assert card.sustained_hz("i8") == 1.2e9  # the lowest that is known
    assert card.sustained_hz("f16", "zeros") == pytest.approx(1.8e9) and card.sustained_hz("bf16", "zeros") == 1.95e9
    assert replace(card, clock_hz=1.5e9).sustained_hz("f16", "zeros") == 1.5e9


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[power]\nzeros = 1.5\n", "power has no clocks"),
        ("[power.clocks]\n", "power has no sustained clock"),
        ("[power.clocks]\nf99 = 1e9\n", "a sustained clock is given for 'f99'"),
        ("[power.clocks]\nf16 = 0\n", "the sustained clock of f16 is a number above 0"),
        ("[power]\nzeros = -1\n[power.clocks]\nf16 = 1e9\n", "power.zeros is a number above 0"),
    ],
)
def test_an_impossible_power_limit_is_refused(tmp_path, given, said):
    (tmp_path / "chip.toml").write_text(TOML + "\n" + given)
    with pytest.raises(MachineError, match=said):
        load(tmp_path / "chip.toml")


def test_sustained_clocks_are_those_that_amd_names():
    """654 TFLOP/s at 1115 MHz are 94 % of what the matrix units do at that clock."""
    card = find("MI300X")
    utilization = 654e12 / card.flops("f16") * card.clock_hz / 1.115e9
    assert 0.93 < utilization < 0.95
    assert card.sustained_hz("f16") * utilization ** (-1 / 3) == pytest.approx(1.115e9)
    assert card.sustained_hz("f16") < find("MI325X").sustained_hz("f16") < find("MI355X").sustained_hz("f16")
