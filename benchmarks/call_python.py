"""The Python part of a call on a GPU, without one: the driver's functions are replaced by empty ones.

    python benchmarks/call_python.py [--calls 400] [--profile "new sizes"] [--attributes] [kernel …]

For each kernel, with M, N and K dynamic: microseconds of CPU time for a call with arrays seen before, with new arrays
of sizes seen before, and with new sizes of a class that was seen; medians of single calls, and the number of bytecodes
that Python runs in one, which does not depend on the machine's load. The tensors are Python objects with torch's
attributes and its table of C functions, which are Python here, so the times say little about torch's; their bytecodes
are not counted. With `--attributes` they have no such table, as arrays of other libraries.
"""

import argparse
import cProfile
import ctypes
import gc
import pstats
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import gemm as plain
import llvmlite.binding as llvm
import persistent_gemm_l2 as persistent
import reordered_gemm as reordered
from fake_array_libraries import exchange_table
from fake_cuda import FakeCuda, Gpu
from open_kernels import COUNTS, SIZES

import tilewave
from tilewave import WaveCompileOptions, f16, wave_compile
from tilewave import kernels as shipped
from tilewave.backend.nvidia import compiler  # noqa: F401  LLVM is loaded before ctypes.CDLL is a fake
from tilewave.cli.bench import BEST_MAPPING

TILE = (128, 256, 64)
OURS = str(Path(tilewave.__file__).parent)
NOTHING = """
define i32 @cuLaunchKernelEx(ptr %config, ptr %function, ptr %parameters, ptr %extra) { ret i32 0 }
define i32 @cuTensorMapEncodeTiled(ptr %map, i32 %dtype, i32 %rank, ptr %at, ptr %sizes, ptr %strides, ptr %box,
                                   ptr %steps, i32 %interleave, i32 %swizzle, i32 %promotion, i32 %fill) { ret i32 0 }
define i32 @cuStreamGetCaptureInfo_v2(ptr %stream, ptr %status, ptr %id, ptr %graph, ptr %edges, ptr %count) {
  store i32 0, ptr %status  ret i32 0 }
define i32 @cuCtxGetCurrent(ptr %context) { store i64 CONTEXT, ptr %context  ret i32 0 }
"""


class QuietCuda(FakeCuda):
    """What a call asks of the driver costs as much as calling C does."""

    def __init__(self):
        super().__init__(Gpu())
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        names = [part.split("(")[0] for part in NOTHING.split("@")[1:]]
        builder = llvm.JITLibraryBuilder().add_ir(NOTHING.replace("CONTEXT", str(self.context_of(0))))
        for name in names:
            builder.export_symbol(name)
        self._library = builder.link(llvm.create_lljit_compiler(), "quiet")
        for name in names:
            restype, *argtypes = self.PROTOTYPES[name]
            self._made[name] = ctypes.CFUNCTYPE(restype, *argtypes)(self._library[name])


class Tensor:
    """As torch's."""

    __slots__ = ("dtype", "is_cuda", "layout", "number", "pointer", "requires_grad", "shape", "sides", "strides")

    def __init__(self, pointer, shape, dtype):
        self.pointer, self.shape, self.dtype, self.number = pointer, shape, dtype, 0
        self.strides = (shape[1], 1)
        self.is_cuda, self.requires_grad, self.layout = True, False, "torch.strided"

    def data_ptr(self):
        return self.pointer

    def stride(self):
        return self.strides

    def is_neg(self):
        return False

    def get_device(self):
        return 0


def install_torch(has_table):
    torch = ModuleType("torch")
    torch.asked, torch.streams = deque(maxlen=1), {0: 0}
    torch.float16, torch.float32, torch.strided = "torch.float16", "torch.float32", "torch.strided"
    torch.version = SimpleNamespace(hip=None)
    Tensor.__module__ = "torch"
    torch.Tensor, torch.nn = Tensor, SimpleNamespace(Parameter=None)
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda number: 0)
    if has_table:
        Tensor.__dlpack_c_exchange_api__ = exchange_table(torch)
    sys.modules["torch"] = torch


def opened(kernel, subs, told=()):
    known = {s: n for s, n in subs.items() if s not in SIZES and s not in told}
    return wave_compile(WaveCompileOptions(subs=known, target="sm_90a", dynamic_symbols=told), kernel)


def mapped():
    made = shipped.gemm((512, 512, 512), f16, f16, tile=TILE, mapping=BEST_MAPPING)
    return opened(made.kernel, made.subs), "torch.float16"


def seed(module, kernel):
    known = module.subs(1, 1, 1, block_m=TILE[0], block_n=TILE[1], block_k=TILE[2])
    if module is persistent:
        known = {**known, persistent.NUM_CTAS: 132}
    return opened(kernel, known, [s for s in known if str(s) in COUNTS]), "torch.float32"


KERNELS = {
    "mapped": mapped,
    "plain": lambda: seed(plain, plain.gemm),
    "reordered": lambda: seed(reordered, reordered.gemm),
    "persistent": lambda: seed(persistent, persistent.persistent_gemm),
}


def counts(compiled, m, n, group=4):
    rows, cols = -(-m // TILE[0]), -(-n // TILE[1])
    known = dict(zip(COUNTS, (rows * cols, rows, cols, group * cols), strict=True))
    return {name: known[name] for name in compiled.dynamic_symbols}


class Cases:
    """Arrays at addresses that no array had before."""

    def __init__(self, compiled, out):
        self.compiled, self.out, self.at = compiled, out, 1 << 32

    def __call__(self, m, n=512, k=256):
        shapes = ((m, k), (n, k), (m, n))
        found = []
        for shape, dtype in zip(shapes, ("torch.float16", "torch.float16", self.out), strict=True):
            found.append(Tensor(self.at, shape, dtype))
            self.at += -(-shape[0] * shape[1] * 4 // 512) * 512
        return found, counts(self.compiled, m, n)


def microseconds(call, cases):
    taken = []
    for arrays, symbols in cases:
        start = time.thread_time_ns()
        call(*arrays, **symbols)
        taken.append((time.thread_time_ns() - start) / 1e3)
    return statistics.median(taken)


def bytecodes(call, cases):
    """Return the median number of bytecodes in a call, without those of the stand-in tensors and driver."""
    counts = []

    def count(frame, event, argument):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            counts[-1] += 1
        return count

    for arrays, symbols in cases:
        counts.append(0)
        sys.settrace(count)
        call(*arrays, **symbols)
        sys.settrace(None)
    return statistics.median(counts)


def paths(compiled, out, calls):
    new = Cases(compiled, out)
    seen = new(256)
    for case in (seen, seen, new(256), new(300)):
        compiled(*case[0], **case[1])
    return {
        "seen arrays": [seen] * calls,
        "new arrays": [new(256) for _ in range(calls)],
        "new sizes": [new(400 + i, 512 + 256 * (i % 7), 256 + 64 * (i % 11)) for i in range(calls)],
    }


def profile(compiled, cases):
    watch = cProfile.Profile()
    watch.enable()
    for arrays, symbols in cases:
        compiled(*arrays, **symbols)
    watch.disable()
    pstats.Stats(watch).sort_stats("tottime").print_stats(45)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--profile", default="", help="one of the paths")
    parser.add_argument("--attributes", action="store_true", help="tensors without a table of C functions")
    given = parser.parse_args()
    install_torch(not given.attributes)
    fake = QuietCuda()
    ctypes.CDLL = lambda file: fake
    for name in given.kernels:
        compiled, out = KERNELS[name]()
        taken = paths(compiled, out, given.calls)
        gc.collect()
        for path, cases in taken.items():
            if given.profile == path:
                profile(compiled, cases)
            else:
                most = len(cases) * 9 // 10
                taken_us, run = microseconds(compiled, cases[:most]), bytecodes(compiled, cases[most:])
                print(f"{name:12} {path:14} {taken_us:8.2f} µs {run:8.0f} bytecodes", flush=True)
    assert fake.faults == [], fake.faults


if __name__ == "__main__":
    main()
