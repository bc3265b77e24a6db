"""How much of LLVM's processor time kernels take that are unrolled: chained products and f8, on every instruction set.

python benchmarks/compile_cliffs.py cpu
python benchmarks/compile_cliffs.py gpu     one wave adds two tiles of 128x128: 256 elements a lane
"""

import os
import random
import resource
import sys

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WaveCompileOptions,
    WaveConstraint,
    WorkgroupConstraint,
    bf16,
    cast,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    i8,
    iterate,
    mma,
    read,
    sym,
    wave,
    wave_compile,
    write,
)

M, N, K, L, G = sym.M, sym.N, sym.K, sym.L, GLOBAL_ADDRESS_SPACE
INSTRUCTION_SETS = ("neon-dot", "neon", "avx512", "avx2", "x86-64")


def chain(m, n, k, steps, dtype):
    tiles = [
        WorkgroupConstraint(M, m, 0),
        WorkgroupConstraint(N, n, 1),
        TilingConstraint(K, k),
        TilingConstraint(L, steps),
    ]

    @wave(tiles)
    def chained(
        q: Memory[M, K, G, dtype], x: Memory[L, K, G, dtype], v: Memory[N, L, G, dtype], o: Memory[M, N, G, f32]
    ):
        @iterate(L, init_args=[Register[M, N, f32](0.0)])
        def outer(acc):
            @iterate(K, init_args=[Register[M, L, f32](0.0)])
            def inner(s):
                return mma(read(q), read(x), s)

            return mma(cast(inner, dtype), read(v), acc)

        write(outer, o)

    return chained


def elementwise(m, n, dtype):
    @wave([WorkgroupConstraint(M, m, 0), WorkgroupConstraint(N, n, 1)])
    def elementwise(a: Memory[M, N, G, dtype], b: Memory[M, N, G, dtype], c: Memory[M, N, G, dtype]):
        x, y = read(a), read(b)
        write(x * y + x - y, c)

    return elementwise


def seconds(kernel, instruction_set):
    """Return the CPU seconds in LLVM's process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subs = {M: 64, N: 64, K: 33, L: 64}
    wave_compile(WaveCompileOptions(subs=subs, target="cpu", instruction_set=instruction_set), kernel)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def added(dtype):
    one_wave = [WaveConstraint(M, 128), WaveConstraint(N, 128)]

    @wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 128, 1), *one_wave])
    def added(a: Memory[M, N, G, dtype], b: Memory[M, N, G, dtype], c: Memory[M, N, G, dtype]):
        write(read(a) + read(b), c)

    return added


ON_GPUS = [
    *(("gfx942", dtype) for dtype in (f8e4m3fnuz, f8e5m2fnuz, f8e4m3fn, bf16, i8, f16, f32)),
    *(("gfx950", dtype) for dtype in (f8e4m3fn, f8e5m2, bf16, i8, f16, f32)),
    ("sm_90a", f8e4m3fn),
]


def gpus():
    for target, dtype in ON_GPUS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        made = wave_compile(WaveCompileOptions(subs={M: 128, N: 128}, target=target), added(dtype))
        lines = made.asm.count("\n")
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        print(f"{took:5.1f} s  {target} {dtype!s:12} {lines:6} lines of assembly", flush=True)


def cpus():
    choose, found = random.Random(0), []
    for _ in range(8):
        tile = [choose.choice([4, 8, 16, 24, 32, 64]) for _ in range(4)]
        dtype = choose.choice([f16, bf16, f32])
        found += [(seconds(chain(*tile, dtype), s), s, "chain", tile, dtype) for s in INSTRUCTION_SETS]
    for dtype in (f8e4m3fn, f8e5m2fnuz, f16):
        found += [(seconds(elementwise(32, 32, dtype), s), s, "elementwise", [32, 32], dtype) for s in INSTRUCTION_SETS]
    for took, s, what, tile, dtype in sorted(found, key=lambda one: -one[0]):
        print(f"{took:5.1f} s  {s:9} {what:12} {'x'.join(map(str, tile)):12} {dtype}")


if __name__ == "__main__":
    os.environ["TILEWAVE_CACHE_DIR"] = "off"
    {"cpu": cpus, "gpu": gpus}[sys.argv[1]]()
