"""Cycles of whole K loops, and what a caller learns."""

import pytest
from emulated_code import LARGE, SMALL, kernel_text
from timed_loops import LOAD, PRODUCTS, cycles_of, loop_text

from tilewave.cycles import by_line, by_reason, conflicts_of, cycles_by_latency, loop_cycles
from tilewave.cycles.facts import COMPUTE_UNITS
from tilewave.emulator.assembly import read_assembly
from tilewave.emulator.chips import CHIP_NAMES, OPINIONS
from tilewave.emulator.findings import UnsupportedCode

CODES = {gemm.name: read_assembly(gemm.text) for gemm in (LARGE, *SMALL)}


def test_a_ping_pong_loop_hides_1000_cycles_of_latency_and_not_1500():
    """Its matrix units multiply for 64 instructions of 16 cycles of two waves."""
    found = cycles_by_latency(read_assembly(LARGE.text), "gemm")
    assert [one.latency_cycles for one in found] == [500, 1000, 1500]
    assert [one.matrix_cycles for one in found] == [2 * 64 * 16] * 3
    assert [one.cycles for one in found] == [2232, 2232, 2668]
    assert [round(one.utilization, 3) for one in found] == [0.918, 0.918, 0.768]
    assert all(one.takes_turns and one.is_periodic for one in found)
    assert (found[0].waves, found[0].instructions, found[0].counts["matrix"]) == (8, 111, 64)


def test_a_loop_that_waits_for_its_loads_at_once_takes_as_long_as_they_do():
    found = cycles_by_latency(read_assembly(SMALL[0].text))
    assert [one.cycles for one in found] == [828, 1328, 1828]
    assert not found[0].takes_turns


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("workgroups", [1, 2])
def test_instructions_and_stalls_of_a_wave_make_up_the_cycles(name, workgroups):
    found = loop_cycles(CODES[name], latency=700, workgroups=workgroups)
    stalled = sum(stall.cycles for stall in found.stalls)
    assert found.is_periodic
    assert 4 * found.instructions + stalled == pytest.approx(found.cycles)


@pytest.mark.parametrize("name", CODES)
def test_the_same_code_has_the_same_cycles_twice(name):
    assert loop_cycles(CODES[name], latency=900) == loop_cycles(CODES[name], latency=900)


def test_waves_take_turns_where_some_wait_at_a_barrier_before_the_loop():
    """Without that barrier all waves multiply at once, and load at once."""
    lines = LARGE.text.splitlines(keepends=True)
    extra = next(at for at, line in enumerate(lines) if line == "\ts_barrier\n" and "s_cbranch" in lines[at - 1])
    together = loop_cycles(read_assembly("".join([*lines[:extra], *lines[extra + 1 :]])), latency=1000)
    apart = loop_cycles(read_assembly(LARGE.text), latency=1000)
    assert apart.takes_turns and not together.takes_turns
    assert together.cycles > apart.cycles


def test_more_latency_is_never_faster():
    for code in CODES.values():
        cycles = [one.cycles for one in cycles_by_latency(code, None, (200, 500, 1000, 2000))]
        assert cycles == sorted(cycles)


def test_a_loop_whose_state_never_repeats_gets_an_average():
    """Waves that nothing keeps together run apart: the first of them reads LDS first, each time."""
    reads = [f"ds_read_b128 v[{at}:{at + 3}], v4" for at in range(64, 96, 4)] * 2
    found = cycles_of([PRODUCTS[0], *reads])
    assert not found.is_periodic
    assert found.cycles == pytest.approx(4 * 16 * 8, rel=0.03)


def test_the_latency_of_the_chip_is_used_where_none_is_given():
    body = [LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]]
    for chip in CHIP_NAMES:
        latency = COMPUTE_UNITS[chip].load_latency_cycles
        assert cycles_of(body, chip=chip) == cycles_of(body, chip=chip, latency=latency)


@pytest.mark.parametrize("chip", CHIP_NAMES)
def test_every_number_of_a_compute_unit_has_a_source(chip):
    unit = COMPUTE_UNITS[chip]
    assert unit.shared_read_bytes == OPINIONS[chip].read_bytes
    assert {source.field for source in unit.sources} == set(vars(unit)) - {"chip", "sources"}


def test_waves_may_be_given_for_kernels_that_do_not_say_them():
    assert cycles_of(PRODUCTS, lanes=1024, waves=4).cycles == cycles_of(PRODUCTS, lanes=256).cycles


def test_bank_conflicts_of_a_loop_are_found_by_running_an_iteration():
    """The rows of this kernel are padded by 16 bytes, and conflict."""
    code = CODES["gemm_gfx942"]
    lost = conflicts_of(code)
    assert sum(lost.values()) > 0 and all(code.instructions[at].mnemonic.startswith("ds_") for at in lost)
    assert loop_cycles(code, conflicts=lost).cycles > loop_cycles(code).cycles


# -- stalls ------------------------------------------------------------------------------------------------------------


def test_a_stall_names_the_authors_line():
    worst = by_line(loop_cycles(CODES["gemm_gfx942"], latency=500).stalls)[0]
    assert (worst.place, worst.reason, worst.cycles) == ("gemm.py:10", "vmcnt", 472)
    assert worst.instruction.text == "s_waitcnt vmcnt(1)"


def test_a_stall_of_code_without_source_lines_names_the_line_of_assembly():
    found = cycles_of([LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64, latency=500)
    text = loop_text([LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64).splitlines()
    worst = by_line(found.stalls)[0]
    number = int(worst.place.removeprefix("line "))
    assert "vmcnt(0)" in text[number - 1]


def test_stalls_of_one_line_are_added_up_and_those_of_products_left_out():
    found = loop_cycles(CODES["gemm_gfx942"], latency=500)
    lines, reasons = by_line(found.stalls), by_reason(found.stalls)
    assert "matrix unit" in reasons and all(line.reason != "matrix unit" for line in lines)
    assert sum(line.cycles for line in lines) == pytest.approx(sum(reasons.values()) - reasons["matrix unit"])
    assert len({(line.place, line.reason) for line in lines}) == len(lines)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_kernel_without_a_loop_is_refused():
    with pytest.raises(UnsupportedCode, match="k has no loop with matrix instructions"):
        loop_cycles(read_assembly(kernel_text("\ts_nop 0")))


def test_one_of_several_kernels_must_be_named():
    text = loop_text(PRODUCTS)
    two = read_assembly(text + text.replace("\nk:", "\nk2:").replace("kernel k\n", "kernel k2\n").replace(".L1", ".L2"))
    with pytest.raises(UnsupportedCode) as error:
        loop_cycles(two)
    assert str(error.value) == "the code has 2 kernels\n  name one of them: k, k2"
    with pytest.raises(UnsupportedCode, match="no kernel is called 'k3'"):
        loop_cycles(two, "k3")
    assert loop_cycles(two, "k2").cycles == loop_cycles(two, "k").cycles
