"""A kernel set: the first call waits, better configs are compiled in the background, and every result is right."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from kernels import K, M, N, check_product, gemm, poisoned, random_array

import tilewave.runtime.kernel_set as kernel_set
from tilewave import *
from tilewave.compile import kernel_maker
from tilewave.errors import ConstraintError
from tilewave.lang.kernel import places_of_sizes
from tilewave.runtime.background import BACKGROUND_WORK, MOST_THREADS, SWITCH_SECONDS
from tilewave.runtime.kernel_set import KernelSet

SECONDS = 30
"""How long a test waits for something that takes moments."""


@dataclass(frozen=True)
class Choice:
    """A choice of a maker that compiles nothing."""

    text: str


@dataclass
class Maker:
    """Prefers the config whose name is the size, then the smaller ones; `held` keeps the background waiting."""

    refused: frozenset = frozenset()
    made: list = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def choices(self, sizes):
        return [Choice(str(n)) for n in (sizes[M], *range(9)) if n in range(9)]

    def time(self, sizes):
        assert M in sizes

    def make(self, choice):
        name = threading.current_thread().name
        if name == "tilewave":
            with self.lock:
                self.running += 1
                self.most_running = max(self.most_running, self.running)
            assert self.held.wait(SECONDS)
            with self.lock:
                self.running -= 1
        self.made.append((choice.text, name == "tilewave"))
        if choice.text in self.refused:
            raise ConstraintError(choice.text)
        return f"kernel {choice.text}"

    def stored_choice(self):
        return None

    def recorded_choice(self):
        return None

    def has_records(self):
        return False

    def prepare(self, made, arrays):
        assert arrays

    def first(self, choices, make):
        for choice in choices:
            with suppress(ConstraintError):
                return make(choice)
        raise ConstraintError("nothing fits")


@pytest.fixture
def background(monkeypatch):
    """Compilation in the background, as users have it; a test leaves nothing behind."""
    monkeypatch.delenv(kernel_set.BACKGROUND, raising=False)
    yield BACKGROUND_WORK
    BACKGROUND_WORK.wait()


def kernels_of(maker):
    return KernelSet({M: (0, 0)}, maker)


def called(kernels, size):
    return kernels.of([(size,)], ["an array"])


def test_the_first_call_waits_for_its_best_kernel(background):
    maker = Maker()
    assert called(kernels_of(maker), 3) == "kernel 3" and maker.made == [("3", False)]


def test_a_better_config_is_compiled_in_the_background_while_another_serves(background):
    maker = Maker()
    kernels = kernels_of(maker)
    called(kernels, 3)
    assert [called(kernels, 5) for _ in range(4)] == ["kernel 3"] * 4
    assert not kernels.is_settled([(5,)])
    maker.held.set()
    background.wait()
    assert called(kernels, 5) == "kernel 5" and kernels.is_settled([(5,)])
    assert maker.made == [("3", False), ("5", True)]  # once, although four calls wanted it


def test_the_best_of_the_compiled_kernels_serves(background):
    maker = Maker()
    kernels = kernels_of(maker)
    maker.held.set()
    for size in (4, 2):
        called(kernels, size)
        background.wait()
    maker.held.clear()
    assert called(kernels, 7) == "kernel 2"  # `choices` prefers the smaller one
    maker.held.set()


def test_few_threads_compile_at_once(background):
    maker = Maker()
    kernels = kernels_of(maker)
    for size in range(9):
        called(kernels, size)
    until = time.monotonic() + SECONDS
    while maker.running < MOST_THREADS and time.monotonic() < until:
        time.sleep(0.001)
    assert sum(one.name == "tilewave" for one in threading.enumerate()) == MOST_THREADS == 2
    maker.held.set()
    background.wait()
    assert maker.most_running == 2 and len(maker.made) == 9 and not background.threads


@pytest.mark.parametrize("sizes", [(1, 2, 3, 2), (3, 2, 1, 2)])
def test_without_a_background_each_call_waits_for_its_best_kernel(monkeypatch, sizes):
    monkeypatch.setenv(kernel_set.BACKGROUND, "0")
    maker = Maker()
    kernels = kernels_of(maker)
    assert [called(kernels, size) for size in sizes] == [f"kernel {size}" for size in sizes]
    assert maker.made == [(str(size), False) for size in sizes[:3]]


def test_torchs_deterministic_algorithms_wait_too(background, monkeypatch):
    torch = SimpleNamespace(are_deterministic_algorithms_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    kernels = kernels_of(Maker())
    assert [called(kernels, size) for size in (3, 5)] == ["kernel 3", "kernel 5"]


def test_a_config_that_is_refused_in_the_background_is_left_out(background):
    maker = Maker(refused=frozenset({"5"}))
    kernels = kernels_of(maker)
    maker.held.set()
    called(kernels, 3)
    assert called(kernels, 5) == "kernel 3"
    background.wait()
    assert called(kernels, 5) == "kernel 3"  # the next best, 0, is compiled instead
    background.wait()
    assert called(kernels, 5) == "kernel 0" and kernels.is_settled([(5,)])
    assert [text for text, _ in maker.made] == ["3", "5", "0"]


def test_a_fault_in_the_background_costs_no_thread(background, monkeypatch):
    faults = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    for _ in range(5):
        background.add(lambda: 1 // 0)
        background.wait()
    assert [one.exc_type for one in faults] == [ZeroDivisionError] * 5 and not background.threads


def test_jobs_keep_pythons_lock_for_moments(background):
    usual, begun, held = sys.getswitchinterval(), threading.Barrier(3), threading.Event()

    def job():
        begun.wait(SECONDS)
        assert held.wait(SECONDS)

    for _ in range(2):
        background.add(job)
    begun.wait(SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert usual > 2 * SWITCH_SECONDS
    held.set()
    background.wait()
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_a_size_is_read_from_the_first_array_that_has_it():
    assert places_of_sizes(gemm(a_dims=(K, M)), (M, N, K)) == {K: (0, 0), M: (0, 1), N: (1, 0)}


def test_only_so_many_sizes_are_remembered(monkeypatch):
    monkeypatch.setenv(kernel_set.BACKGROUND, "0")
    monkeypatch.setattr(kernel_set, "KEPT_SIZES", 3)
    kernels = kernels_of(Maker())
    for size in (1, 2, 3, 4, 1):
        assert called(kernels, size) == f"kernel {size}" and len(kernels.by_size) <= 3


@dataclass(frozen=True)
class Native:
    """Chooses as `Maker` does; notes how it was asked."""

    compiled: list
    texts: tuple = tuple(map(str, range(9)))

    def __call__(self, sizes, left_out=()):
        return next((str(n) for n in (sizes[0], *range(9)) if str(n) not in left_out and n in range(9)), "")

    def among(self, sizes, made):
        return next((str(n) for n in (sizes[0], *range(9)) if str(n) in made), "")

    def compile(self):
        self.compiled.append(True)


@dataclass
class NativeMaker(Maker):
    """Has a choice as machine code: from the cache, or when it is recorded."""

    is_stored: bool = True
    ranked: list = field(default_factory=list)
    alone: list = field(default_factory=list)
    recorded: int = 0
    compiled: list = field(default_factory=list)
    records: bool = False

    def choices(self, sizes):
        self.ranked.append(sizes[M])
        return super().choices(sizes)

    def choice_of(self, text, sizes):
        self.alone.append(text)
        return Choice(text)

    def stored_choice(self):
        return Native(self.compiled) if self.is_stored else None

    def recorded_choice(self):
        self.recorded += 1
        return Native(self.compiled)

    def has_records(self):
        return self.records


def test_with_a_stored_choice_calls_rank_nothing(background):
    maker = NativeMaker()
    kernels = kernels_of(maker)
    maker.held.set()
    assert called(kernels, 3) == "kernel 3" and maker.alone == ["3"]
    for size in (10, 11, 12):
        assert called(kernels, size) in ("kernel 3", "kernel 0")
        background.wait()
    assert maker.alone == ["3", "0"] and not maker.ranked  # all others want config 0
    assert called(kernels, 12) == "kernel 0" and kernels.is_settled([(12,)])
    assert maker.compiled == [True] and maker.recorded == 0


def test_a_choice_is_recorded_after_a_few_rankings(background):
    maker = NativeMaker(is_stored=False)
    kernels = kernels_of(maker)
    for size in (3, 13, 14, 15, 16):
        called(kernels, size)
    maker.held.set()
    background.wait()
    assert maker.recorded == 1 and maker.compiled == [True]
    assert {*maker.ranked[:2]} == {3, 13} and {14, 15, 16}.isdisjoint(maker.ranked)


def test_tuning_records_are_asked_before_the_choice(background):
    maker = NativeMaker(records=True)
    kernels = kernels_of(maker)
    called(kernels, 3)
    maker.held.set()
    called(kernels, 5)
    assert maker.ranked == [3, 5]
    background.wait()


def test_a_refused_config_that_a_call_waits_for_is_left_out(monkeypatch):
    monkeypatch.setenv(kernel_set.BACKGROUND, "0")
    maker = NativeMaker(refused=frozenset({"5"}))
    kernels = kernels_of(maker)
    assert [called(kernels, size) for size in (5, 5, 6)] == ["kernel 0", "kernel 0", "kernel 6"]
    assert kernels.refused == {"5"} and [text for text, _ in maker.made] == ["5", "0", "6"]


def test_a_refused_config_of_a_native_choice_is_left_out(background):
    maker = NativeMaker(refused=frozenset({"5"}))
    kernels = kernels_of(maker)
    maker.held.set()
    called(kernels, 3)
    for _ in range(2):
        assert called(kernels, 5) == "kernel 3"
        background.wait()
    assert called(kernels, 5) == "kernel 0" and kernels.is_settled([(5,)])


# -- kernels ----------------------------------------------------------------------------------------------------------


def arrays(m, n, k):
    rng = np.random.default_rng(m + n + k)
    return random_array(rng, (m, k), f32), random_array(rng, (n, k), f32), poisoned((m, n), f32)


def test_results_are_right_from_eight_threads_while_kernels_change(background):
    one = wave_compile(WaveCompileOptions(target="cpu"), gemm(f32))
    first, faults = set(one.by_size.made), []
    shapes = [(1, 48, 40), (64, 64, 200), (200, 40, 33)]

    def work(number):
        try:
            for m, n, k in shapes * 2:
                a, b, c = arrays(m + number % 2, n, k)
                one(a, b, c)
                check_product(c, a, b)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    background.wait()
    work(0)
    assert not faults
    assert {*one.by_size.made} - first and all(one.by_size.is_settled([(m, k), (n, k)]) for m, n, k in shapes)


def test_a_config_whose_stages_do_not_fit_is_compiled_with_as_many_as_do():
    """The epilogue stages an f32 tile through shared memory that the model does not know of."""
    kernel = gemm()
    sizes = {M: 512, N: 512, K: 512}
    maker = kernel_maker(WaveCompileOptions(subs=sizes, target="sm_90a"), kernel)
    many = maker.tiles.at({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 40}, "grouped(8)")
    made, alone = maker.make(many), maker.make(many.without_stages)
    assert made.asm == alone.asm and made.resources.shared_bytes <= 227 << 10


START = """
import os, signal, sys, threading, time
import numpy as np
from tilewave import *
import tilewave.runtime.kernel_set as kernel_set
from kernels import K, M, N, gemm, check_product
kernel = gemm(f32)
def call(m, n, k):
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (m, n)))
    kernel(a, b, c)
    check_product(c, a, b)
call(64, 64, 64)
"""


def run(text):
    """Run a script that has compiled one kernel; return its output, errors and exit code."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TILEWAVE_RECORDS": "off", "TILEWAVE_TARGET": "cpu"}
    env.pop(kernel_set.BACKGROUND, None)
    words = [sys.executable, "-W", "ignore", "-c", START + textwrap.dedent(text)]
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_a_forked_child_compiles_what_its_parent_was_about_to():
    done = run("""
        call(1, 512, 64)
        assert kernel_set.BACKGROUND_WORK.threads
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            assert not kernel_set.BACKGROUND_WORK.threads
            for m in (1, 2):
                call(m, 512, 64)
            kernel_set.BACKGROUND_WORK.wait()
            print("child", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        kernel_set.BACKGROUND_WORK.wait()
        call(1, 512, 64)
        print("parent")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent\n", "")


def test_nothing_is_compiled_after_the_end():
    done = run("""
        for n in range(50):
            kernel_set.BACKGROUND_WORK.add(lambda n=n: (time.sleep(0.2), os.write(1, b"compiled\\n")))
        time.sleep(0.1)
        print("end", flush=True)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "end\ncompiled\ncompiled\n"  # what ran is waited for, and the rest dropped
