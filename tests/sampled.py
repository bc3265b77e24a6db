"""How many examples property tests draw, and how many of a test's cases are run: all of them in `make test-slow`."""

import os
from zlib import crc32

ALL = os.environ.get("TILEWAVE_TEST_ALL") == "1"
"""Set by `make test-slow`."""
FEWEST = 5


def examples(count):
    """Return the number of examples of this run, for a property test that draws `count` in the slow tests."""
    return count if ALL else min(count, max(FEWEST, count // 4))


def some_of(cases, count=1):
    """Return `count` of the cases that a test runs one after the other, and all in the slow tests.

    Which ones, its name decides: other tests run others, and each the same in every run.
    """
    cases = tuple(cases)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    first = crc32(test.encode()) % max(len(cases), 1)
    return cases if ALL else (*cases[first:], *cases[:first])[:count]
