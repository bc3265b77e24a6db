"""Write the machine code of a corpus of kernels, or compare two such folders.

    python benchmarks/machine_code.py build/before              # at one commit
    python benchmarks/machine_code.py build/after               # at another
    python benchmarks/machine_code.py build/before build/after  # what differs, but for the names of kernels

The corpus is that of the exact runs (`tests/exact_corpus.py`) and full-size products and attention on the GPU targets.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from exact_corpus import CORPUS, GPUS, TARGETS, Case, GalleryCase, attending, multiplying
from rich.progress import track

from tilewave import bf16, f16, f32, sym
from tilewave.compiled import Compiled
from tilewave.kernels.attentions import K2
from tilewave.kernels.linear import ProductForm, product_kernel

LARGE = {
    **{
        f"large {layout} {dtype}": multiplying(
            dtype, dtype, (4096, 4096, 4096), layout=layout, tile=(128, 256, 64), targets=GPUS
        )
        for layout in ("nt", "nn", "tn", "tt")
        for dtype in (f16, bf16)
    },
    "small grid": multiplying(f16, f16, (256, 256, 32768), tile=(128, 128, 64), targets=GPUS),
    "last wave": multiplying(f16, f16, (4096, 4608, 4096), tile=(128, 256, 64), workgroups=132, targets=GPUS),
    "unaligned": multiplying(f16, f16, (2047, 2049, 2051), tile=(128, 128, 64), targets=GPUS),
    "open sizes": Case(lambda: product_kernel(ProductForm(f16, f16)), {}, targets=TARGETS),
    "open sizes, bias": Case(lambda: product_kernel(ProductForm(bf16, bf16, bias=f32, activation="gelu")), {}),
    "attention": attending({sym.M: 4096, K2: 4096}, (128, 128, 8)),
    "causal attention": attending({sym.M: 4096, K2: 4096}, (128, 128, 8), causal=True),
}


def cases() -> Iterator[tuple[str, Case, str]]:
    """The name of each case, the case, and a target that it is compiled for."""
    for group, named in {**CORPUS, "large": LARGE}.items():
        for name, case in named.items():
            for target in case.targets:
                yield re.sub(r"\W+", "_", f"{group} {name} {target}"), case, target


def compiled(case: Case, target: str) -> Compiled:
    return case.make().compiled(target) if isinstance(case, GalleryCase) else case.compiled(target)


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, case, target in track(list(cases()), "compiling"):
        (folder / f"{name}.s").write_text(compiled(case, target).asm)


def compare(before: Path, after: Path) -> int:
    """Print which files differ; return how many."""
    names = sorted({p.name for folder in (before, after) for p in folder.glob("*.s")})
    differing = [n for n in names if _text(before / n) != _text(after / n)]
    for name in differing:
        print(f"differs: {name}")
    print(f"{len(names) - len(differing)} of {len(names)} files are identical")
    return len(differing)


def _text(path: Path) -> str:
    """Return the instructions without debug information, which names source files and lines."""
    found = path.read_text() if path.exists() else ""
    return re.sub(r"(?m)^\s*\.(loc|file)\s.*\n", "", re.sub(r'"/[^"]*"', '"…"', found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="one: write; two: compare")
    folders = parser.parse_args().folders
    sys.exit(compare(*folders) > 0 if len(folders) == 2 else write(folders[0]))
