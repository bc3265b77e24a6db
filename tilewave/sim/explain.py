"""A report in sentences: what limits, what is read how often, what would change it."""

from __future__ import annotations

from tilewave.sim.report import NOTHING, Level, Report

WORDS = {
    "matrix": "the matrix units",
    "load latency": "latency of loads: the matrix units wait for the data of the next step",
    "start and end": "the start and end of tiles",
    "tail": "idle CUs or SMs in the last wave (wave quantization)",
    "HBM": "HBM",
    "last level": "the last-level cache",
    "L2 requests": "requests to L2",
    "bandwidth": "bandwidth: the bytes alone take that long",
}


DATA_WORDS = {"random": "random operands", "zeros": "operands of zeros"}

HITS = (
    "Hits are counted as a profiler counts them: requests of several CUs or SMs for one line, merged before L2, count "
    "once, and writes never miss. The percentage next to a bar is the share of all requested bytes that L2 delivers, "
    "without merging."
)
"""Explains why the two L2 percentages on one page differ."""


def passed_on(level: Level) -> str:
    """What a level asks of the next one; memory is the last."""
    return size(level.missed_bytes) if level.is_cache else NOTHING


def explain(report: Report) -> list[str]:
    """What a person would say of a launch."""
    said = [_limit(report), _reuse(report), _launch_waves(report)]
    if report.on_cliff:
        low, high = size(report.hbm_read_low_bytes), size(report.hbm_read_high_bytes)
        said.append(f"On a capacity cliff: a little more or less cache makes HBM read {low} to {high}.")
    if report.clock_hz is not None:
        said.append(f"The clock is {report.clock_hz / 1e9:.2f} GHz, as power limits it with {DATA_WORDS[report.data]}.")
    said.append(f"Time is good to ± {100 * report.seconds_error:.0f} %; fitted on {report.fitted_on}.")
    return said


def compare(report: Report, other: Report) -> str:
    """Return one line that compares a report with another: time, HBM reads, L2 hits and waves."""
    gain = other.seconds / report.seconds - 1
    parts = [f"{100 * gain:+.1f} % compared with {other.mapping}"]
    if abs(report.hbm_read_bytes / other.hbm_read_bytes - 1) > 0.01:
        parts.append(f"HBM reads {size(report.hbm_read_bytes)} instead of {size(other.hbm_read_bytes)}")
    if abs(report.l2_hit - other.l2_hit) > 0.005:
        parts.append(f"L2 hits {100 * report.l2_hit:.0f} % instead of {100 * other.l2_hit:.0f} %")
    if report.launch_waves != other.launch_waves:
        parts.append(f"{report.launch_waves} waves instead of {other.launch_waves}")
    if len(parts) == 1:
        parts.append("the same traffic")
    return ", ".join(parts)


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 999.5 * scale else f"{count / scale:.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _limit(report: Report) -> str:
    share = max(report.breakdown, key=lambda part: part.seconds)
    return f"Bottleneck: {WORDS[share.name]}, {100 * share.share:.0f} % of {duration(report.seconds)}."


def _reuse(report: Report) -> str:
    times = [
        f"{a.name} {a.hbm_read_bytes / a.distinct_bytes:.1f} times"
        for a in report.arrays
        if a.distinct_bytes and a.hbm_read_bytes
    ]
    asked = report.asked_bytes / report.distinct_bytes if report.distinct_bytes else 1.0
    read = f"HBM delivers {' and '.join(times)}" if times else "Nothing is read"
    return f"{read}; workgroups request their inputs {asked:.0f} times."


def _launch_waves(report: Report) -> str:
    most = max(launch_wave.tasks for launch_wave in report.over_time)
    last = report.over_time[-1].tasks
    launch_waves = "1 wave" if report.launch_waves == 1 else f"{report.launch_waves} waves"
    tail = f", the last {100 * last / most:.0f} % full" if last < most else ""
    return f"{launch_waves} of up to {most} tiles{tail}."
