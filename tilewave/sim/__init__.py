"""Where the bytes go: caches, memory and time of a kernel or a GEMM, on a machine that need not be here."""

from tilewave.sim.dispatch import Residency
from tilewave.sim.explain import explain
from tilewave.sim.problem import Gemm, SimError
from tilewave.sim.report import Report
from tilewave.sim.search import Ranked, best
from tilewave.sim.simulate import sensitivity, simulate

__all__ = ["Gemm", "Ranked", "Report", "Residency", "SimError", "best", "explain", "sensitivity", "simulate"]
