"""Wave's own tests, from a checkout that the environment names: some here, all of them by wave_checkout/run.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = "TILEWAVE_WAVE_CHECKOUT"
RUN = Path(__file__).parent / "wave_checkout" / "run.py"


@pytest.mark.skipif(CHECKOUT not in os.environ, reason=f"{CHECKOUT} names no checkout of Wave's repository")
@pytest.mark.parametrize("test", ["test_copy", "test_alibi_attention", "test_igemm_conv", "test_fused_softmax"])
def test_a_test_of_waves_passes(test):
    done = subprocess.run([sys.executable, RUN, test], capture_output=True, text=True, check=False)
    assert f".{test} | runs |" in done.stdout, done.stdout[-2000:]


def test_without_a_checkout_it_says_what_is_missing():
    without = {name: x for name, x in os.environ.items() if name != CHECKOUT}
    done = subprocess.run([sys.executable, RUN], capture_output=True, text=True, check=False, env=without)
    assert done.returncode == 2 and f"set {CHECKOUT}" in done.stdout
