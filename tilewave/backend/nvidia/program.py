"""PTX of a kernel for an NVIDIA chip, compiled or from the cache, run on a card.

Arrays that are not aligned for TMA or wide loads need other code, by its specialization key, compiled at their first
call; one key serves all arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from tilewave.analysis.l2_residency import shared_operands
from tilewave.backend.nvidia.code import ALIGNED, NvidiaCode, Specialization
from tilewave.backend.nvidia.make import Make, compiler, launch_of_code
from tilewave.backend.nvidia.packing import (
    PACK,
    TRANSPOSE,
    UNPACK,
    WIDEST_TRANSPOSED,
    RowCopy,
)
from tilewave.backend.nvidia.plans import LaunchPlans
from tilewave.backend.nvidia.ptxas import Assembled, assemble_ptx, ptxas, read_log
from tilewave.backend.nvidia.row_copies import RowCopies
from tilewave.backend.nvidia.specialize import ArrayAccesses, written_arrays
from tilewave.errors import NOWHERE, CallError, SlowCodeWarning, SpillWarning, here, warn_of_code
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel
from tilewave.ir.host_program import Number, chosen, rounded_up
from tilewave.ir.launch import HostLaunch, LaunchSteps, is_open, numbers_of, open_sizes
from tilewave.ir.remarks import Remark
from tilewave.ir.stream_k import MOST_TILES
from tilewave.ir.types import Memory
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import Chip
from tilewave.records import dataclass
from tilewave.runtime.array_layouts import Placed, words_at
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.arrays import Parameter
from tilewave.runtime.call_cache import CallCache
from tilewave.runtime.call_checks import check_call, device_number
from tilewave.runtime.cuda import CudaCode, CudaProgram
from tilewave.runtime.cuda_calls import ClassLaunch, CudaCalls, GivenNumber
from tilewave.runtime.cuda_driver import cuda_driver
from tilewave.runtime.gpu_launch import LaunchForm, LaunchFormula, LaunchPlace
from tilewave.runtime.launch_template import KnownLaunch, LaunchCode, LaunchTemplate
from tilewave.runtime.private_memory import WHOLE_CALLS

Parameters = tuple[Parameter, ...]


@dataclass(frozen=True, eq=False)
class NvidiaProgram:
    """One kernel for one chip, with its code by specialization key."""

    tiles: Kernel
    """The kernel on tiles, with the name and the parameters."""
    lanes: Callable[[Specialization], Kernel]
    """Returns the lane-level kernel for a key."""
    alignments: frozenset[int]
    """The alignments that there is another kernel for than for cache lines."""
    chip: Chip
    make: Make | None
    """None where a file has the code: arrays that fit no other code use the one for any strides."""
    packs: bool = False
    """Whether unaligned arrays may be packed for TMA."""
    known_copies: Mapping[RowCopy, NvidiaCode] = field(default_factory=dict)
    """Code of packing copies, from a file."""
    codes: dict[Specialization, NvidiaCode] = field(default_factory=dict)
    programs: dict[Specialization, CudaProgram] = field(default_factory=dict)
    """Programs of earlier calls."""
    _warned: set[tuple[int, int]] = field(default_factory=set)
    """The programs and devices whose code was checked for spills and serialized wgmma."""

    @property
    def name(self) -> str:
        return self.tiles.name

    @cached_property
    def memories(self) -> list[Any]:
        return [v for v in self.tiles.body.args if isinstance(v.type, Memory)]

    @cached_property
    def copies(self) -> RowCopies:
        """The packing copies of its arrays."""
        return RowCopies(self.name, self.chip, dict(self.known_copies))

    @property
    def copies_needed(self) -> tuple[RowCopy, ...]:
        """All packing copies that calls may need."""
        memories = self.memories if self.packs else []
        kinds = Counter((UNPACK if v.name in self.written else PACK, v.type.dtype.bytes, v.type.rank) for v in memories)
        copies = [RowCopy(*kind, count + 1) for kind, most in kinds.items() for count in range(most)]
        transposed = [RowCopy(TRANSPOSE, size, rank) for kind, size, rank in kinds if kind == PACK and rank > 1]
        return (*copies, *(copy for copy in transposed if copy.element_bytes <= WIDEST_TRANSPOSED))

    @property
    def llvm_ir(self) -> str | None:
        """The LLVM IR, where the kernel is compiled here."""
        if self.make is None:
            return None
        ir: str = compiler().lowered_for(self.kernel_for(ALIGNED), self.chip, ALIGNED).llvm_ir
        return ir

    @property
    def ptx(self) -> str:
        """The PTX for aligned arrays."""
        return self.code_for(ALIGNED).ptx

    @property
    def assembled(self) -> Assembled | None:
        """Resources of the code that the driver loaded, or else of this machine's ptxas; None without either."""
        for program in self.programs.values():
            found, log = program.resources(), program.log()
            return Assembled(found.registers, found.local_bytes, read_log(log).serialized, log)
        return assemble_ptx(self.ptx, self.chip.cpu) if ptxas() else None

    # -- running it

    def run(self, arrays: Sequence[Any], numbers: Sequence[int], parameters: Parameters) -> None:
        """Run the kernel on the arrays' device and stream, without synchronization."""
        self.calls(arrays, numbers, parameters)

    def prepare(self, arrays: Sequence[Any], parameters: Parameters) -> None:
        """Load the code for arrays of this layout on their device, also while other threads record CUDA graphs."""
        driver = cuda_driver(self.name)
        with driver.beside_recordings():
            views = check_call(self.name, parameters, arrays, "cuda", NOWHERE, driver.device_of)
            plan, number = self.plans.plan_for(views), device_number(views)
            self.program_for(plan.key).resources(number)
            self.copies.prepare(plan.packed_copies, views, number)

    @cached_property
    def calls(self) -> NvidiaCalls:
        """The calls of the kernel, with the launches of earlier ones."""
        extents = [() if self.is_open else v.type.shape for v in self.memories]
        pairs = zip(self.memories, extents, strict=True)
        parameters = tuple([Parameter(v.name, shape, v.type.dtype, v.name in self.written) for v, shape in pairs])
        return NvidiaCalls(self, parameters)

    @cached_property
    def has_scratch(self) -> bool:
        """Whether a launch may use scratch memory; before arrays are known, all code counts."""
        if self.is_open or self.packs:
            return True
        return any(a.kind == "scratch" for a in self.code_for(ALIGNED).arguments)

    @cached_property
    def given(self) -> tuple[GivenNumber, ...]:
        """The scalar arguments of a call that do not follow from its arrays."""
        passed = open_sizes(self.tiles)
        numbers = enumerate(numbers_of(self.tiles))
        return tuple(GivenNumber(i, v.name, v.type.dtype) for i, v in numbers if v.name not in passed)

    @property
    def binaries(self) -> tuple[str, ...]:
        names = {v.name for v in self.memories}
        return tuple("any arrays" if names == {*key.any_strides} else key.arrays for key in self.codes)

    @cached_property
    def is_open(self) -> bool:
        return is_open(self.tiles)

    def tile_count(self, numbers: Sequence[int]) -> int:
        """Return the number of tiles of a launch."""
        known = self.tiles.workgroups
        return known if isinstance(known, int) else self._tile_launch(numbers).workgroups

    def writes_nothing(self, shapes: Iterable[Sequence[int]]) -> bool:
        """Return whether all arrays that the kernel writes are empty."""
        return all(0 in shape for v, shape in zip(self.memories, shapes, strict=True) if v.name in self.written)

    @cached_property
    def _tile_launch(self) -> HostLaunch:
        return HostLaunch.of(self.tiles)

    def program_for(self, key: Specialization) -> CudaProgram:
        found = self.programs.get(key)
        if found is None:
            code, names = self.code_for(key), tuple(v.name for v in self.memories)
            made = CudaCode(self.name, self.chip.cpu, code.ptx.encode(), self.launch_of(code), names)
            found = self.programs[key] = CudaProgram(made)
        return found

    def template(self, key: Specialization, views: Sequence[ArrayView], on: LaunchPlace) -> LaunchTemplate:
        """Return the launch template of code for arrays with the same layout as these."""
        program = self.program_for(key)
        self.warn_of_slow_code(program, on.number)
        return program.template(views, on)

    def launch_of(self, code: NvidiaCode) -> LaunchCode:
        """Return how code is launched; an exception where it is none of this kernel's: a file may have any contents."""
        arrays = [(v.type.rank, v.type.dtype) for v in self.memories]
        return LaunchCode(launch_of_code(code, self.tiles), arrays, len(numbers_of(self.tiles)), self._formula(code))

    def _formula(self, code: NvidiaCode) -> LaunchFormula:
        """Return the function from scalar arguments to a launch: scalars, grid, and checks of the tile count."""
        given = [v.name for v in numbers_of(self.tiles)]
        steps, tiles_of = code.launches.steps(given, code.symbols), LaunchSteps(self.tiles, given, ())

        def formula(numbers: Sequence[Number]) -> LaunchForm:
            workgroups, passed = steps(numbers)
            if not self.is_open:
                return LaunchForm(passed, (workgroups, 1, 1))
            tiles, _ = tiles_of(numbers)
            is_one_round = workgroups == rounded_up(tiles, code.cluster) * code.cluster
            early = chosen(self._streams(dict(zip(given, numbers, strict=True))), 0, is_one_round)
            return LaunchForm(passed, (workgroups, 1, 1), (tiles > 0, tiles <= MOST_TILES), early)

        return formula

    def _streams(self, sizes: Mapping[str, Number]) -> Number:
        """Return whether neighbours share an operand that L2 cannot keep: such a launch does not start early."""
        card = STANDING_FOR.get(self.chip.name)
        if card is None:
            return False
        found: Number = False
        for operand in shared_operands(self.tiles):
            found = operand.is_streamed(sizes, card) | found
        return found

    def warn_of_slow_code(self, program: CudaProgram, number: int) -> None:
        """Warn once of serialized wgmma and spills; the code is correct but slow."""
        if (id(program), number) in self._warned:
            return
        self._warned.add((id(program), number))
        passed, spilled = read_log(program.log(number)), program.resources(number).local_bytes
        if passed.serialized:
            what = f"{self.name}: products wait for each other: {passed.serialized[0]}"
            warn_of_code(f"{what}; smaller tiles leave more registers", SlowCodeWarning)
        if spilled:
            what = f"{self.name}: {spilled} bytes of a lane are spilled"
            warn_of_code(f"{what}; smaller tiles need fewer registers", SpillWarning)

    # -- which code

    @cached_property
    def accesses(self) -> ArrayAccesses:
        """How the code for aligned arrays accesses them, found without compiling for dynamic shapes."""
        if ALIGNED in self.codes or not self.is_open:
            return ArrayAccesses.of_code(self.tiles, self.code_for(ALIGNED), self.chip, self.alignments)
        return ArrayAccesses.of(self.tiles, self.kernel_for(ALIGNED), self.chip, self.alignments)

    @cached_property
    def plans(self) -> LaunchPlans:
        return LaunchPlans(self.tiles, self.accesses, self._served, self.packs)

    def _served(self, key: Specialization) -> Specialization:
        """Return the key of code for arrays with a key: of that itself, or of what a file has for more arrays."""
        if self.make or key in self.codes:
            return key
        return next((known for known in self.codes if known.is_wider(key)), self.accesses.fallback)

    def kernel_for(self, key: Specialization) -> Kernel:
        return self.lanes(key)

    def code_for(self, key: Specialization) -> NvidiaCode:
        if key not in self.codes:
            assert self.make is not None, f"the plans give what the file has, not {key}"
            self.codes[key] = self.make(key, self.kernel_for)
        return self.codes[key]

    @cached_property
    def written(self) -> frozenset[str]:
        return written_arrays(self.tiles)

    def remarks_for(self, arrays: Sequence[Any], parameters: Parameters) -> tuple[Remark, ...]:
        """Return remarks on what these arrays keep the code from."""
        return self.plans.remarks(check_call(self.name, parameters, arrays, "cuda", here()))


class NvidiaCalls(CudaCalls):
    """The calls of a kernel, whose code is selected by the layout of the arrays."""

    def __init__(self, program: NvidiaProgram, parameters: Parameters) -> None:
        super().__init__(program.name, parameters, program.given, program.has_scratch)
        self._program = program

    def new_launch(
        self, views: Sequence[ArrayView], numbers: Sequence[int], on: LaunchPlace, parameters: Sequence[Parameter]
    ) -> ClassLaunch:
        program = self._program
        tiles = program.tile_count(numbers)
        if not tiles or program.writes_nothing(v.shape for v in views):
            return NothingToDo(program)
        if tiles > MOST_TILES:
            what = f"{program.name}: {tiles:,} tiles, and a launch computes {MOST_TILES:,} at most"
            raise CallError(what, remedy="call it with parts of the arrays")
        if program.packs and program.plans.unaligned_arrays(views):
            return EitherLaunch(program, tuple(views), on)
        return program.template(program.plans.key_for(views), views, on)


class EitherLaunch:
    """A launch with unaligned arrays: each call packs them for TMA, or runs the code in which lanes load."""

    def __init__(self, program: NvidiaProgram, views: tuple[ArrayView, ...], on: LaunchPlace) -> None:
        self._program, self._views, self._on = program, views, on
        self._known: CallCache[Any, tuple[KnownLaunch, ...]] = CallCache()
        """Launches by arrays and scalars: planning a launch takes longer than making it."""

    def launch(self, placed: Placed, numbers: Sequence[int]) -> bool:
        key = *words_at(placed), *numbers
        launches = self._known.get(key)
        if launches is None:
            if not 0 < self._program.tile_count(numbers) <= MOST_TILES:
                return False
            launches = self._known.keep(key, tuple(self._launches(placed, numbers)))
        with WHOLE_CALLS:
            made = [launch() for launch in launches]
        return all(made)

    def _launches(self, placed: Placed, numbers: Sequence[int]) -> list[KnownLaunch]:
        """Return the launches of a call, in order."""
        program, views = self._program, [v.at(array) for v, array in zip(self._views, placed, strict=True)]
        plan = program.plans.plan_for(views)
        main = program.template(plan.key, plan.views(views), self._on)
        if not plan.packed_copies:
            return [main.known(placed, numbers)]
        memory = program.copies.memory(plan.packed_copies, views, self._on)
        before, after = program.copies.launches(plan.packed_copies, views, memory, self._on)
        return [*before, main.known([v.placed for v in plan.views(views, memory)], numbers), *after]


class NothingToDo(NamedTuple):
    """A launch without tiles, or with nothing to write: it is skipped, since empty arrays may have no address."""

    program: NvidiaProgram

    def launch(self, placed: Placed, numbers: Sequence[int]) -> bool:
        return not self.program.tile_count(numbers) or self.program.writes_nothing(a.lengths for a in placed)
