"""`Compiled`: a kernel for one target, which is called, interpreted, emulated, printed and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

from tilewave.analysis.contracts import CHECKED, checking, checks_contracts, unless_checked
from tilewave.analysis.coverage import Cut, tiles_of
from tilewave.analysis.every_size import EverySize
from tilewave.analysis.indexed_writes import as_windows
from tilewave.analysis.schedule import stores
from tilewave.analysis.size_proofs import Verdicts
from tilewave.arguments import with_targets
from tilewave.backend.protocol import Build, ReplayedCall
from tilewave.checked_call import Observed, want_checked
from tilewave.compiled_arguments import CompiledArguments
from tilewave.compiled_code import CompiledCode
from tilewave.errors import CallError, WrongDevice, here
from tilewave.forks import IMPORTING
from tilewave.interpreted import (
    checked_passes,
    emulate_build,
    emulated_code,
    interpret_build,
    interpret_tiles,
    order_of,
)
from tilewave.ir.core import Kernel
from tilewave.ir.remarks import Remark
from tilewave.ir.rewrite import walk
from tilewave.lang.assumptions import Assumed
from tilewave.lang.kernel import no_grid
from tilewave.pipeline.runner import Step
from tilewave.pipeline.why import Why
from tilewave.records import dataclass
from tilewave.runtime.arrays import place_of
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.dynamic_calls import DynamicKernel

if TYPE_CHECKING:
    from tilewave.emulator import EmulationReport
    from tilewave.emulator.findings import Check
    from tilewave.emulator.run import Order as WaveOrder
    from tilewave.interp.exact_check import PassCheck
    from tilewave.runtime.kernel_set import KernelSet
    from tilewave.tune.choose import TileChoice


@dataclass(frozen=True, eq=False)
class Compiled(CompiledCode, CompiledArguments):
    """A kernel with fixed tile sizes; its array sizes are static, or given by each call. Every step can be printed."""

    kernel: Kernel
    """The kernel on whole tiles, which the schedule and the interpreter read."""
    traced: Kernel
    tile_steps: tuple[Step, ...]
    target: str
    dynamic_symbols: tuple[str, ...]
    build: Build
    verdicts: Verdicts = field(repr=False)
    """What was proved or checked of the sizes that it was called with."""
    file: str = ""
    """The file that it was loaded from, without its steps; empty where it was compiled."""
    assumed: tuple[Assumed, ...] = ()
    """The author's assumptions on the scalar arguments and sizes of a call."""
    not_taken: tuple[Remark, ...] = ()
    """Remarks on options that were replaced or have no effect."""
    proved: tuple[Remark, ...] = ()
    """For a batch-invariant kernel, the order of each of its sums."""
    elsewhere: Callable[[str], Compiled] | None = field(default=None, repr=False)
    """Compiles the kernel for another device, that of a call's arrays, if its author named no target."""
    choice: TileChoice | None = None
    """The tile sizes that were chosen, where the author gave none, and why."""
    observed: Observed | None = field(default=None, repr=False)
    """The kernel with its `assert_` and `debug_log`, where it has any: compiled code has none."""
    by_size: KernelSet[TileChoice, Compiled] | None = field(default=None, repr=False)
    """Where tile sizes are chosen by the sizes of each call: the kernels of all configs."""

    @property
    def chosen_for(self) -> str:
        """The target that the tile sizes were chosen for; empty where the author gave them."""
        return self.target if self.choice else ""

    @property
    def config(self) -> str:
        """The chosen tile sizes and order, and their target: `BLOCK_M=128, chosen for cpu`."""
        return f"{self.choice.text}, chosen for {self.target}" if self.choice else ""

    def __repr__(self) -> str:
        if self.open_sizes:
            most = {name: f" up to {most:,}" for name, _, most in self.kernel.limits}
            sizes = ", ".join(f"{name}{most.get(name, '')}" for name in self.open_sizes)
            return f"<compiled {self.name} for {self.target}: any {sizes}, {self.proof.verdict}>"
        tiles = "x".join(map(str, grid_of(self.kernel)))
        return f"<compiled {self.name} for {self.target}: {self.workgroups} workgroups, {tiles} tiles>"

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        """Yield what rich prints, and a notebook shows as a table."""
        yield "name", self.name
        yield "target", self.target
        if self.open_sizes:
            most = {name: f"up to {most:,}" for name, _, most in self.kernel.limits}
            yield "sizes", {name: most.get(name, "any") for name in self.open_sizes}
        else:
            yield "workgroups", self.workgroups
            yield "tiles", grid_of(self.kernel)
        yield "proof", self.proof.verdict
        for name, figure in ({} if self.file else self.build.metrics).items():
            if figure not in ((), []):
                yield name, figure

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_in_words(value))}</td></tr>"
            for name, value in self.__rich_repr__()
        )
        return f"<table>{cells}</table>"

    # -- running it

    def __getitem__(self, grid: object) -> NoReturn:
        """Refuse `compiled[grid](…)`, as the kernel does."""
        raise no_grid(self.name, self.signature.names)

    def __call__(self, /, *arrays: Any, **named: Any) -> None:
        """Run the kernel on the device it was compiled for; arrays and scalars in the author's order, or by name.

        With `check=True`, contracts of index arrays and assertions are checked before.
        """
        if named and CHECKED in named and CHECKED not in self.signature.names:
            with checking(named.pop(CHECKED)):
                self(*arrays, **named)
            return
        values: Mapping[str, Any] = {}
        if named or self.arguments.takes_numbers:
            arrays, values = self.arguments.bind(arrays, named)
        self.launch(arrays, values)

    def launch(self, arrays: Sequence[Any], values: Mapping[str, Any]) -> None:
        """Run the kernel with arrays in its order, and scalar arguments by name, converted as `Signature` does."""
        try:
            if self._has_checks and checks_contracts():
                want_checked(self.kernel, self.observed, self.arguments, arrays, values)
            served = self if self.by_size is None else self.by_size.of(_shapes(arrays), arrays)
            served.build.call(arrays, values, served.arguments.sized)
        except WrongDevice as error:
            if self.elsewhere is None:
                raise with_targets(error) from None
            self.elsewhere(place_of(arrays[0])[0]).launch(arrays, values)

    @property
    def _has_checks(self) -> bool:
        """Whether there is something to check of the arrays of a call."""
        return bool(self.kernel.contracts) or self.observed is not None

    def replay(self, arrays: Sequence[Any], values: Mapping[str, Any], fresh: Collection[int]) -> ReplayedCall | None:
        """Return a replayed call for arrays with the same layout as these; `fresh` are those that no one else holds.

        It takes arrays of the same library with the same layout at any addresses. None where calls need the full check.
        """
        if self.by_size is not None:
            shapes = _shapes(arrays)
            return self.by_size.of(shapes).replay(arrays, values, fresh) if self.by_size.is_settled(shapes) else None
        call = self.build.replay(arrays, values, self.arguments.sized, fresh)
        return unless_checked(call) if call is not None and self._has_checks else call

    def dynamic(self, arrays: Sequence[Any], values: Mapping[str, Any]) -> DynamicKernel | None:
        """Return the kernels by which machine code makes calls of any sizes; None where it did not make this one."""
        kernels = self.by_size
        served = self if kernels is None else kernels.of(_shapes(arrays), arrays)
        if self._has_checks or not served.build.is_native(arrays, values):
            return None
        if kernels is None:
            return DynamicKernel(None, lambda made: self.build.native_calls)
        if kernels.native is None or kernels.maker.has_records():
            return None
        return DynamicKernel(kernels, lambda made: made.build.native_calls, tuple(kernels.passed.values()))

    def interpret(self, /, *arrays: Any, level: str = "tile", order: str = "", seed: int = 0, **named: Any) -> None:
        """Run the kernel's IR in numpy, on whole tiles or lane by lane, and report races and uninitialized reads.

        level="tile": order="launch", or "shuffled": the workgroups in a random order.
        level="lane": order="in turn", "backwards" or "random": how the waves of a workgroup take turns.
        """
        order = order_of(self.name, level, order)
        given = self.arguments.bind(arrays, named)
        if level == "lane":
            interpret_build(self.arguments, self.build, self.target, *given, order, seed)
        else:
            observed = self.observed.kernel if self.observed else None
            interpret_tiles(self.arguments, *given, seed if order == "shuffled" else None, observed)

    def check_passes(self, /, *arrays: Any, **named: Any) -> PassCheck:
        """Check that every pass preserves what the kernel computes from these arrays, which are not changed.

        The kernel is interpreted after each pass, with floats as elements of a finite ring: orders of sums compare
        equal, and everything else is compared bit for bit. The result is false where a pass is wrong, and prints as a
        table.
        """
        if self.by_size is not None:
            return self.by_size.of(_shapes(arrays)).check_passes(*arrays, **named)
        return checked_passes(self.arguments, self.traced, lambda: self.steps, *self.arguments.bind(arrays, named))

    def emulate(
        self,
        /,
        *arrays: Any,
        order: WaveOrder = "barrier",
        seed: int = 0,
        check: Check = "strict",
        limit: int | None = None,
        **named: Any,
    ) -> EmulationReport:
        """Run the emitted machine code on this CPU, and check its waits, barriers, races and bounds.

        order="barrier": each wave runs to its next barrier; "random": waves take turns at random. check="warn"
        reports problems instead of raising at the first. A wave that takes more than `limit` instructions counts as
        endless; by default the limit follows from the arrays' sizes.
        """
        emulated = emulated_code(self.name, self.build, self.target)
        given = self.arguments.bind(arrays, named)
        report: EmulationReport = emulate_build(self.arguments, emulated, *given, order, seed, check, limit)
        return report

    def prepack(self, array: Any, name: str = "") -> Any:
        """Return an operand in the layout that launches read fastest, for weights that many calls use.

        `name` says which operand, where they need different layouts.
        Where each launch would copy the operand first, or lanes would load it, it is copied here once, and calls take
        the copy instead; later writes to the array do not reach it. An array with a good layout is returned unchanged.
        """
        try:
            return self.build.prepacked(array, name)
        except Refused as refused:
            remedy = refused.remedy.replace("{name}", "it")
            raise CallError(f"{self.name}: prepack: the array {refused.what}", loc=here(), remedy=remedy) from None

    def save(self, path: str | PathLike[str]) -> None:
        """Write the kernel to a file that `tilewave.load` runs on machines where nothing is compiled."""
        with IMPORTING:
            from tilewave.saved.kernel import SavedKernel, write_kernel  # noqa: PLC0415  zipfile is heavy; few save

        facts = self.kernel, self.target, self.dynamic_symbols, self.verdicts
        write_kernel(path, SavedKernel(*facts, self.build, self.assumed))

    # -- its proof and its remarks

    @property
    def proof(self) -> EverySize:
        """The proof that the kernel is correct for every size, or why new sizes are checked; prints as a sentence."""
        return self.verdicts.proof

    def why(self, *arrays: Any) -> Why:
        """Return the remarks of passes that did nothing, with their reasons; prints as a table.

        With arrays, it includes what their layouts keep a GPU's machine code from.
        """
        found = Why.of(self.steps).of_options(self.not_taken)
        found = found.of_sums(self.proved)
        choice = self.by_size.choice(_shapes(arrays)) if self.by_size is not None and arrays else self.choice
        if choice is not None:
            found = found.of_choice(choice.remarks())
        if not arrays:
            return found
        return found.of_a_call(self.build.remarks_for(arrays, self.sizes.of_call(arrays, {}).parameters))


def _in_words(value: object) -> str:
    """Return a value as text for a cell of a table."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {size}" for name, size in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of a call's arrays; by DLPack for arrays without a `shape`."""
    try:
        return [array.shape for array in arrays]
    except AttributeError:
        return [place_of(array)[1] for array in arrays]


def grid_of(kernel: Kernel) -> tuple[int, ...]:
    """Return the tiles along each axis of the first memory that the kernel writes."""
    known = (tiles_of(kernel, Cut.by(op), op.memory) for op in walk(as_windows(kernel).body) if stores(op))
    return next(known, (kernel.workgroup_count,))
