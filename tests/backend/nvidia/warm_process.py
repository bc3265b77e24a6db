"""A process that multiplies tensors on a GPU that is not here, and prints what it has imported and launched."""

import ctypes
import json
import sys

import pytest
from fake_array_libraries import install_torch
from fake_cuda import FakeCuda, Gpu
from test_dynamic_calls import FEW, SAID, Library, operands, seen, with_views

from tilewave.ops import products
from tilewave.ops.plans import Operated
from tilewave.runtime.background import BACKGROUND_WORK
from tilewave.tune import configs

SIZES = (100, 512, 256), (1, 512, 256), (33, 512, 128), (640, 640, 64)
ROUNDS = 3


def install_gpu(patch):
    """Let programs find a driver that plays an H200, and every other library where it is."""
    fake, opened = FakeCuda(Gpu()), ctypes.CDLL
    patch.setattr(ctypes, "CDLL", lambda file, *more: fake if "cuda" in str(file) else opened(file, *more))
    patch.setitem(configs.SETS, "nvidia", FEW)
    patch.setattr("tilewave.ops.plans.MOST_NEW", 0)  # the library has no allocations of its own
    return fake


def called(lib, op):
    """Call an operation as torch's operators do, until all that the background does is done."""
    for m, n, k in SIZES * ROUNDS:
        arrays = operands(lib, m, n, k)
        if op.replay(arrays, SAID, True) is None:
            op(lib, arrays, *SAID)
        BACKGROUND_WORK.wait()


def main():
    patch = pytest.MonkeyPatch()
    fake, torch = install_gpu(patch), install_torch(patch)
    with_views(torch)
    op = Operated("matmul", ("a", "b", "out?"), products._matmul)
    called(Library(torch), op)
    assert not fake.faults
    (plans,) = op.dynamic.values()
    (plan,) = plans.calls.plans
    programs = plan._guards, *(program for calls in plan._serving if calls for program in calls.programs)
    found = {
        "modules": [*sys.modules],
        "launches": [str(seen(fake, at)) for at in range(len(fake.launches))],
        "compiled": [bool(program.memory.get("code")) for program in programs],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
