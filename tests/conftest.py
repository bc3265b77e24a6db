"""Collects `check/*.ir`: run the named passes on the text, then match its CHECK lines."""

import gc
import io
import os
import re
from collections import Counter
from functools import partial
from math import prod
from zlib import crc32

import blas_threads  # noqa: F401
import kernels
import pytest
from browser import browser  # noqa: F401
from built_site import site  # noqa: F401
from checked import PASSES, SEPARATOR
from golden import golden, pytest_addoption  # noqa: F401
from gpu_here import why_no_gpu
from hypothesis import settings
from quick_code import quick_code
from sampled import examples

from tilewave.backend import assembler
from tilewave.backend.assembler import assemble
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify_part

ALMOST_A_CHECK = re.compile(r"^\s*//\s*CH[A-Z]*K(?!(-(NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-\d+))?:).*$", re.MULTILINE)

# Timings vary on shared machines; what a property test must do is finish, and that pytest sees to.
# In CI the examples are the same every time, so that a run is red for what changed; elsewhere they are new.
settings.register_profile(
    "tilewave",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    max_examples=examples(settings.default.max_examples),
)
settings.load_profile("tilewave")


@pytest.fixture(scope="session", autouse=True)
def _a_cache_of_its_own(tmp_path_factory):
    """Tests neither use what the user's cache and records hold nor fill them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TILEWAVE_RECORDS", "off")
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_same_target_everywhere():
    """What names no target is compiled for the CPU, on machines with a GPU too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWAVE_TARGET", "cpu")
        yield


@pytest.fixture(scope="session", autouse=True)
def _every_call_waits_for_its_best_kernel():
    """Which kernel serves a call, and whether its plan is kept, does not depend on what another thread has compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWAVE_BACKGROUND", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_kind_of_terminal():
    """rich keeps the codes of a style as the first terminal that showed it needed them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLORTERM", "truecolor")
        yield


def pytest_collection_finish(session):
    """The thousands of tests themselves need not be looked at whenever garbage is collected, and that seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_terminal_summary(terminalreporter):
    if reason := why_no_gpu():
        terminalreporter.write_line(f"tests/gpu is left out: {reason}")


def pytest_runtest_setup(item):
    """LLVM runs in this process: starting one takes longer than most kernels. The mark `llvm_child` starts one."""
    here = partial(_compiled_here, item.nodeid)
    assembler.assemble = assemble if item.get_closest_marker("llvm_child") else here


def _compiled_here(test, llvm_ir, machine):
    if machine.options:  # which LLVM keeps as long as its process lives
        return assemble(llvm_ir, machine)
    try:
        return quick_code(test, llvm_ir, machine)
    except RuntimeError as error:
        raise assembler.AssemblyFailed(str(error)) from None


@pytest.fixture
def target(request, monkeypatch):
    """What the kernels of a test are compiled for: `pytestmark = on("numpy", "cpu")` runs a module on both."""
    monkeypatch.setattr(kernels, "TARGET", request.param)
    return request.param


def pytest_collect_directory(path, parent):
    """The second worker collects from the end, so that each rewrites the assertions of half of the modules for both."""
    from_the_end = os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and not (path / "__init__.py").exists()
    return FromTheEnd.from_parent(parent, path=path) if from_the_end else None


class FromTheEnd(pytest.Dir):
    def collect(self):
        return reversed([*super().collect()])


def pytest_collect_file(parent, file_path):
    return IrFile.from_parent(parent, path=file_path) if file_path.suffix == ".ir" else None


class IrFile(pytest.File):
    """First line: `// PASSES: simplify` or `// PASSES: map_workgroups(grouped(4)); simplify`."""

    def collect(self):
        text = self.path.read_text()
        if bad := ALMOST_A_CHECK.search(text):
            raise self.CollectError(f"{self.path.name}: this line checks nothing: {bad[0].strip()}")
        names = text.partition("\n")[0].removeprefix("// PASSES:").split(";")
        passes = [self.named(name.strip()) for name in names]
        above = 0
        for part in text.split(SEPARATOR):
            padded = "\n" * above + part  # line numbers are those of the file
            if "CHECK" not in part:
                raise self.CollectError(f"{self.path.name}: a part checks nothing")
            yield IrItem.from_parent(self, name=parse(padded).name, passes=passes, text=padded)
            above += part.count("\n") + 1

    def named(self, text):
        name, _, parameter = text.partition("(")
        if name not in PASSES:
            raise self.CollectError(f"{self.path.name}: no pass is called {name!r}")
        return PASSES[name](parameter.removesuffix(")"))


class IrItem(pytest.Item):
    def __init__(self, *, passes, text, **kw):
        super().__init__(**kw)
        self.passes, self.text = passes, text

    def runtest(self):
        finput = pytest.importorskip(
            "filecheck.finput", reason="filecheck matches the CHECK lines; it is not installed"
        )
        from filecheck.matcher import Matcher
        from filecheck.options import Options
        from filecheck.parser import Parser, pattern_for_opts

        kernel = verify_part(parse(self.text, self.path.name))
        for p in self.passes:
            kernel = verify_part(p(kernel))
        opts = Options(match_filename=self.path.name)
        checks = Parser(opts, io.StringIO(self.text), *pattern_for_opts(opts))
        matcher = Matcher(opts, finput.FInput("output", str(kernel)), checks)
        matcher.stderr = report = io.StringIO()
        if matcher.run() != 0:
            raise AssertionError(f"{report.getvalue()}\nThe kernel was:\n{kernel}")

    def repr_failure(self, excinfo):
        return str(excinfo.value)


SAMPLED = {"analysis", "backend", "emulator", "end_to_end", "interp", "kernels", "lang", "lower", "mapping", "ops"}
SAMPLED |= {"passes", "runtime", "saved", "sim", "transform"}
"""Rooms of the most expensive tests: their sweeps over several parameters are sampled without a mark."""
UNMARKED = 6
"""The share of these sweeps: of six cases, one belongs to every run."""
THINNER = 3
"""All combinations of some lists are sampled so many times as thinly as a list."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Select a share of each sweep for every run, always the same cases, and mark the others slow."""
    items.sort(key=lambda item: item.path)  # in the same order by all workers
    sweeps = {}
    for item in items:
        n = _share(item)
        if n > 1 and not item.get_closest_marker("slow"):
            sweeps.setdefault((item.nodeid.partition("[")[0], n), []).append(item)
    for (_, n), cases in sweeps.items():
        kept = _one_in(n, cases)
        for item in cases:
            if item.nodeid not in kept:
                item.add_marker(pytest.mark.slow)


def _share(item):
    """Return n: one case in n runs, and one of each value with n cases."""
    if share := item.get_closest_marker("share"):
        return share.args[0]
    is_sweep = len(item.callspec.params) > 1 if hasattr(item, "callspec") else False
    room = item.nodeid.removeprefix("tests/").partition("/")[0]
    return UNMARKED if is_sweep and room in SAMPLED else 1


def _one_in(n, cases):
    """Return the ids of one case in n, or fewer of combinations; among them is one of each value that has n cases."""
    drawn = sorted(cases, key=lambda item: crc32(item.nodeid.encode()))
    values = {item.nodeid: _values(item) for item in drawn}
    count = Counter(value for of_case in values.values() for value in of_case)
    kept, left = [], {value for value, number in count.items() if number >= n}
    while left:  # the case with the most values that no other has yet
        kept.append(max(values, key=lambda name: len(values[name] & left)))
        left -= values[kept[-1]]
    share = n * THINNER if _are_combinations(drawn) else n
    more, others = max(0, -(-len(drawn) // share) - len(kept)), [name for name in values if name not in kept]
    return {*kept, *others[:more]}


def _are_combinations(cases):
    """Return whether several lists, each of a `parametrize`, are combined, and every entry is with every other."""
    entries = [len(set(column)) for column in zip(*map(_entries, cases), strict=True)]
    return len(entries) > 1 and prod(entries) == len(cases)


def _entries(item):
    """Return which entry of each list a case has."""
    lists = (mark.args[0] for mark in item.iter_markers("parametrize"))
    names = [re.findall(r"\w+", each) if isinstance(each, str) else each for each in lists]
    return [tuple(id(item.callspec.params[name]) for name in each) for each in names]


def _values(item):
    """Return (parameter, which of its values) of a case, and something that all cases of a test have."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return {"a case", *((name, id(value)) for name, value in params.items())}
