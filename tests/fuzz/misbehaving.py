"""A worker whose nets do what no net should: the runner's tests watch what becomes of it."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from .nets import NETS
from .worker import main


def dies(seed: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(seed: int) -> None:
    time.sleep(600)


def takes_all_memory(seed: int) -> None:
    held = [np.empty(1 << 28, np.uint8) for _ in range(64)]  # not even touched
    assert held


def raises(seed: int) -> None:
    raise ValueError(f"seed {seed}")


def finds(seed: int) -> str | None:
    return f"{seed} is odd" if seed % 2 else None


if __name__ == "__main__":
    NETS.update(dies=dies, hangs=hangs, takes_all_memory=takes_all_memory, raises=raises, finds=finds)  # type: ignore[arg-type]
    main()
