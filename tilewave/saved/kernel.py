"""A compiled kernel ↔ the members of its file: its IR text, what a launch must provide, and the target's members."""

from __future__ import annotations

from dataclasses import asdict

from tilewave.analysis.every_size import EverySize
from tilewave.analysis.indexed_writes import as_windows
from tilewave.analysis.schedule import Correction, stores
from tilewave.analysis.size_proofs import Verdicts
from tilewave.backend.protocol import Build
from tilewave.backend.targets import TARGETS
from tilewave.errors import SavedKernelError, here
from tilewave.ir.core import Kernel
from tilewave.ir.effects import touched
from tilewave.ir.launch import numbers_of, open_sizes
from tilewave.ir.rewrite import walk
from tilewave.ir.types import DTYPES, INDEX_SCALAR, Extent, Memory
from tilewave.lang.assumptions import Assumed, from_record
from tilewave.records import dataclass
from tilewave.runtime.records import Record, restored
from tilewave.runtime.saved_file import Contents, Path, read, write

TILES = "kernel.ir"
UNSAID = "its file does not say that it is right for all of them"


@dataclass(frozen=True)
class SavedKernel:
    """The contents of a compiled kernel's file."""

    kernel: Kernel
    """The kernel's IR on whole tiles."""
    target: str
    dynamic_symbols: tuple[str, ...]
    verdicts: Verdicts
    build: Build
    assumed: tuple[Assumed, ...] = ()


def write_kernel(path: Path, saved: SavedKernel) -> None:
    about, members = TARGETS[saved.target].stored(saved.build)
    facts = {
        "name": saved.kernel.name,
        "target": saved.target,
        "workgroups": saved.kernel.workgroups,
        "parameters": [asdict(p) for p in saved_parameters(saved.kernel)],
        "dynamic_symbols": saved.dynamic_symbols,
        "remedy": saved.verdicts.remedy.text,
        **({"every_size": asdict(saved.verdicts.proof)} if saved.verdicts.proof != EverySize() else {}),
        **({"assumed": [a.record for a in saved.assumed]} if saved.assumed else {}),
    }
    write(path, {**facts, **about}, {TILES: str(saved.kernel).encode(), **members})


@dataclass(frozen=True)
class SavedParameter:
    """An array that a kernel takes; a dynamic extent is a name."""

    name: str
    shape: tuple[Extent, ...]
    dtype: str
    written: bool


def saved_parameters(kernel: Kernel) -> tuple[SavedParameter, ...]:
    written = touched(kernel)[0]
    memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
    return tuple(SavedParameter(v.name, v.type.extents, v.type.dtype.name, v in written) for v in memories)


def read_kernel(path: Path) -> tuple[Contents, SavedKernel]:
    """Return the file, and the kernel in it."""
    contents = read(path)
    about = contents.about
    kernel = contents.kernel(TILES)
    target = about.text("target")
    parameters = tuple(_parameter(p) for p in about.records("parameters"))
    symbols, indices = about.texts("dynamic_symbols"), (v.name for v in numbers_of(kernel) if v.type == INDEX_SCALAR)
    build = _loaded_build(contents, target, kernel)
    workgroups: Extent = about.text("workgroups") if type(kernel.workgroups) is str else about.number("workgroups")
    given = about.text("name"), workgroups, parameters
    fitting = tuple(name for name in indices if name not in open_sizes(kernel))
    if given != (kernel.name, kernel.workgroups, saved_parameters(kernel)) or symbols != fitting:
        raise contents.unaligned(TILES)
    proof = _every_size(contents, kernel)
    verdicts, assumed = Verdicts(kernel, proof, Correction(about.text("remedy"))), _assumed(contents, kernel)
    return contents, SavedKernel(kernel, target, symbols, verdicts, build, assumed)


def _assumed(contents: Contents, kernel: Kernel) -> tuple[Assumed, ...]:
    """Return the conditions on the numbers of a call; none in files of kernels without assumptions."""
    given = {v.name for v in numbers_of(kernel)}
    found = contents.about.fields.get("assumed", [])
    try:
        assumed = tuple(map(from_record, found if isinstance(found, list) else [None]))
    except (TypeError, ValueError):
        raise contents.unaligned(TILES) from None
    if any(s.name not in given for a in assumed for s in a.condition.symbols()):
        raise contents.unaligned(TILES)
    return assumed


def _every_size(contents: Contents, kernel: Kernel) -> EverySize:
    """Return the proof made at compile time; without one, dynamic sizes are checked at each call."""
    if "every_size" not in contents.about.fields:
        return EverySize(doubts=(UNSAID,)) if open_sizes(kernel) else EverySize()
    found = restored(EverySize, contents.about.record("every_size"))
    ranks = {v.name: v.type.rank for v in kernel.body.args if isinstance(v.type, Memory)}
    windows = all(ranks.get(w.array) == len(w.window) and min(w.window) >= 1 for w in found.windows)
    symbols = {v.name for v in numbers_of(kernel) if v.type == INDEX_SCALAR}
    has_windows = any(op.memory in kernel.body.args for op in walk(as_windows(kernel).body) if stores(op))
    if not windows or not symbols.issuperset(found.positive) or (found.holds and has_windows and not found.windows):
        raise contents.unaligned(TILES)
    return found


def _loaded_build(contents: Contents, target: str, kernel: Kernel) -> Build:
    if target in TARGETS:
        return TARGETS[target].load(contents, kernel)
    raise SavedKernelError(
        f"{contents.path} is for {target}, for which this tilewave loads nothing",
        loc=here(),
        remedy=f"load it with the tilewave that wrote it, {contents.about.text('tilewave')}",
    )


def _parameter(p: Record) -> SavedParameter:
    dtype, shape = p.text("dtype"), p.fields.get("shape")
    extents = shape if type(shape) is list else p.fail("shape")
    known = dtype if dtype in DTYPES else p.fail("dtype")
    return SavedParameter(p.text("name"), tuple(_extent(p, "shape", e) for e in extents), known, p.truth("written"))


def _extent(record: Record, name: str, found: object) -> Extent:
    if type(found) is int and 0 <= found < 1 << 63:
        return found
    return found if type(found) is str else str(record.fail(name))
