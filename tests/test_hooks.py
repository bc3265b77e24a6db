"""What lower layers use of upper ones is there before its first use, whichever module is imported first."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write
from tilewave.hooks import Hooks
from tilewave.ops import arrays

M, N = sym.M, sym.N

FIRST = {
    "the public names": "from tilewave import wave",
    "the kernels": "import tilewave.kernels",
    "the operations": "import tilewave.ops",
    "a name of the module": "import tilewave; tilewave.sym",
}


@pytest.mark.parametrize("script", FIRST.values(), ids=FIRST)
def test_kernels_can_be_called_whatever_is_imported_first(script):
    end = "\nfrom tilewave.lang.kernel import WaveKernel; print(WaveKernel.calling.prepared.__module__)"
    done = subprocess.run([sys.executable, "-c", script + end], capture_output=True, text=True, check=True)
    assert done.stdout == "tilewave.call\n"


def test_torch_s_operators_come_by_the_hook(monkeypatch):
    monkeypatch.setattr(arrays._Door, "operators", None)
    monkeypatch.setattr(Hooks, "torch_operators", lambda: "operators")
    assert arrays.torch_operators() == "operators"


def doubled(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    tile = read(x)
    write(tile + tile, y)


DOUBLED = wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])(doubled)


def test_a_pickled_kernel_runs():
    kernel = pickle.loads(pickle.dumps(DOUBLED))
    x, y = np.ones((16, 32), np.float32), np.zeros((16, 32), np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, 2 * x)
