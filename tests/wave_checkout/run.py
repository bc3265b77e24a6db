"""Run the tests of a checkout of Wave and print a table of verdicts."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = "TILEWAVE_WAVE_CHECKOUT"
OF_WAVES_COMPILER = (
    "asm",
    "cache_test",
    "jupyter_test",
    "roundtrip_test",
    "test_subprocess_protocol",
    "test_water",
    "visualization_test",
    "water_e2e_test",
    "wave_sim_test",
    "wave_utils_test",
)
"""Files that test Wave's own compiler, and no kernel."""
WRITES_FILES = (
    "test_dump_vmfb",
    "test_dump_intermediates",
    "testGemmBench",
    "testGemmCodegen",
    "testGemmDumpOverrideSchedule",
    "testGemmGlobalToLDS",
    "testScaledBatchedGemmMXFP4Codegen",
    "testGFX1250ScaledGemmMXFP4Codegen",
    "test_gfx1250_tbuf_gemm_codegen",
)
"""Functions that test the files or the code that Wave's compiler writes."""
SECONDS = 150
EACH = 1
"""How many of a function's parameters are run."""


class TooLong(Exception):
    """A test ran longer than `SECONDS`."""


@dataclass
class Verdict:
    """What became of a test function."""

    passed: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    templates: set[str] = field(default_factory=set)

    @property
    def word(self) -> str:
        if self.wrong:
            return "WRONG"
        return ("runs" if not self.refused else "partly") if self.passed else "no"

    @property
    def reason(self) -> str:
        return next(iter([*self.wrong, *self.refused]), "")


class Runner:
    """A plugin of pytest's that keeps few parameters of each function, and what became of them."""

    def __init__(self, each: int) -> None:
        self.each = each
        self.verdicts: dict[str, Verdict] = defaultdict(Verdict)

    def pytest_collection(self) -> None:
        """Load templates whose names begin with `test_` as the others, and not as pytest loads tests."""
        from stand_in import Finder

        sys.meta_path.sort(key=lambda finder: not isinstance(finder, Finder))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept: Counter[str] = Counter()
        chosen = []
        for item in items:
            item.own_markers[:] = [mark for mark in item.own_markers if not _is_flaky(mark)]
            if any(mark.name == "skip" for mark in item.iter_markers()) or item.originalname in WRITES_FILES:
                continue
            kept[_function(item)] += 1
            if kept[_function(item)] <= self.each:
                chosen.append(item)
        items[:] = chosen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        import references
        from stand_in import UNDER_WAY, OnTheHost

        UNDER_WAY.clear()
        references.current.clear()
        print(f"\n{item.name}", flush=True)
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        verdict = self.verdicts[_function(item)]
        try:
            with OnTheHost():
                found = yield
        except (Exception, pytest.fail.Exception) as error:
            (verdict.wrong if isinstance(error, AssertionError) else verdict.refused).append(_shown(error))
            raise
        except BaseException as skipped:
            verdict.refused.append(_shown(skipped))
            raise
        else:
            verdict.passed += 1
            return found
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            verdict.templates |= UNDER_WAY
            print(f"\n{_function(item)}: {verdict.word} {verdict.reason[:150]}", flush=True)


def _is_flaky(mark: Any) -> bool:
    """Return whether a test is skipped because it fails at times on GPUs."""
    return mark.name == "skip" and "flaky" in str((*mark.args, *mark.kwargs.values())).lower()


def _function(item: Any) -> str:
    return f"{Path(item.fspath).stem}.{item.originalname}"


def _too_long(*_: Any) -> None:
    raise TooLong(f"longer than {SECONDS} s of processor time")


def _shown(error: BaseException) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    at = getattr(error, "loc", None)
    return f"{type(error).__name__}: {first}" + (f" ({Path(at.file).name}:{at.line})" if at and at.line else "")


def main(words: list[str]) -> int:
    checkout = os.environ.get(CHECKOUT, "")
    if not checkout:
        print(f"set {CHECKOUT} to the folder of a checkout of Wave")
        return 2
    sys.path.insert(0, str(Path(__file__).parent))
    from stand_in import install

    install(Path(checkout))
    runner = Runner(EACH)
    tests = Path(checkout) / "tests"
    left_out = [f"--ignore-glob={tests}/*/{name}*" for name in OF_WAVES_COMPILER]
    chosen = ["-k", words[0]] if words else []
    how = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--run-e2e",
        "--tb=no",
        "--continue-on-collection-errors",
        "-o",
        "addopts=",
    ]
    pytest.main([str(tests / "kernel"), "--rootdir", checkout, *left_out, *chosen, *how], [runner])
    report(runner.verdicts)
    if not words:
        report_templates(Path(checkout), runner.verdicts)
    return 0


def report(verdicts: dict[str, Verdict]) -> None:
    """Print the table of test functions."""
    for name, verdict in sorted(verdicts.items()):
        print(f"| {name} | {verdict.word} | {verdict.reason} |")
    _count("test functions", [verdict.word for verdict in verdicts.values()])


def report_templates(checkout: Path, verdicts: dict[str, Verdict]) -> None:
    """Print the table of all templates: those that tests call, and those that are called here alone."""
    import templates

    found = {name: _of_template(name, verdicts) for name in templates.names(checkout)}
    print()
    for name, (word, reason) in found.items():
        print(f"| {name} | {word} | {reason} |")
    _count("templates", [word for word, _ in found.values()])


def _of_template(name: str, verdicts: dict[str, Verdict]) -> tuple[str, str]:
    """Return whether a template runs: in a test that calls it, or in a call of its own; else why it does not."""
    import templates

    alone = Verdict()
    if name in templates.ALONE:
        try:
            templates.run_alone(name)
            alone.passed += 1
        except Exception as error:
            (alone.wrong if isinstance(error, AssertionError) else alone.refused).append(_shown(error))
    calling = [alone, *(v for v in verdicts.values() if name in v.templates)]
    words = {v.word for v in calling if v is not alone or name in templates.ALONE}
    word = next((w for w in ("WRONG", "runs", "partly") if w in words), "no")
    return word, "" if word == "runs" else next((v.reason for v in calling if v.reason), "no test calls it")


def _count(what: str, words: list[str]) -> None:
    print(f"\n{len(words)} {what}: " + ", ".join(f"{n} {word}" for word, n in Counter(words).most_common()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
