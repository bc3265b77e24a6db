"""What a measurement was made on: the device, its driver, the libraries, and the commit of tilewave."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilewave._version import __version__
from tilewave.children import ChildFailed, run_child
from tilewave.errors import TargetError
from tilewave.records import dataclass
from tilewave.runtime.cuda_driver import CudaDevice, cuda_driver

LOADED_DRIVER = Path("/proc/driver/nvidia/version")
CPUINFO = Path("/proc/cpuinfo")
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class MeasuredOn:
    """The machine of a record."""

    device: str
    driver: str = ""
    torch: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of the baselines' packages."""
    commit: str = ""
    """The commit of tilewave's repository; empty if it is installed as a package."""

    def to_json(self) -> dict[str, Any]:
        return {
            "tilewave": __version__,
            "commit": self.commit,
            "device": self.device,
            "driver": self.driver,
            "torch": self.torch,
            "versions": self.versions,
        }


def this_cpu() -> MeasuredOn:
    return MeasuredOn(f"{_cpu_name()} ({platform.system()} {platform.machine()})", commit=commit())


def _cpu_name() -> str:
    """As the system calls it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return " ".join(found[1].split()) if found else platform.processor() or "CPU"


def this_gpu(device: CudaDevice, driver: str, torch: Any, packages: dict[str, str]) -> MeasuredOn:
    return MeasuredOn(device.name, driver, str(torch.__version__), packages, commit())


BENCH = "tilewave bench"


def nvidia_gpu(target: str, command: str = BENCH) -> tuple[CudaDevice, str]:
    """Return the GPU and its driver; an error that says why the command can measure nothing here."""
    try:
        driver = cuda_driver()
        device = driver.device(0)
    except TargetError as error:
        remedy = "run it where nvidia-smi shows an H100 or H200; `tilewave sim --machine H200` needs no GPU"
        raise TargetError(f"{command} measures on an NVIDIA GPU, but {error.what}", remedy=remedy) from None
    if not device.runs(target):
        what = f"{command} measures kernels for {target}, but {device.name} is {device.arch}"
        raise TargetError(what, remedy="run it on an H100 or H200")
    major, minor = driver.version
    return device, f"{_loaded_driver()}CUDA {major}.{minor}"


def _loaded_driver() -> str:
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", LOADED_DRIVER.read_text())
    except OSError:
        return ""
    return f"{found[0]}, " if found else ""


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def load() -> float:
    """Return the machine's load average over one minute."""
    return os.getloadavg()[0]


def busy(load: float) -> list[str]:
    """What a reader must know of a machine that had other work."""
    cores = os.cpu_count() or 1
    given = f"the load was {load:.1f} on {cores} {'core' if cores == 1 else 'cores'} when this began"
    return [f"{given}; other work makes times longer"] if load > cores / 2 else []


def commit() -> str:
    """Return the commit of the repository that tilewave runs from, with a + if files were changed since; else ""."""
    if not (REPOSITORY / ".git").exists():
        return ""
    git = ("git", "-C", str(REPOSITORY))
    try:
        head = run_child([*git, "rev-parse", "--short=12", "HEAD"])
        changed = run_child([*git, "status", "--porcelain", "--untracked-files=no"])
    except ChildFailed:
        return ""
    if head.returncode or changed.returncode:
        return ""
    return head.stdout.decode().strip() + ("+" if changed.stdout.strip() else "")
