"""A GPU and a torch that numpy plays, for tests of `tilewave bench`; and that command, called."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tilewave.bench import contestants as bench_contestants
from tilewave.bench import gpu as bench_gpu
from tilewave.bench import measured_on
from tilewave.cli import bench, main
from tilewave.errors import TilewaveError

OURS = "tilewave grouped(12)"


@pytest.fixture
def bench_call(monkeypatch, capsys):
    """Run `tilewave bench …`; its exit code, what it printed, and what it said on stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tilewave", "bench", *words])
        try:
            main.main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
        return code, *capsys.readouterr()

    return run


def asked(call, monkeypatch, *words):
    """The settings that a command line means."""
    found = []

    def measure(settings, advance):
        found.append(settings)
        raise TilewaveError("measured")

    monkeypatch.setattr(bench, "measure_gemm", measure)
    code, _, err = call(*words)
    assert (code, err) == (2, "error: measured\n")
    return found[0]


def driver_of(name, arch):
    device = SimpleNamespace(name=name, arch=arch, runs=lambda wanted: wanted.startswith(arch))
    return lambda: SimpleNamespace(device=lambda number: device, version=(13, 0))


def rows_of(text):
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


class Tensor:
    """As much of torch's as is used."""

    def __init__(self, array):
        self.array = array

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    device = "cuda"
    T = property(lambda self: Tensor(self.array.T))

    def to(self, dtype):
        return Tensor(self.array.astype(dtype))

    def float(self):
        return self.to(np.float32)

    def double(self):
        return self.to(np.float64)

    def fill_(self, value):
        self.array.fill(value)

    def is_floating_point(self):
        return self.array.dtype.kind != "i"

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def clone(self):
        return Tensor(self.array.copy())

    def square(self):
        return Tensor(np.square(self.array))

    def sum(self):
        return Tensor(self.array.sum())

    def item(self):
        return float(self.array)

    def __getitem__(self, at):
        return Tensor(self.array[at])

    def __matmul__(self, other):
        return Tensor(self.array @ other.array)

    def __sub__(self, other):
        return Tensor(self.array - other.array)

    def __add__(self, other):
        return Tensor(self.array + other.array)


class Gpu:
    """A torch whose launches take given times on a simulated clock; `log` records its actions."""

    __version__ = "2.11"
    float16, float32, float64, bfloat16 = np.dtype("f2"), np.dtype("f4"), np.dtype("f8"), np.dtype(ml_dtypes.bfloat16)
    int8, int32, uint8 = np.dtype("i1"), np.dtype("i4"), np.dtype("u1")
    iinfo = np.iinfo

    def __init__(self):
        self.clock, self.recording, self.log, self.asleep = 0.0, None, [], 0.0
        self.records, self.sizes = True, (1 << 40, 1 << 40)
        self.cuda = self
        self.rng = np.random.default_rng(1)

    def launch(self, name, seconds, work):
        if self.recording is not None:
            if not self.records:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            self.recording.append((name, seconds, work))
            return
        self.clock += seconds
        self.log.append(name)
        work()

    def mm(self, a, b, *, out):
        def work():
            out.array[:] = (a.array.astype("f8") @ b.array.astype("f8")).astype(out.dtype)

        self.launch("cublas", 1e-3, work)

    def Generator(self, device):
        return SimpleNamespace(manual_seed=lambda seed: None)

    def randn(self, size, **more):
        return Tensor(self.rng.standard_normal(size, np.float32))

    def empty(self, size, dtype, device):
        return Tensor(np.full(size, 7, dtype))

    def zeros(self, size, dtype, device):
        return Tensor(np.zeros(size, dtype))

    def zeros_like(self, other):
        return Tensor(np.zeros_like(other.array))

    def equal(self, x, y):
        return np.array_equal(x.array, y.array)

    def is_available(self):
        return True

    def mem_get_info(self):
        return self.sizes

    def synchronize(self):
        pass

    def Stream(self):
        return "a stream"

    @contextmanager
    def stream(self, stream):
        yield

    def CUDAGraph(self):
        steps = []
        return SimpleNamespace(steps=steps, replay=lambda: [self.launch(*step) for step in steps])

    @contextmanager
    def graph(self, graph, stream):
        self.recording = graph.steps
        try:
            yield
        finally:
            self.recording = None

    def Event(self, enable_timing):
        event = SimpleNamespace(at=None)
        event.record = lambda: (setattr(event, "at", self.clock), self.log.append("event"))
        event.elapsed_time = lambda later: 1e3 * (later.at - event.at)
        return event


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose kernels take 0.8 ms where cuBLAS takes 1 ms; `gpu.spoil` may change what they write."""
    gpu = Gpu()
    gpu.spoil = lambda c: None
    monkeypatch.setattr(measured_on, "cuda_driver", driver_of("NVIDIA H200", "sm_90"))
    monkeypatch.setattr(measured_on, "commit", lambda: "c0ffee")
    monkeypatch.setitem(sys.modules, "torch", gpu)
    monkeypatch.setattr(bench_gpu.time, "sleep", lambda seconds: setattr(gpu, "asleep", gpu.asleep + seconds))

    def compiled(a, b, c):
        def work():
            c.array[:] = (a.array.astype("f8") @ b.array.astype("f8").T).astype(c.dtype)
            gpu.spoil(c.array)

        gpu.launch("ours", 0.8e-3, work)

    def compile_it(options, kernel):
        assert options.target == "sm_90a"
        compiled.code_object = b"made ahead"
        return compiled

    monkeypatch.setattr(bench_contestants, "wave_compile", compile_it)
    return gpu


SMALL = ["--shapes", "40x24x16", "--rounds", "4"]
