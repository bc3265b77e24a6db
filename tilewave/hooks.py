"""Functions of upper layers that lower ones call: the package sets them, so that no module imports upwards."""

from collections.abc import Callable
from typing import Any


class Hooks:
    """The hooks of the package; `tilewave/__init__.py`, which is imported before any other module, sets each."""

    autotune: Callable[..., Any]
    """`tilewave.bench.tuning.tune`: times configs of a kernel, and saves a tuning record."""
    torch_operators: Callable[[], Any]
    """Imports `tilewave.torch.operators`, and torch with it, and returns the module."""
