"""A kernel's PTX on NVIDIA GPUs: assembled once per device, launched by `LaunchTemplate`s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewave.records import dataclass
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.cuda_driver import CudaDriver, cuda_driver
from tilewave.runtime.cuda_launch import CudaModule, CudaResources, Launcher
from tilewave.runtime.gpu_launch import LaunchPlace
from tilewave.runtime.launch_template import LaunchCode, LaunchTemplate


@dataclass(frozen=True)
class CudaCode:
    """A kernel's compiled code: PTX or a cubin, its architecture, and how to launch it."""

    kernel: str
    """The kernel's name, which is also that of its entry point."""
    arch: str
    code: bytes
    launch: LaunchCode
    names: tuple[str, ...] = ()
    """The names of its arrays, for error messages."""


@dataclass(frozen=True)
class _Loaded:
    module: CudaModule
    launcher: Launcher


@dataclass
class CudaProgram:
    """A kernel's code on the devices of this machine; the driver is loaded at the first launch."""

    code: CudaCode
    _loaded: dict[int, _Loaded] = field(default_factory=dict, repr=False)

    def template(self, views: Sequence[ArrayView], on: LaunchPlace) -> LaunchTemplate:
        """Return the launch with everything computed that the layout of these arrays decides."""
        return self._on(on.number).launcher.template(views, on.stream)

    def resources(self, number: int = 0) -> CudaResources:
        """Return registers, spills and shared bytes, as the driver of a device reports them."""
        return self._on(number).launcher.function.resources

    def log(self, number: int = 0) -> str:
        """Return the assembler's log."""
        return self._on(number).module.log

    def _on(self, number: int) -> _Loaded:
        return self._loaded.get(number) or self._load(cuda_driver(self.code.kernel), number)

    def _load(self, driver: CudaDriver, number: int) -> _Loaded:
        c = self.code
        driver.require(c.kernel, number, c.arch)
        module = CudaModule(driver, number, c.code, c.kernel)
        made = _Loaded(module, Launcher(module.function(c.kernel), c.launch, c.names))
        return self._loaded.setdefault(number, made)
