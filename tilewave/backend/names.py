"""The names of the targets, without importing their backends (`targets.py`)."""

from __future__ import annotations

DEFAULT_TARGET = "cpu"
"""The default target, which every machine has."""

INTERPRETER = "numpy"
"""The target for which every kernel compiles: tiles in numpy, independent of a chip."""

TARGET_NAMES = (DEFAULT_TARGET, "gfx942", "gfx950", "sm_90a", INTERPRETER)
"""The names in `TARGETS`, in its order; a test compares the two."""

COUNTED_TARGETS = ("gfx942", "gfx950", "sm_90a")
"""The targets whose K loops can be counted."""

MODELLED_TARGETS = ("gfx942", "gfx950")
"""The targets whose K loops have cycles by a model of a compute unit."""

CUDA_TARGET = "sm_90a"
"""The first target for arrays on `cuda`."""
