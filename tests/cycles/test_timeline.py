"""What each wave does in one iteration, and the picture of it."""

from xml.etree import ElementTree

from emulated_code import LARGE
from timed_loops import LOAD, PRODUCTS, loop_text

from tilewave.cycles import loop_model
from tilewave.cycles.timeline import loop_timeline
from tilewave.emulator.assembly import read_assembly
from tilewave.view.cycles_timeline import FILLS, cycles_timeline

SVG = "{http://www.w3.org/2000/svg}"


def timeline_of(text, **options):
    return loop_timeline(loop_model(read_assembly(text)), **options)


def stretches(wave):
    return [(each.activity, each.first, each.after) for each in wave.activities]


def test_a_wave_that_waits_for_its_load():
    """Load, wait until cycle 516 and the wait itself; the product goes on while the iteration ends."""
    found = timeline_of(loop_text([LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64), latency=500)
    (wave,) = found.waves
    (issue, wait, *_), (end, *_) = stretches(wave), stretches(wave)[::-1]
    assert {issue[0], wait[0]} <= {"issue", "wait for other units", "wait for global loads"} and end[2] == 548
    total = {name: sum(b - a for each, a, b in stretches(wave) if each == name) for name, _, _ in stretches(wave)}
    assert total["wait for global loads"] == 512 and total["multiply"] == 4
    assert sum(total.values()) == found.loop.cycles


def test_waves_that_take_turns_multiply_one_after_the_other():
    found = timeline_of(LARGE.text, latency=1000)
    assert {(wave.simd, wave.wave) for wave in found.waves} == {(wave % 4, wave) for wave in range(8)}
    for first, second in ((found.waves[simd], found.waves[simd + 4]) for simd in range(4)):
        busy = [
            {c for activity, a, b in stretches(w) for c in range(a, b, 4) if activity == "multiply"}
            for w in (first, second)
        ]
        assert not busy[0] & busy[1]
        assert 0.85 * found.loop.cycles < 4 * len(busy[0] | busy[1]) <= found.loop.cycles


def test_every_wave_has_a_row_that_is_as_wide_as_the_iteration():
    found = timeline_of(LARGE.text, latency=1500, workgroups=2)
    root = ElementTree.fromstring(cycles_timeline(found).svg())
    rows = [g for g in root.iter(f"{SVG}g") if g.get("class") == "wave"]
    assert len(rows) == 16
    widths = [sum(float(r.get("width")) for r in row.iter(f"{SVG}rect")) for row in rows]
    assert max(widths) - min(widths) < 1 and min(widths) > 800
    words = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    assert "workgroup 1, wave 7" in words and "2 workgroups of 8 waves" in words
    assert all(name in words for name in ("multiply", "issue", "wait at a barrier", "wait for global loads"))


def test_every_activity_has_its_own_colour():
    assert len({*FILLS.values()}) == len(FILLS)
