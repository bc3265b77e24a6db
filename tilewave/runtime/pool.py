"""Runs the tasks of a kernel on all cores: a thread pool in native code, and the scratch memory of its workers.

A launch is a queue of task numbers. Each worker takes the next number with one atomic addition, so an order of
workgroups stays the order in which they start. The caller is worker 0 and works too; helpers are threads of the pool,
made at the first launch that wants them and kept. Each helper has one word of state, and every step of the protocol is
one atomic change of that word:

    value             the helper is …                     next, and who changes it
    0 idle            free; awake, or about to wake       posted (a launch) · asleep (itself, tired of spinning)
    1 asleep          free; needs a signal to wake        posted (a launch, which then signals)
    a job's address   posted: wanted by that launch       running (itself) · idle (the launch has run out of tasks)
    2 running         taking tasks                        done (itself) · awaited (the launch, tired of spinning)
    3 awaited         taking tasks; its launch sleeps     done (itself, which then signals)
    4 done            finished; no longer sees the job    idle (the launch) · done and asleep (itself)
    5 done, asleep    as done; needs a signal to wake     asleep (the launch)

From the post to the return to idle or asleep a helper belongs to one launch, so launches from several threads share the
pool without a lock: each gets the helpers that are free, at worst none, and does the rest itself. A helper that has not
started is taken back, so no launch waits for a thread to wake up. A launch waits only for helpers that run its tasks,
and a task that launches waits only for helpers of that inner launch: the waits form a tree, and end.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from string import Template
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from tilewave.errors import TilewaveError
from tilewave.forks import LOCKS

MAX_THREADS = 1024

_SPIN_ROUNDS = 1000
"""Reads of a helper's state before sleeping: about the cost of waking up, 14 µs on a Neoverse N1."""

_PAUSES = {
    "x86_64": "@llvm.x86.sse2.pause()",
    "aarch64": "@llvm.aarch64.isb(i32 15)",  # its `yield` does nothing on most cores
    "arm64": "@llvm.aarch64.isb(i32 15)",
}

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""The signals that a thread sends to itself; all others are left to Python's threads."""

# Each IR function is a transition of the table above. Sizes: no libc has a mutex or condition of more than 64 bytes, a
# signal set of more than 128, and no cache line is longer than 128.
_IR = Template("""
%job = type { ptr, ptr, i64, [104 x i8], i64, i64, [112 x i8] }  ; task, args, tasks; next task, next worker number
%helper = type { i64, ptr, ptr, [104 x i8], [64 x i8], [64 x i8] }  ; state, next of all, next of crew; mutex, condition

@helpers = internal global ptr null
@count = internal global i64 0
@growing = internal global i64 0

declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare i64 @llvm.smin.i64(i64, i64)

; Run task(args, t, worker) for every t below tasks; return when all are done.
define void @launch(ptr %task, ptr %args, i64 %tasks, i64 %threads) {
entry:
  %job = alloca %job, align 128
  %useful = call i64 @llvm.smin.i64(i64 %tasks, i64 %threads)
  %allowed = call i64 @llvm.smin.i64(i64 %useful, i64 $max_threads)
  %wanted = sub i64 %allowed, 1
  store ptr %task, ptr %job
  %args.at = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %args, ptr %args.at
  %tasks.at = getelementptr %job, ptr %job, i32 0, i32 2
  store i64 %tasks, ptr %tasks.at
  %next.at = getelementptr %job, ptr %job, i32 0, i32 4
  store i64 0, ptr %next.at
  %number.at = getelementptr %job, ptr %job, i32 0, i32 5
  store i64 1, ptr %number.at
  %alone = icmp slt i64 %wanted, 1
  br i1 %alone, label %work, label %hire
hire:
  %hired = call ptr @hire(ptr %job, i64 %wanted)
  br label %work
work:
  %crew = phi ptr [ null, %entry ], [ %hired, %hire ]
  call void @work(ptr %job, i64 0)
  call void @dismiss(ptr %crew, ptr %job)
  ret void
}

; Run a kernel with numpy arrays, a tuple of objects. The head of a call has its function, the launcher, its arguments,
; and the number of arrays; then, for each, the index of the argument that is its address.
define void @run_on(ptr %head, i64 %threads, ptr %arrays) {
entry:
  %run = load ptr, ptr %head
  %launcher.at = getelementptr ptr, ptr %head, i64 1
  %launcher = load ptr, ptr %launcher.at
  %args.at = getelementptr ptr, ptr %head, i64 2
  %args = load ptr, ptr %args.at
  %count.at = getelementptr i64, ptr %head, i64 3
  %count = load i64, ptr %count.at
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %place ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %place, label %ready
place:
  %item = add i64 %i, $first_item
  %array.at = getelementptr ptr, ptr %arrays, i64 %item
  %array = load ptr, ptr %array.at
  %data.at = getelementptr i8, ptr %array, i64 $array_header
  %data = load i64, ptr %data.at
  %index.at = getelementptr i64, ptr %count.at, i64 1
  %index.of = getelementptr i64, ptr %index.at, i64 %i
  %index = load i64, ptr %index.of
  %word = getelementptr i64, ptr %args, i64 %index
  store i64 %data, ptr %word
  %next = add i64 %i, 1
  br label %look
ready:
  call void %run(ptr %launcher, ptr %args, i64 %threads)
  ret void
}

; A child of fork() has the words of its parent's helpers, but not their threads.
define void @forget() {
  store ptr null, ptr @helpers
  store i64 0, ptr @count
  store i64 0, ptr @growing
  ret void
}

; Take tasks until there are none.
define internal void @work(ptr %job, i64 %worker) {
entry:
  %task = load ptr, ptr %job
  %args.at = getelementptr %job, ptr %job, i32 0, i32 1
  %args = load ptr, ptr %args.at
  %tasks.at = getelementptr %job, ptr %job, i32 0, i32 2
  %tasks = load i64, ptr %tasks.at
  %next.at = getelementptr %job, ptr %job, i32 0, i32 4
  br label %take
take:
  %t = atomicrmw add ptr %next.at, i64 1 monotonic
  %some = icmp slt i64 %t, %tasks
  br i1 %some, label %run, label %done
run:
  call void %task(ptr %args, i64 %t, i64 %worker)
  br label %take
done:
  ret void
}

; Post the job to free helpers, and to new ones where the pool is smaller than this launch; return the list of those
; helpers.
define internal ptr @hire(ptr %job, i64 %wanted) {
entry:
  %first = load atomic ptr, ptr @helpers acquire, align 8
  br label %look
look:
  %helper = phi ptr [ %first, %entry ], [ %next, %step ]
  %crew = phi ptr [ null, %entry ], [ %joined, %step ]
  %missing = phi i64 [ %wanted, %entry ], [ %still, %step ]
  %full = icmp eq i64 %missing, 0
  %end = icmp eq ptr %helper, null
  %stop = or i1 %full, %end
  br i1 %stop, label %looked, label %try
try:
  %got = call i1 @post(ptr %helper, ptr %job)
  br i1 %got, label %join, label %step
join:
  %crew.at = getelementptr %helper, ptr %helper, i32 0, i32 2
  store ptr %crew, ptr %crew.at
  %fewer = sub i64 %missing, 1
  br label %step
step:
  %joined = phi ptr [ %crew, %try ], [ %helper, %join ]
  %still = phi i64 [ %missing, %try ], [ %fewer, %join ]
  %next.at = getelementptr %helper, ptr %helper, i32 0, i32 1
  %next = load ptr, ptr %next.at
  br label %look
looked:
  %count = load atomic i64, ptr @count monotonic, align 8
  %large = icmp sge i64 %count, %wanted
  %enough = or i1 %full, %large
  br i1 %enough, label %out, label %grow
grow:
  %grown = call ptr @grow(ptr %job, ptr %crew, i64 %missing, i64 %wanted)
  br label %out
out:
  %all = phi ptr [ %crew, %looked ], [ %grown, %grow ]
  ret ptr %all
}

; Return whether the helper was free; it is then reserved for this job.
define internal i1 @post(ptr %helper, ptr %job) {
entry:
  %word = ptrtoint ptr %job to i64
  br label %look
look:
  %state = load atomic i64, ptr %helper monotonic, align 8
  %busy = icmp ugt i64 %state, 1
  br i1 %busy, label %no, label %try
try:
  %swap = cmpxchg ptr %helper, i64 %state, i64 %word acq_rel monotonic
  %got = extractvalue { i64, i1 } %swap, 1
  br i1 %got, label %posted, label %look
posted:
  %asleep = icmp eq i64 %state, 1
  br i1 %asleep, label %wake, label %yes
wake:
  call void @wake(ptr %helper)
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; Signal after a change of state. The mutex is locked once, so that a thread that saw the old state already waits.
define internal void @wake(ptr %helper) {
  %mutex = getelementptr %helper, ptr %helper, i32 0, i32 4
  %condition = getelementptr %helper, ptr %helper, i32 0, i32 5
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  call i32 @pthread_cond_signal(ptr %condition)
  ret void
}

; Add the missing helpers to the crew, born with the job posted, until the pool has as many as wanted; fewer where
; threads are short, none where another launch is growing the pool. They block OS signals, which other threads handle.
define internal ptr @grow(ptr %job, ptr %crew, i64 %missing, i64 %wanted) {
entry:
  %blocked = alloca [128 x i8], align 16
  %before = alloca [128 x i8], align 16
  %lock = cmpxchg ptr @growing, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %lock, 1
  br i1 %mine, label %block, label %taken
taken:
  ret ptr %crew
block:
  %count = load atomic i64, ptr @count monotonic, align 8
  %room = sub i64 %wanted, %count
  %new = call i64 @llvm.smin.i64(i64 %missing, i64 %room)
  call i32 @sigfillset(ptr %blocked)
  $keep_faults
  call i32 @pthread_sigmask(i32 $sig_setmask, ptr %blocked, ptr %before)
  br label %make
make:
  %list = phi ptr [ %crew, %block ], [ %helper, %made ]
  %left = phi i64 [ %new, %block ], [ %fewer, %made ]
  %enough = icmp slt i64 %left, 1
  br i1 %enough, label %out, label %one
one:
  %helper = call ptr @make(ptr %job)
  %failed = icmp eq ptr %helper, null
  br i1 %failed, label %out, label %made
made:
  %crew.at = getelementptr %helper, ptr %helper, i32 0, i32 2
  store ptr %list, ptr %crew.at
  %fewer = sub i64 %left, 1
  br label %make
out:
  call i32 @pthread_sigmask(i32 $sig_setmask, ptr %before, ptr null)
  store atomic i64 0, ptr @growing release, align 8
  ret ptr %list
}

; Return a new helper in the list of all, with the job posted; null where memory or threads are short.
define internal ptr @make(ptr %job) {
entry:
  %slot = alloca ptr
  %id = alloca i64
  %size.at = getelementptr %helper, ptr null, i64 1
  %size = ptrtoint ptr %size.at to i64
  %short = call i32 @posix_memalign(ptr %slot, i64 128, i64 %size)
  %fits = icmp eq i32 %short, 0
  br i1 %fits, label %fill, label %none
fill:
  %helper = load ptr, ptr %slot
  %word = ptrtoint ptr %job to i64
  store i64 %word, ptr %helper
  %first = load ptr, ptr @helpers
  %next.at = getelementptr %helper, ptr %helper, i32 0, i32 1
  store ptr %first, ptr %next.at
  %mutex = getelementptr %helper, ptr %helper, i32 0, i32 4
  call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %condition = getelementptr %helper, ptr %helper, i32 0, i32 5
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  %refused = call i32 @pthread_create(ptr %id, ptr null, ptr @serve, ptr %helper)
  %lives = icmp eq i32 %refused, 0
  br i1 %lives, label %list, label %drop
list:
  %thread = load i64, ptr %id
  call i32 @pthread_detach(i64 %thread)
  store atomic ptr %helper, ptr @helpers release, align 8
  atomicrmw add ptr @count, i64 1 monotonic
  ret ptr %helper
drop:
  call void @free(ptr %helper)
  br label %none
none:
  ret ptr null
}

; The main function of a helper's thread.
define internal ptr @serve(ptr %helper) {
entry:
  br label %next
next:
  %job = call ptr @await(ptr %helper)
  %number.at = getelementptr %job, ptr %job, i32 0, i32 5
  %worker = atomicrmw add ptr %number.at, i64 1 monotonic
  call void @work(ptr %job, i64 %worker)
  %before = atomicrmw xchg ptr %helper, i64 4 acq_rel
  %awaited = icmp eq i64 %before, 3
  br i1 %awaited, label %tell, label %next
tell:
  call void @wake(ptr %helper)
  br label %next
}

; Wait for the next job and return it; the helper is then running.
define internal ptr @await(ptr %helper) {
entry:
  br label %spin
spin:
  %round = phi i64 [ 0, %entry ], [ %more, %pause ], [ 0, %take ], [ 0, %sleep ]
  %state = load atomic i64, ptr %helper acquire, align 8
  %posted = icmp ugt i64 %state, 5
  br i1 %posted, label %take, label %idle
take:
  %swap = cmpxchg ptr %helper, i64 %state, i64 2 acquire monotonic
  %got = extractvalue { i64, i1 } %swap, 1
  br i1 %got, label %out, label %spin
out:
  %job = inttoptr i64 %state to ptr
  ret ptr %job
idle:
  %more = add i64 %round, 1
  %tired = icmp ugt i64 %more, $spin_rounds
  br i1 %tired, label %sleep, label %pause
pause:
  $pause
  br label %spin
sleep:
  call void @sleep(ptr %helper)
  br label %spin
}

; Wait for a post, which changes a state that says asleep.
define internal void @sleep(ptr %helper) {
entry:
  %mutex = getelementptr %helper, ptr %helper, i32 0, i32 4
  %condition = getelementptr %helper, ptr %helper, i32 0, i32 5
  call i32 @pthread_mutex_lock(ptr %mutex)
  %state = load atomic i64, ptr %helper monotonic, align 8
  %posted = icmp ugt i64 %state, 5
  br i1 %posted, label %out, label %lie
lie:
  %asleep = or i64 %state, 1
  cmpxchg ptr %helper, i64 %state, i64 %asleep acq_rel monotonic
  br label %check
check:
  %now = load atomic i64, ptr %helper monotonic, align 8
  %free = icmp eq i64 %now, 1
  %done = icmp eq i64 %now, 5
  %stay = or i1 %free, %done
  br i1 %stay, label %wait, label %out
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
out:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; Give every helper of the crew back to the pool, once it no longer sees the job.
define internal void @dismiss(ptr %crew, ptr %job) {
entry:
  %word = ptrtoint ptr %job to i64
  br label %look
look:
  %helper = phi ptr [ %crew, %entry ], [ %next, %one ], [ %next, %started ]
  %end = icmp eq ptr %helper, null
  br i1 %end, label %out, label %one
one:
  %next.at = getelementptr %helper, ptr %helper, i32 0, i32 2
  %next = load ptr, ptr %next.at
  %swap = cmpxchg ptr %helper, i64 %word, i64 0 acq_rel monotonic
  %back = extractvalue { i64, i1 } %swap, 1
  br i1 %back, label %look, label %started
started:
  call void @finish(ptr %helper)
  atomicrmw sub ptr %helper, i64 4 acq_rel
  br label %look
out:
  ret void
}

; Return when the helper is done.
define internal void @finish(ptr %helper) {
entry:
  br label %spin
spin:
  %round = phi i64 [ 0, %entry ], [ %more, %pause ]
  %state = load atomic i64, ptr %helper acquire, align 8
  %done = icmp ugt i64 %state, 3
  br i1 %done, label %out, label %running
running:
  %more = add i64 %round, 1
  %tired = icmp ugt i64 %more, $spin_rounds
  br i1 %tired, label %sleep, label %pause
pause:
  $pause
  br label %spin
sleep:
  %mutex = getelementptr %helper, ptr %helper, i32 0, i32 4
  %condition = getelementptr %helper, ptr %helper, i32 0, i32 5
  call i32 @pthread_mutex_lock(ptr %mutex)
  cmpxchg ptr %helper, i64 2, i64 3 acq_rel acquire
  br label %check
check:
  %now = load atomic i64, ptr %helper acquire, align 8
  %stay = icmp eq i64 %now, 3
  br i1 %stay, label %wait, label %awake
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
awake:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %out
out:
  ret void
}
""")


class _Native:
    """The launcher's machine code, which stays in memory to the end of the process: its threads sleep in it."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
        )
        jit = llvm.create_lljit_compiler(machine)
        builder = llvm.JITLibraryBuilder().add_ir(_text()).add_current_process()
        for name in ("launch", "forget", "run_on"):
            builder = builder.export_symbol(name)
        code = builder.link(jit, "pool")
        self.address: int = code["launch"]
        self.launch = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(self.address)
        self.run_on = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.py_object)(code["run_on"])
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(code["forget"]))
        code.detach()
        jit.detach()


def _text() -> str:
    """Return the launcher's IR for this machine."""
    pause = _PAUSES.get(platform.machine())
    return _IR.substitute(
        max_threads=MAX_THREADS,
        first_item=tuple.__basicsize__ // ctypes.sizeof(ctypes.c_void_p),
        array_header=object.__basicsize__,
        spin_rounds=_SPIN_ROUNDS,
        pause=f"call void {pause}" if pause else "",
        sig_setmask=int(signal.SIG_SETMASK),
        keep_faults="\n  ".join(f"call i32 @sigdelset(ptr %blocked, i32 {int(fault)})" for fault in _FAULTS),
    )


_natives: list[_Native] = []

# Llvmlite's lock, which it takes around each of its calls on every thread.
_IN_LLVM = ffi.lib._lock
LOCKS.append(_IN_LLVM)


def _native() -> _Native:
    with _IN_LLVM:
        if not _natives:
            _natives.append(_Native())
        return _natives[0]


def launch(task: int, args: int, tasks: int, threads: int) -> None:
    """Run the machine code at `task` as task(args, t, worker) for every t below `tasks`; return when all are done.

    Tasks start in increasing order. `worker` is below `threads`, and no two calls that overlap have the same; the
    calling thread is worker 0. Python's lock is released.
    """
    assert task and tasks >= 0 and threads >= 1, f"launch({task}, {args}, {tasks}, {threads})"
    (_natives[0] if _natives else _native()).launch(task, args, tasks, threads)


def runner_on_numpy() -> Callable[[int, int, tuple[Any, ...]], None]:
    """Return a function that runs a call on numpy arrays: the address of its head, threads, and the arrays."""
    found: Callable[[int, int, tuple[Any, ...]], None] = _native().run_on
    return found


def launch_address() -> int:
    """Return the launcher's address for machine code: void(ptr task, ptr args, i64 tasks, i64 threads)."""
    return _native().address


_THREADS = "TILEWAVE_NUM_THREADS"
# The dict of os.environ, and the encoding of its keys: a lookup of an unset variable raises two errors inside, which
# takes 1 µs of every call; the dict takes 0.05.
_SETTINGS: Any = vars(os.environ).get("_data", os.environ)
_SPELLED: Any = os.environ.encodekey(_THREADS) if "_data" in vars(os.environ) else _THREADS


def default_threads() -> int:
    """Return TILEWAVE_NUM_THREADS, or the number of cores that this process may use."""
    setting = _SETTINGS.get(_SPELLED)
    if setting is None:
        return min(_cores(), MAX_THREADS)
    return _threads_asked.get(setting) or _asked_threads(setting)


_threads_asked: dict[Any, int] = {}
"""By settings that were read before, as the environment spells them."""


def _asked_threads(setting: Any) -> int:
    wanted = os.environ[_THREADS]
    if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= MAX_THREADS):
        raise TilewaveError(
            f"TILEWAVE_NUM_THREADS is {wanted!r}, which is no number of threads",
            remedy=f"set it to a whole number from 1 to {MAX_THREADS}, or unset it for one thread per core",
        )
    return _threads_asked.setdefault(setting, int(wanted))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
