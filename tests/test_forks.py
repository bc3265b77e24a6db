"""A child of fork() compiles, links and runs, whatever the other threads of its parent were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kernels import gemm, sizes
from llvmlite.binding import ffi

from tilewave import WaveCompileOptions, f32, wave_compile
from tilewave.backend.assembler import assemble
from tilewave.backend.cpu.instruction_sets import host_instruction_set
from tilewave.forks import cached_property
from tilewave.runtime.cpu import CpuLaunch, CpuProgram

# Python's own, about any fork with threads.
pytestmark = [pytest.mark.llvm_child, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PATIENCE_SECONDS = 60
"""A process that blocks, blocks forever: this only ends it."""


def forked(check):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_SECONDS)
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return child


def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(scope="module")
def code():
    """Object code that does nothing, to be linked."""
    ir = "define void @run(ptr %launch, ptr %args, i64 %threads) {\n  ret void\n}\n"
    return assemble(ir, host_instruction_set().machine).code


def link(code):
    CpuProgram(code, CpuLaunch(2, (), (), 0, 0, ()))
    return True


def test_a_fork_waits_for_the_thread_that_is_in_llvm(code):
    """A thread stays in a call of llvmlite until somebody has begun to wait for it, and a little longer."""
    inside, left = threading.Event(), []

    def stay():
        with ffi.lib._lock:
            inside.set()
            time.sleep(0.2)
            left.append(True)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    child = forked(lambda: bool(left) and link(code))
    thread.join()
    assert ended_well(child)


def test_children_link_while_their_parent_s_threads_do(code):
    stop = threading.Event()

    def go_on():
        while not stop.is_set():
            link(code)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(ended_well(forked(lambda: link(code))) for _ in range(12))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fork_within_llvm_does_not_wait_for_itself(code):
    with ffi.lib._lock:
        child = forked(lambda: link(code))
    assert ended_well(child)


def test_the_lock_is_free_behind_a_fork(code):
    assert ended_well(forked(lambda: True))
    found = []
    thread = threading.Thread(target=lambda: found.append(link(code)))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [True]


def test_children_compile_and_run_while_their_parent_s_threads_do(monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    stop = threading.Event()

    def works(size):
        kernel = wave_compile(WaveCompileOptions(subs=sizes(size, 8, 8), target="cpu"), gemm(f32))
        a, b, c = np.ones((size, 8), np.float32), np.ones((8, 8), np.float32), np.zeros((size, 8), np.float32)
        kernel(a, b, c)
        return bool((c == 8).all())

    def go_on():
        while not stop.is_set():
            assert works(8)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(ended_well(forked(lambda size=size: works(size))) for size in range(9, 14))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


IMPORTS = """
import os, signal, sys, threading, time, warnings
from tilewave.backend.protocol import BuildOptions
from tilewave.backend.targets import TARGETS
warnings.simplefilter("ignore")
begun = threading.Event()

class Slow:
    def find_spec(self, name, *_):
        if name == "tilewave.backend.cpu.amx":
            begun.set()
            time.sleep(0.2)

sys.meta_path.insert(0, Slow())

def first_use():
    try:
        TARGETS["cpu"].build(None, None, BuildOptions())
    except AttributeError:  # nothing to build
        pass

threading.Thread(target=first_use).start()
begun.wait()
child = os.fork()
signal.alarm(PATIENCE)
first_use()
if child:
    print(os.waitpid(child, 0)[1])
"""


def test_a_child_born_while_a_thread_imports_can_import_too():
    script = IMPORTS.replace("PATIENCE", str(PATIENCE_SECONDS))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


class Slow:
    entered, go = threading.Event(), threading.Event()

    @cached_property
    def answer(self):
        self.entered.set()
        self.go.wait()
        return 42


def test_a_property_that_a_thread_works_out_can_be_worked_out_by_a_child():
    thread = threading.Thread(target=lambda: Slow().answer)
    thread.start()
    Slow.entered.wait()
    child = forked(lambda: Slow.go.set() or Slow().answer == 42)
    Slow.go.set()
    thread.join()
    assert ended_well(child)


def test_a_property_is_worked_out_once():
    slow, Slow.answers = Slow(), []
    Slow.go.set()
    assert [slow.answer, slow.answer] == [42, 42] and vars(slow) == {"answer": 42}
    assert isinstance(Slow.answer, cached_property)


def lines_with(word):
    """Return (path, the line before, line) of each line of the package with a word."""
    package, found = Path(__file__).parents[1] / "tilewave", []
    for path in sorted(package.rglob("*.py")):
        if word in (text := path.read_text()):
            home = path.relative_to(package)
            found += [(home, before, line) for before, line in pairwise(["", *text.splitlines()]) if word in line]
    return found


def test_no_property_of_ours_holds_a_lock():
    assert [x for x in lines_with("cached_property") if "functools" in x[2]] == []


def test_a_fork_waits_for_every_late_import():
    """Except for the command line's, which has no other threads."""
    late = [x for x in lines_with("noqa: PLC0415") if x[0].parts[0] != "cli"]
    assert late and [x for x in late if x[1].strip() != "with IMPORTING:"] == []


def test_a_child_that_lives_on_does_not_keep_a_compile_from_ending(tmp_path, monkeypatch):
    """Forked while LLVM's process is fed, it holds the writing end of that pipe."""
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/started\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.01; done\n"
        f'exec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    found = []
    ir = "define void @run() {\n  ret void\n}\n" + "; more than a pipe holds\n" * 20_000
    thread = threading.Thread(target=lambda: found.append(assemble(ir, host_instruction_set().machine)))
    thread.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    child = forked(lambda: time.sleep(PATIENCE_SECONDS - 1))
    (tmp_path / "go").touch()
    thread.join(PATIENCE_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(found) == 1
