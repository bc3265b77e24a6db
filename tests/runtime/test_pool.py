"""Every task runs once, for every launching thread, and an idle pool costs nothing."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import pytest

from tilewave.errors import TilewaveError
from tilewave.runtime import pool
from tilewave.runtime.pool import MAX_THREADS, default_threads, launch, launch_address
from tilewave.runtime.scratch import Scratch

TASKS = """
declare i32 @sched_yield()
declare i32 @usleep(i32)
declare i64 @pthread_self()

define void @nothing(ptr %args, i64 %t, i64 %worker) {
  ret void
}

define void @bare(ptr %task, ptr %args, i64 %tasks, i64 %threads) {
  ret void
}

; args[t] += 1
define void @count(ptr %args, i64 %t, i64 %worker) {
  %at = getelementptr i64, ptr %args, i64 %t
  atomicrmw add ptr %at, i64 1 monotonic
  ret void
}

; args[1 + args[0]++] = { t, worker, thread }
define void @record(ptr %args, i64 %t, i64 %worker) {
  %n = atomicrmw add ptr %args, i64 1 seq_cst
  %skipped = getelementptr i64, ptr %args, i64 1
  %at = getelementptr [3 x i64], ptr %skipped, i64 %n
  store i64 %t, ptr %at
  %worker.at = getelementptr i64, ptr %at, i64 1
  store i64 %worker, ptr %worker.at
  %thread.at = getelementptr i64, ptr %at, i64 2
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %thread.at
  ret void
}

; args[0] += whether another call with this worker number is under way, as args[1 + worker] says
define void @clash(ptr %args, i64 %t, i64 %worker) {
  %skipped = getelementptr i64, ptr %args, i64 1
  %at = getelementptr i64, ptr %skipped, i64 %worker
  %before = atomicrmw xchg ptr %at, i64 1 seq_cst
  atomicrmw add ptr %args, i64 %before seq_cst
  call i32 @sched_yield()
  store atomic i64 0, ptr %at seq_cst, align 8
  ret void
}

; args[0] += 1, and wait until it is args[1]; args[2] += 1 for everybody who waited in vain
define void @meet(ptr %args, i64 %t, i64 %worker) {
entry:
  %all.at = getelementptr i64, ptr %args, i64 1
  %all = load i64, ptr %all.at
  atomicrmw add ptr %args, i64 1 seq_cst
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %more, %wait ]
  %here = load atomic i64, ptr %args seq_cst, align 8
  %met = icmp sge i64 %here, %all
  br i1 %met, label %out, label %stay
stay:
  %more = add i64 %round, 1
  %vain = icmp sgt i64 %more, 50000
  br i1 %vain, label %alone, label %wait
wait:
  call i32 @usleep(i32 100)
  br label %look
alone:
  %vain.at = getelementptr i64, ptr %args, i64 2
  atomicrmw add ptr %vain.at, i64 1 seq_cst
  br label %out
out:
  ret void
}

; worker args[0] takes 0.3 s, and the others return once it has started, which args[1] says
define void @one_is_late(ptr %args, i64 %t, i64 %worker) {
entry:
  %late = load i64, ptr %args
  %started.at = getelementptr i64, ptr %args, i64 1
  %me = icmp eq i64 %worker, %late
  br i1 %me, label %sleep, label %look
sleep:
  store atomic i64 1, ptr %started.at seq_cst, align 8
  call i32 @usleep(i32 300000)
  ret void
look:
  call i32 @usleep(i32 100)
  %started = load atomic i64, ptr %started.at seq_cst, align 8
  %go = icmp eq i64 %started, 1
  br i1 %go, label %out, label %look
out:
  ret void
}

; args is { counter, launch, depth }: count, then launch this four times on three threads, one deeper
define void @nest(ptr %args, i64 %t, i64 %worker) {
entry:
  %inner = alloca { ptr, ptr, i64 }
  %counter = load ptr, ptr %args
  atomicrmw add ptr %counter, i64 1 monotonic
  %launch.at = getelementptr { ptr, ptr, i64 }, ptr %args, i32 0, i32 1
  %launch = load ptr, ptr %launch.at
  %depth.at = getelementptr { ptr, ptr, i64 }, ptr %args, i32 0, i32 2
  %depth = load i64, ptr %depth.at
  %less = sub i64 %depth, 1
  store ptr %counter, ptr %inner
  %inner.launch = getelementptr { ptr, ptr, i64 }, ptr %inner, i32 0, i32 1
  store ptr %launch, ptr %inner.launch
  %inner.depth = getelementptr { ptr, ptr, i64 }, ptr %inner, i32 0, i32 2
  store i64 %less, ptr %inner.depth
  %leaf = icmp eq i64 %depth, 0
  br i1 %leaf, label %out, label %deeper
deeper:
  call void %launch(ptr @nest, ptr %inner, i64 4, i64 3)
  br label %out
out:
  ret void
}
"""
NAMES = ("nothing", "bare", "count", "record", "clash", "meet", "one_is_late", "nest")

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
JIT = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(jit=True))
BUILDER = llvm.JITLibraryBuilder().add_ir(TASKS).add_current_process()
for name in NAMES:
    BUILDER.export_symbol(name)
TASK = BUILDER.link(JIT, "tasks")


PATIENCE_SECONDS = 120
"""Enough for the busiest machine; nothing here is measured by it."""


@pytest.fixture(autouse=True)
def _no_test_hangs():
    faulthandler.dump_traceback_later(5 * PATIENCE_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Words:
    """Some i64 in memory that tasks write to."""

    def __init__(self, *values):
        self.array = (ctypes.c_int64 * len(values))(*values)
        self.address = ctypes.addressof(self.array)

    def __getitem__(self, at):
        return self.array[at]


def counts(tasks, threads, launches=1):
    words = Words(*[0] * (tasks + 1))
    for _ in range(launches):
        launch(TASK["count"], words.address, tasks, threads)
    return words[:]


def records(tasks, threads):
    words = Words(*[0] * (3 * tasks + 1))
    launch(TASK["record"], words.address, tasks, threads)
    assert words[0] == tasks
    return [tuple(words[at : at + 3]) for at in range(1, 3 * tasks, 3)]


def nested(depth, tasks, threads):
    """How many tasks ran, and how many should have."""
    total = Words(0)
    args = Words(total.address, launch_address(), depth)
    launch(TASK["nest"], args.address, tasks, threads)
    return total[0], tasks * sum(4**level for level in range(depth + 1))


SCRIPT = """
import ctypes, os, resource, signal, sys, threading, time
from tilewave.runtime.pool import default_threads, launch

LIBC = ctypes.CDLL(None)
USLEEP = ctypes.cast(LIBC.usleep, ctypes.c_void_p).value  # its first argument is args, in µs
MEET = ctypes.cast(LIBC.pthread_barrier_wait, ctypes.c_void_p).value  # its first argument is a barrier

def barrier(threads):
    # The address of one that lets nobody pass before so many have come.
    memory = ctypes.create_string_buffer(128)
    barrier.kept.append(memory)
    assert LIBC.pthread_barrier_init(memory, None, threads) == 0
    return ctypes.addressof(memory)

barrier.kept = []

OTHERS = set(os.listdir("/proc/self/task"))  # numpy's BLAS has threads of its own

def helpers():
    return set(os.listdir("/proc/self/task")) - OTHERS
"""


def run(script, **options):
    """Run a script in a new process; one that does not end is stopped."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, **options)


def printed(script, **options):
    done = run(script, **options)
    assert done.returncode == 0, done
    return done.stdout.split()


# Tasks and workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 16, 64])
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 5, 16, 17, 64, 1000])
def test_every_task_runs_once(tasks, threads):
    assert counts(tasks, threads, launches=20) == [20] * tasks + [0]


def test_a_single_worker_takes_the_tasks_in_order():
    assert [(t, worker) for t, worker, _ in records(100, 1)] == [(t, 0) for t in range(100)]


def test_every_worker_takes_its_tasks_in_order():
    for _ in range(50):
        taken = defaultdict(list)
        for t, worker, _ in records(500, 4):
            taken[worker].append(t)
        assert all(tasks == sorted(tasks) for tasks in taken.values())


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_a_worker_number_names_one_thread_and_0_the_caller(threads):
    for _ in range(50):
        of = defaultdict(set)
        for _, worker, thread in records(200, threads):
            assert 0 <= worker < threads
            of[worker].add(thread)
        assert all(len(found) == 1 for found in of.values())
        assert of.get(0, {threading.get_ident()}) == {threading.get_ident()}


def test_no_two_workers_have_the_same_number_at_one_time():
    words = Words(*[0] * 9)
    for _ in range(300):
        launch(TASK["clash"], words.address, 50, 8)
    assert words[:] == [0] * 9


@pytest.mark.parametrize("threads", [2, 3, 4, 16])
def test_as_many_workers_as_asked_for_run_at_one_time(threads):
    for _ in range(10):
        words = Words(0, threads, 0)
        launch(TASK["meet"], words.address, threads, threads)
        assert words[:] == [threads, threads, 0]


def test_more_threads_than_the_pool_may_have_are_as_many_as_it_may():
    assert printed("launch(USLEEP, 0, 5000, 1 << 40); print(len(helpers()))") == [str(MAX_THREADS - 1)]


def test_one_task_or_one_thread_needs_no_pool():
    assert printed("launch(USLEEP, 1, 1, 8); launch(USLEEP, 1, 8, 1); print(len(helpers()))") == ["0"]


def test_the_pool_is_as_large_as_the_largest_launch_wants():
    script = """
start = threading.Barrier(6)
def call():
    start.wait()
    for wanted in (2, 3, 5, 4):
        launch(USLEEP, 1000, 8, wanted)
launch(USLEEP, 1, 1, 1)  # compile first
callers = [threading.Thread(target=call) for _ in range(6)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
launch(USLEEP, 1000, 8, 5)
while len(helpers()) > 4:  # a thread that was joined may still be leaving; a helper too many would stay
    time.sleep(0.01)
print(len(helpers()))
"""
    assert printed(script) == ["4"]


def test_tasks_run_while_python_runs():
    """The task waits for somebody to come, and only Python can."""
    words = Words(0, 2, 0)
    caller = threading.Thread(target=launch, args=(TASK["meet"], words.address, 1, 1))
    caller.start()
    while words[0] < 1:
        time.sleep(0.001)
    words.array[0] = 2
    caller.join()
    assert words[:] == [2, 2, 0]


def test_a_launch_that_nobody_could_mean_fails():
    for wrong in [(0, 0, 1, 1), (TASK["nothing"], 0, -1, 1), (TASK["nothing"], 0, 1, 0)]:
        with pytest.raises(AssertionError, match=r"launch\("):
            launch(*wrong)


def test_no_helper_oversleeps():
    """Helpers fall asleep and are woken at every moment of falling asleep, and come the next time still."""
    choose = random.Random(0)
    for _ in range(20_000):
        launch(TASK["nothing"], 0, 2, 2)
        until = time.perf_counter() + choose.random() * 30e-6
        while time.perf_counter() < until:
            pass
    words = Words(0, 2, 0)
    launch(TASK["meet"], words.address, 2, 2)
    assert words[:] == [2, 2, 0]


# Several launches at once -------------------------------------------------------------------------------------------


def test_launches_from_many_threads_do_not_mix():
    def caller(seed):
        choose = random.Random(seed)
        for _ in range(300):
            tasks = choose.randrange(40)
            assert counts(tasks, choose.randrange(1, 7)) == [1] * tasks + [0]
        return True

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(caller, range(8)))


def test_worker_numbers_are_of_one_launch():
    def caller(_):
        words = Words(*[0] * 5)
        for _ in range(200):
            launch(TASK["clash"], words.address, 20, 4)
        return words[:]

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(caller, range(8))) == [[0] * 5] * 8


def test_launches_share_the_helpers():
    """Two launches of two workers each need two helpers, which a launch of three has started."""
    counts(100, 3)
    for _ in range(10):
        words = Words(0, 4, 0)
        callers = [threading.Thread(target=launch, args=(TASK["meet"], words.address, 2, 2)) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert words[:] == [4, 4, 0]


@pytest.mark.parametrize(("tasks", "threads"), [(1, 1), (2, 2), (5, 4)])
def test_a_task_may_launch(tasks, threads):
    for _ in range(20):
        ran, expected = nested(3, tasks, threads)
        assert ran == expected


def test_many_threads_may_launch_tasks_that_launch():
    with ThreadPoolExecutor(8) as callers:
        for ran, expected in callers.map(lambda _: nested(3, 3, 4), range(64)):
            assert ran == expected


# Processes, signals, limits -----------------------------------------------------------------------------------------


def in_child(check):
    """Return whether the check passes in a child of this process; one that does not end is stopped."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_SECONDS)
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def workers_meet():
    words = Words(0, 4, 0)
    launch(TASK["meet"], words.address, 4, 4)
    return words[:] == [4, 4, 0] and counts(100, 4) == [1] * 100 + [0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about any fork with threads
def test_a_child_has_a_pool_of_its_own():
    assert workers_meet()
    for pause in (0, 0, 0.001, 0.01):  # helpers that spin, and helpers that sleep
        counts(100, 4)
        time.sleep(pause)
        assert in_child(workers_meet)
        assert workers_meet()
    assert in_child(lambda: workers_meet() and in_child(workers_meet))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_born_during_a_launch_has_a_pool_of_its_own():
    stop = threading.Event()

    def caller():
        while not stop.is_set():
            assert counts(50, 4) == [1] * 50 + [0]

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for one in callers:
        one.start()
    try:
        assert all(in_child(workers_meet) for _ in range(20))
    finally:
        stop.set()
        for one in callers:
            one.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_born_while_the_pool_grows_has_a_pool_of_its_own():
    def grow_and_fork():
        caller = threading.Thread(target=launch, args=(TASK["nothing"], 0, 10**7, MAX_THREADS))
        caller.start()
        passed = [in_child(workers_meet) for _ in range(5)]
        caller.join()
        return all(passed)

    launch_address()  # compile first
    assert all(in_child(grow_and_fork) for _ in range(3))


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.03])
def test_a_child_born_while_the_launcher_is_compiled_has_one_too(seconds):
    script = f"""
import warnings
warnings.simplefilter("ignore")  # Python's own, about any fork with threads
threading.Thread(target=launch, args=(USLEEP, 1, 8, 4)).start()
time.sleep({seconds})
child = os.fork()
signal.alarm(100)
launch(USLEEP, 1000, 8, 4)
if child:
    print(os.waitpid(child, 0)[1])
"""
    assert printed(script) == ["0"]


EXITS = {
    "helpers spin": "launch(USLEEP, 1, 100, 4)",
    "helpers sleep": "launch(USLEEP, 1, 100, 4); time.sleep(0.05)",
    "another thread launches": """
threading.Thread(target=lambda: [launch(USLEEP, 10, 100, 4) for _ in range(10**6)], daemon=True).start()
time.sleep(0.1)""",
    "helpers work": """
threading.Thread(target=launch, args=(USLEEP, 1_000_000_000, 8, 4), daemon=True).start()
time.sleep(0.1)""",
}


@pytest.mark.parametrize("before", EXITS.values(), ids=EXITS)
def test_the_process_ends_at_once(before):
    """One that waited for its tasks would be ended first."""
    for _ in range(3):
        assert printed(before + "\nprint('end')") == ["end"]


def test_a_keyboard_interrupt_comes_after_the_launch_and_the_pool_lives_on():
    """The tasks wait for the thread that interrupts, and then for each other."""
    script = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
five = barrier(5)

def interrupt():
    while len(helpers()) < 4:  # this thread is one of them
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    LIBC.pthread_barrier_wait(ctypes.c_void_p(five))

thread = threading.Thread(target=interrupt)
thread.start()
try:
    launch(MEET, five, 4, 4)
    time.sleep(PATIENCE)
except KeyboardInterrupt:
    print("interrupted")
thread.join()
launch(MEET, barrier(4), 4, 4)
print("met")
"""
    assert printed(script.replace("PATIENCE", str(PATIENCE_SECONDS))) == ["interrupted", "met"]


def test_helpers_leave_signals_to_python_but_not_their_own_faults():
    """Read after every helper has run a task: before that, the system blocks all signals in a new thread."""
    script = """
launch(MEET, barrier(3), 3, 3)
print(*signal.pthread_sigmask(signal.SIG_BLOCK, []))
for thread in helpers():
    lines = open(f"/proc/self/task/{thread}/status").read().splitlines()
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    print(*(blocked >> (s - 1) & 1 for s in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)))
"""
    assert printed(script) == [*"110", *"110"]


def test_a_system_without_threads_to_spare_gets_the_work_done():
    script = """
launch(USLEEP, 1, 1, 1)  # compile first
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
pages = int(open("/proc/self/statm").read().split()[0])
plenty = resource.getrlimit(resource.RLIMIT_AS)
little = pages * resource.getpagesize() + 20_000_000  # two stacks of 8 MiB, not seven
resource.setrlimit(resource.RLIMIT_AS, (little, plenty[1]))
for _ in range(100):
    launch(USLEEP, 100, 8, 8)
print(len(helpers()) < 7)
resource.setrlimit(resource.RLIMIT_AS, plenty)
launch(USLEEP, 100, 8, 8)
print(len(helpers()))
"""
    assert printed(script) == ["True", "7"]


# Cost ---------------------------------------------------------------------------------------------------------------


def cpu_seconds(action):
    start = time.process_time()
    action()
    return time.process_time() - start


def test_an_idle_pool_uses_no_time():
    """Helpers spin for a while before they sleep, and on a busy machine that while comes late."""
    counts(100, 8)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while cpu_seconds(lambda: time.sleep(0.5)) >= 0.02:
        assert time.monotonic() < deadline, "helpers do not go to sleep"


@pytest.mark.parametrize("late", [0, 1])
def test_waiting_for_the_last_worker_uses_no_time(late):
    words = Words(late, 0)
    assert cpu_seconds(lambda: launch(TASK["one_is_late"], words.address, 2, 2)) < 0.05
    assert words[1] == 1


def fastest(call, repeats=2000):
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def test_a_launch_costs_little_more_than_a_call():
    """By a factor of ten and more, so that a busy machine passes too."""
    nothing = TASK["nothing"]
    bare = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(TASK["bare"])
    call = fastest(lambda: bare(nothing, 0, 1, 2))
    assert fastest(lambda: launch(nothing, 0, 1, 2)) - call < 10e-6
    assert fastest(lambda: launch(nothing, 0, 2, 2)) - call < 100e-6


# The number of threads ----------------------------------------------------------------------------------------------


def test_the_default_is_one_thread_per_core_of_this_process(monkeypatch):
    monkeypatch.delenv("TILEWAVE_NUM_THREADS", raising=False)
    assert default_threads() == len(os.sched_getaffinity(0))
    script = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(default_threads())"
    assert printed("print(default_threads())\n" + script) == [str(default_threads()), "1"]


@pytest.mark.parametrize("threads", [1, 3, MAX_THREADS])
def test_the_environment_sets_the_number_of_threads(monkeypatch, threads):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", str(threads))
    assert default_threads() == threads


@pytest.mark.parametrize("wrong", ["", "0", "-1", "two", "1.5", " 2", "²", "1025", "9" * 30])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, wrong):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", wrong)
    with pytest.raises(TilewaveError) as caught:
        default_threads()
    assert str(caught.value) == (
        f"TILEWAVE_NUM_THREADS is {wrong!r}, which is no number of threads\n"
        "  set it to a whole number from 1 to 1024, or unset it for one thread per core"
    )


# Scratch memory -----------------------------------------------------------------------------------------------------


def fill(address, size, byte):
    ctypes.memset(address, byte, size)


def holds(address, size, byte):
    return ctypes.string_at(address, size) == bytes([byte]) * size


@pytest.mark.parametrize("size", [0, 1, 64, 4096, 4097, 1 << 20, 3 << 20])
def test_every_launch_has_memory_of_its_own(size):
    scratch = Scratch()
    regions = [scratch.take(size) for _ in range(3)]
    for number, region in enumerate(regions):
        assert region.address % 4096 == 0
        fill(region.address, size, number)
    assert all(holds(region.address, size, number) for number, region in enumerate(regions))


def test_a_large_region_starts_on_a_huge_page(monkeypatch):
    map_memory = mmap.mmap
    # A length that the system itself would not align.
    monkeypatch.setattr(mmap, "mmap", lambda file, size, **how: map_memory(file, size + 4096, **how))
    scratch = Scratch()
    regions = [scratch.take(6 << 20) for _ in range(5)]
    assert [region.address % (2 << 20) for region in regions] == [0] * 5
    for region in regions:
        fill(region.address, 6 << 20, 1)


def test_memory_is_used_again_and_grows():
    scratch = Scratch()
    first = scratch.take(20_000)
    scratch.give(first)
    assert scratch.take(15_000) is first
    scratch.give(first)
    large = scratch.take(8 << 20)
    fill(large.address, 8 << 20, 1)
    scratch.give(large)
    assert scratch.take(20_000) is large


def test_regions_of_many_threads_do_not_mix():
    scratch = Scratch()

    def caller(byte):
        choose = random.Random(byte)
        for _ in range(200):
            size = choose.choice([10, 5_000, 100_000])
            region = scratch.take(size)
            fill(region.address, size, byte)
            time.sleep(0)
            if not holds(region.address, size, byte):
                return False
            scratch.give(region)
        return True

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(caller, range(1, 9)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_writes_into_memory_of_its_own():
    region = Scratch().take(100)
    fill(region.address, 100, 1)

    def overwrite():
        fill(region.address, 100, 2)
        return True

    assert in_child(overwrite)
    assert holds(region.address, 100, 1)


def mapped_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def test_memory_goes_back_to_the_system():
    scratch = Scratch()
    before = mapped_bytes()
    for size in (1 << 30, 2 << 30):
        scratch.give(scratch.take(size))
    assert (2 << 30) <= mapped_bytes() - before < (3 << 30)
    scratch.free()
    assert mapped_bytes() - before < (1 << 29)


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_a_region_of_more_than_there_is_says_so(size):
    with pytest.raises(MemoryError, match=f"no room for {size:,} bytes of scratch memory"):
        Scratch().take(size)


# Other machines, long runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "triple", "pause"),
    [
        ("x86_64", "x86_64-unknown-linux-gnu", "pause"),
        ("aarch64", "aarch64-unknown-linux-gnu", "isb"),
        ("elsewhere", "x86_64-unknown-linux-gnu", None),
    ],
)
def test_the_launcher_compiles_for_every_machine(monkeypatch, machine, triple, pause):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    monkeypatch.setattr(platform, "machine", lambda: machine)
    module = llvm.parse_assembly(pool._text())
    module.verify()
    module.triple = triple
    words = llvm.Target.from_triple(triple).create_target_machine().emit_assembly(module).split()
    assert {word for word in words if word in ("pause", "isb")} == ({pause} if pause else set())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ten_seconds_of_everything_at_once():
    end = time.monotonic() + 10

    def caller(seed):
        choose = random.Random(seed)
        while time.monotonic() < end:
            match choose.randrange(4):
                case 0:
                    ran, expected = nested(2, choose.randrange(1, 6), choose.randrange(1, 6))
                    assert ran == expected
                case 1:
                    words = Words(*[0] * 9)
                    launch(TASK["clash"], words.address, 30, 8)
                    assert words[:] == [0] * 9
                case 2:
                    tasks = choose.randrange(200)
                    assert counts(tasks, choose.randrange(1, 9), launches=10) == [10] * tasks + [0]
                case _:
                    time.sleep(choose.random() * 1e-3)
        return True

    with ThreadPoolExecutor(6) as callers:
        results = callers.map(caller, range(6))
        while time.monotonic() < end:
            assert in_child(workers_meet)
            time.sleep(0.1)
        assert all(results)
