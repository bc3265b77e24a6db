"""A share of the arrays with false attributes, in a separate process: a crash names its seed."""

import subprocess
import sys
from pathlib import Path

SHARE = 400
RUN = """
import faulthandler, sys
faulthandler.enable()
from fuzz.arrays import case
for seed in range({share}):
    print(seed, flush=True)
    found = case(seed)
    if found:
        sys.exit(found)
"""


def test_arrays_that_lie_are_used_as_they_are_or_refused():
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", RUN.format(share=SHARE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests)
    assert done.returncode == 0, f"after seed {done.stdout.split()[-1:]}: code {done.returncode}\n{done.stderr}"
    assert done.stdout.split() == [str(seed) for seed in range(SHARE)]
