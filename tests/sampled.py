"""How many examples property tests draw: a quarter of them in every run, all in `make test-slow`."""

import os

ALL = os.environ.get("TILEWAVE_TEST_ALL") == "1"
"""Set by `make test-slow`."""
FEWEST = 5


def examples(count):
    """Return the number of examples of this run, for a property test that draws `count` in the slow tests."""
    return count if ALL else min(count, max(FEWEST, count // 4))
