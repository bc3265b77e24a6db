"""Count the instructions in the matrix loops of an AMD code object, from any compiler.

    python benchmarks/loops_of_code_object.py fwd_hd128_bf16_rtne.co --objdump llvm-objdump-22

A loop is the target range of a backward branch, with more than eight matrix instructions. Needs llvm-objdump of LLVM 20
or later, which knows gfx950.
"""

import argparse
import re
import subprocess
from collections import Counter

INSTRUCTION = re.compile(r"\s+(\S+)\s.*//\s*([0-9A-F]+): ([0-9A-F]{8})")
KINDS = {
    "matrix": lambda name: name.startswith(("v_mfma", "v_smfma")),
    "exp": lambda name: name.startswith("v_exp"),
    "vector": lambda name: name.startswith("v_") and "mfma" not in name,
    "shared": lambda name: name.startswith("ds_"),
    "global": lambda name: name.startswith(("buffer_", "global_")),
    "barriers": lambda name: name == "s_barrier",
}


def instructions(path, objdump):
    """(address, name, address that it branches to or None) of each."""
    listed = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True).stdout
    for found in map(INSTRUCTION.match, listed.splitlines()):
        if found:
            name, address, word = found[1], int(found[2], 16), int(found[3], 16)
            words = (word & 0xFFFF ^ 0x8000) - 0x8000  # of a branch: how far, in words, with a sign
            yield address, name, address + 4 + 4 * words if "branch" in name else None


def loops(code):
    at = {address: i for i, (address, _, _) in enumerate(code)}
    for i, (_, _, target) in enumerate(code):
        if target in at and at[target] <= i:
            names = [name for _, name, _ in code[at[target] : i + 1]]
            if sum(map(KINDS["matrix"], names)) > 8:
                yield names


def main():
    parser = argparse.ArgumentParser(description="Counts the matrix loops of AMD code objects.")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--objdump", default="llvm-objdump")
    options = parser.parse_args()
    for path in options.files:
        for names in loops(list(instructions(path, options.objdump))):
            counts = {kind: sum(map(is_one, names)) for kind, is_one in KINDS.items()}
            most = Counter(filter(KINDS["matrix"], names)).most_common(1)[0][0]
            said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            print(f"{path}: {len(names)} instructions, {len(names) / counts['matrix']:.2f} per {most}: {said}")


if __name__ == "__main__":
    main()
