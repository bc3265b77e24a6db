"""Each rule of the model, on a loop whose cycles are computed by hand; a slot is 4 cycles."""

from dataclasses import replace

import pytest
from timed_loops import DIRECT, LOAD, PRODUCTS, READS, STORE, cycles_of

from tilewave.cycles import by_reason
from tilewave.cycles.facts import COMPUTE_UNITS


def slots(count):
    return 4 * count


def test_a_matrix_instruction_keeps_its_unit_busy_for_its_passes():
    """The last of 8 products is issued in slot 28; add, compare and branch follow it, and 3 slots of the branch."""
    found = cycles_of(PRODUCTS)
    assert (found.cycles, found.matrix_cycles) == (slots(28 + 1 + 3 + 3), 8 * 16)
    assert by_reason(found.stalls) == {"matrix unit": slots(7 * 3), "branch": slots(3)}


def test_a_second_wave_on_the_unit_hides_the_end_of_the_loop():
    found = cycles_of(PRODUCTS, lanes=512)
    assert (found.cycles, found.utilization) == (2 * 8 * 16, 1)


def test_a_sum_goes_into_the_next_product_right_after_its_passes():
    assert cycles_of(PRODUCTS[:1] * 4).cycles == slots(3 * 4 + 1 + 3 + 3)


def test_another_instruction_reads_a_sum_three_slots_after_its_passes():
    found = cycles_of([PRODUCTS[0], "v_add_f32_e32 v3, v16, v16"])
    assert found.cycles == slots(4 + 3 + 1 + 3 + 3)
    assert by_reason(found.stalls)["register"] == slots(4 + 3 - 1)


def test_the_result_of_an_iteration_is_waited_for_in_the_next():
    """The sum is there in slot 7; the next iteration begins in slot 6 with its add."""
    wait = cycles_of(["v_add_f32_e32 v3, v16, v16", PRODUCTS[0]])
    assert wait.cycles == slots(4 + 3 + 1)


def test_a_transcendental_takes_four_slots_and_its_result_one_more():
    found = cycles_of([PRODUCTS[0], "v_exp_f32_e32 v3, v4", "v_add_f32_e32 v5, v3, v3"])
    assert found.cycles == slots(1 + 4 + 1 + 1 + 3 + 3)


def test_products_and_vector_instructions_share_a_port():
    """A wave's 8 products need 32 slots of the unit, but leave 3 of 4 to the 24 vector instructions of the other."""
    vector = ["v_add_f32_e32 v3, v4, v5"] * 24
    found = cycles_of([*PRODUCTS, *vector], lanes=512)
    assert found.cycles >= slots(2 * (8 + 24))
    assert by_reason(found.stalls)["issue port"] > 0


def test_lds_serves_128_or_256_bytes_per_cycle():
    """4 waves read 16 times 1024 bytes, queued across the barrier; at twice the rate LDS idles there."""
    body = [PRODUCTS[0], *READS, *READS, "s_barrier"]
    old, new = (cycles_of(body, chip=chip) for chip in ("gfx942", "gfx950"))
    assert old.cycles == 4 * 16 * 1024 / 128
    assert 4 * 16 * 1024 / 256 <= new.cycles <= 4 * 16 * 1024 / 256 + slots(3)
    assert max(by_reason(old.stalls), key=by_reason(old.stalls).get) == "LDS queue"


def test_bank_conflicts_lengthen_what_lds_does():
    """The reads are at positions 2 to 17 of the code; each loses 8 cycles of 8."""
    body = [PRODUCTS[0], *READS, *READS, "s_barrier"]
    assert cycles_of(body, conflicts=dict.fromkeys(range(2, 18), 8.0)).cycles == 2 * cycles_of(body).cycles


def test_lgkmcnt_waits_for_the_data_of_the_last_read():
    """One wave: the 8 reads are done after 64 cycles, and their data come 64 cycles later, in slot 32."""
    found = cycles_of([*READS, "s_waitcnt lgkmcnt(0)", PRODUCTS[0]], lanes=64)
    assert found.cycles == slots(32 + 1 + 1 + 3 + 3)
    counted = cycles_of([*READS, "s_waitcnt lgkmcnt(3)", PRODUCTS[0]], lanes=64)
    assert counted.cycles == found.cycles - 3 * 8


def test_l1_serves_64_bytes_per_cycle():
    found = cycles_of([PRODUCTS[0], *[LOAD] * 16, "s_barrier"])
    assert found.cycles == 4 * 16 * 1024 / 64
    assert max(by_reason(found.stalls), key=by_reason(found.stalls).get) == "global queue"


@pytest.mark.parametrize("latency", [500, 1000, 1500])
def test_vmcnt_0_waits_for_a_whole_latency(latency):
    """One wave: 16 cycles of L1 and the latency, then wait, product and the end of the loop."""
    found = cycles_of([LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64, latency=latency)
    assert found.cycles == 16 + latency + slots(2 + 3 + 3)
    assert by_reason(found.stalls)["vmcnt"] == 16 + latency - slots(1)


def test_vmcnt_1_leaves_a_load_two_iterations():
    found = cycles_of([LOAD, "s_waitcnt vmcnt(1)", PRODUCTS[0]], lanes=64, latency=500)
    assert found.cycles == (16 + 500 + slots(2 + 3 + 3)) / 2


def test_the_number_that_encodes_a_wait_is_read_too():
    body = [LOAD, "s_waitcnt 0x0f70", PRODUCTS[0]]
    assert cycles_of(body, lanes=64, latency=500).cycles == 16 + 500 + slots(2 + 3 + 3)


def test_a_barrier_keeps_two_waves_of_a_unit_together():
    """The second wave's last product is issued in slot 60; only then both may go on, through 7 slots of the end."""
    found = cycles_of([*PRODUCTS, "s_barrier"], lanes=512)
    assert found.cycles == slots(60 + 1 + 1 + 3 + 3)
    assert by_reason(found.stalls)["barrier"] == slots(32) / 2


def test_the_wave_of_higher_priority_goes_first():
    """Without priorities the first wave's vector instructions hold up the second wave's products."""
    vector = ["v_add_f32_e32 v3, v4, v5"] * 16
    usual = cycles_of([*PRODUCTS, *vector], lanes=512)
    first = cycles_of(["s_setprio 1", *PRODUCTS, "s_setprio 0", *vector], lanes=512)
    assert usual.cycles > 1.1 * first.cycles


def test_one_workgroup_multiplies_while_another_waits():
    """4 waves load 64 cycles long and wait 500; their 32 products take 512 cycles, which hide another workgroup's."""
    body = [LOAD, "s_waitcnt vmcnt(0)", "s_barrier", *PRODUCTS * 4]
    alone, two = (cycles_of(body, latency=500, workgroups=count) for count in (1, 2))
    assert alone.cycles == 64 + 500 + slots(2 + 31 * 4 + 1 + 3 + 3)
    assert two.cycles == alone.cycles and two.matrix_cycles == 2 * alone.matrix_cycles


def test_data_of_direct_loads_take_lds_when_they_arrive():
    """4 waves: 32 reads of 4 cycles, and 4 loads whose 1024 bytes are written in 8."""
    reads = [*READS] * 4
    alone = cycles_of([PRODUCTS[0], *reads, "s_barrier"], chip="gfx950")
    both = cycles_of([PRODUCTS[0], *[DIRECT] * 4, *reads, "s_barrier"], chip="gfx950")
    assert 4 * 32 * 4 <= alone.cycles <= 4 * 32 * 4 + slots(3)
    assert 4 * (32 * 4 + 4 * 8) <= both.cycles <= 4 * (32 * 4 + 4 * 8) + slots(12)


@pytest.mark.parametrize(("pause", "count"), [("s_nop 7", 8), ("s_sleep 1", 16), ("s_nop 0", 1)])
def test_a_wave_that_pauses_issues_nothing(pause, count):
    assert cycles_of([pause, PRODUCTS[0]]).cycles == slots(count + 1 + 3 + 3)


def test_a_store_is_not_waited_for_without_a_wait():
    assert cycles_of([STORE, PRODUCTS[0]], lanes=64).cycles == slots(2 + 3 + 3)
    waited = cycles_of([STORE, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64)
    assert waited.cycles == 16 + 200 + slots(2 + 3 + 3)


def test_stores_take_l1_too():
    assert cycles_of([PRODUCTS[0], *[STORE] * 16, "s_barrier"]).cycles == 4 * 16 * 1024 / 64


def test_loads_arrive_at_the_rate_of_the_compute_unit():
    """The last of 4 loads arrives 3 times 64 cycles after the first, at 16 bytes per cycle."""
    slow = replace(COMPUTE_UNITS["gfx942"], load_bytes=16)
    found = cycles_of([*[LOAD] * 4, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64, latency=500, unit=slow)
    assert found.cycles == 16 + 500 + 3 * 64 + slots(2 + 3 + 3)


def test_lgkmcnt_counts_15_accesses():
    """The first of 16 reads of 2 cycles is there after 66 cycles, in slot 17, and only then the last is issued."""
    found = cycles_of([*["ds_read_b32 v64, v4"] * 16, "s_waitcnt lgkmcnt(0)", PRODUCTS[0]], lanes=64)
    last = slots(17) + 2 + 64
    assert found.cycles == slots(-(-last // 4) + 2 + 3 + 3)


def test_scalar_loads_are_waited_for():
    body = ["s_load_dwordx2 s[8:9], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", PRODUCTS[0]]
    assert cycles_of(body).cycles == 200 + slots(2 + 3 + 3)
