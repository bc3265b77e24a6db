"""Imported before numpy: its products stay on one thread, for tests run side by side and would wait for each other."""

import os

for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
