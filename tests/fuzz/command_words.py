"""Command lines at random: every command, over random kernel files, with options that are right, odd or wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from . import source
from .command_options import ACTIONS, CHIPS, GRIDS, MAPS, OF_FILES, WITHOUT_FILES, Options
from .generate import generate

TARGETS = ("cpu", "numpy", "gfx942", "gfx950", "sm_90a")
NO_TARGETS = ("foo", "H200", "h100", "sm90a", "gfx94", "CPU", "MI300X", "sm_90", "cpu ", "all", "cuda", "None", "-1")
PROGRAMS = 24
"""The number of random kernels, so that each is made once."""
OPEN_TILES = """
from tilewave import *

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, sym.BLOCK_M, 0), WorkgroupConstraint(N, sym.BLOCK_N, 1)]
TILES += [TilingConstraint(K, sym.BLOCK_K)]


@wave(TILES)
def product(a: Memory[M, K, G, {dtype}], b: Memory[N, K, G, {dtype}], c: Memory[M, N, G, {acc}]):
    @iterate(K, init_args=[Register[M, N, {acc}](0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)
"""
COPY = """
from tilewave import *

M, N = sym.M, sym.N


@wave([WorkgroupConstraint(M, {tile}, 0), WorkgroupConstraint(N, {tile}, 1)])
def copy(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, {dtype}], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, {dtype}]):
    write(read(a), c)
"""
SCALED = """
from tilewave import *

M = sym.M


@wave([WorkgroupConstraint(M, 64, 0)])
def scaled(a: Memory[M, GLOBAL_ADDRESS_SPACE, f32], factor: f32, c: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a) * factor, c)
"""
BROKEN = (
    "",
    "x = 1\n",
    "from tilewave import *\n",
    "def f(:\n",
    "raise ValueError('mine')\n",
    "import nowhere_at_all\n",
)


@dataclass(frozen=True)
class KernelFile:
    """A file of kernels, and the sizes that it needs."""

    text: str
    sizes: tuple[tuple[str, str], ...] = ()
    is_open: bool = False
    """Whether the compiler chooses its tiles."""
    is_right: bool = True


@dataclass
class CommandLine:
    """A command, the files around it, and what is known of it."""

    words: list[str]
    files: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Why it must end with an error, if it must."""
    odd: bool = False
    """Something is in it that may be refused."""
    outputs: list[str] = field(default_factory=list)
    """Files and directories that the command is to write."""
    kernel: KernelFile | None = None

    @property
    def is_json(self) -> bool:
        return "--json" in self.words


@cache
def program_file(seed: int) -> KernelFile:
    program = generate(seed, "numpy" if seed % 2 else "cpu")
    sizes = {name: value.replace("SHARED_ADDRESS_SPACE", "shared") for name, value in source.subs(program).items()}
    return KernelFile(source.kernel_source(program), tuple(sizes.items()), is_open=False)


def kernel_file(r: random.Random) -> KernelFile:
    kind = r.random()
    if kind < 0.35:
        dtype = r.choice(["f16", "f16", "bf16", "f32", "i8", "f64", "f8e4m3fn"])
        acc = {"i8": "i32", "f64": "f64"}.get(dtype, "f32")
        sizes = [(name, str(r.choice([16, 33, 64, 100, 512, 2048]))) for name in "MNK"]
        return KernelFile(OPEN_TILES.format(dtype=dtype, acc=acc), tuple(sizes), is_open=True)
    if kind < 0.55:
        text = COPY.format(dtype=r.choice(["f32", "f16", "i8", "bf16"]), tile=r.choice(["16", "32", "sym.BLOCK"]))
        return KernelFile(text, (("M", str(r.choice([1, 7, 64]))), ("N", str(r.choice([1, 48, 65])))), "BLOCK" in text)
    if kind < 0.62:
        return KernelFile(SCALED, (("M", "100"),))
    if kind < 0.7:
        return KernelFile(r.choice(BROKEN), (), is_right=False)
    return program_file(r.randrange(PROGRAMS))


TARGETED = ("compile", "diff", "run", "bench", "tune")
WRITES = {
    "map": ("--svg", "--html"),
    "sim": ("--html",),
    "explore": ("--html",),
    "tune": ("--html",),
    "bench": ("--save",),
}
JSON = ("map", "run", "bench", "diff", "compile", "sim", "tune", "records", "machines", "doctor", "emulate", "cycles")
SIZES_OPTION = {"tune": "--sizes", "run": "--sizes", "bench": "--sizes"}
NO_SIZES = ("M=0", "M=-1", "M=", "M", "=3", "M=1.5", "M=x", "M=nan", "Q=3", "M=" + "9" * 30, "M=64,M", "1=2")


def command_line(seed: int) -> CommandLine:
    r = random.Random(f"command {seed}")
    line = _of_file(r) if r.random() < 0.65 else _without_file(r)
    line.odd |= line.words[0] == "bench"  # without a GPU there may be nothing to measure
    if r.random() < 0.45 and line.words[0] in JSON:
        line.words.append("--json")
    if r.random() < 0.03:
        line.words.append(r.choice(["--nosuch", "--targt=cpu", "-q", "surplus_argument_that_is_too_many"]))
        line.odd = True
    return line


def _of_file(r: random.Random) -> CommandLine:
    command, kernel = r.choice([*OF_FILES, "tune", "tune", "sim", "compile"]), kernel_file(r)
    while command == "explore" and kernel.is_right and "IndexMapping" in kernel.text:
        kernel = kernel_file(r)  # a page of a random kernel takes a minute
    line = CommandLine([command, "kernel.py"], {"kernel.py": kernel.text}, kernel=kernel)
    line.odd = not kernel.is_right or not kernel.is_open
    if command in ("run", "bench"):
        line.words += {"run": ["--repeats", "1"], "bench": ["--rounds", "1", "--mode", "short"]}[command]
        line.odd = True  # sizes, scalars and dtypes that cannot be measured
    _add_sizes(r, line, kernel)
    if command in TARGETED and r.random() < 0.7:
        _add_target(r, line)
    if command == "tune" and r.random() < 0.9:
        line.words += ["--strength", "model"]
    _add_options(r, line, OF_FILES[command])
    _add_outputs(r, line)
    if command == "compile" and r.random() < 0.3:
        line.words += ["--out", "made"]
        line.outputs.append("made")
    if command == "tune":
        line.words += ["--records", "kept"]
        line.outputs.append("kept")
    if r.random() < 0.03:
        line.words[1] = r.choice(["nowhere.py", ".", "", "kernel"])
        line.wrong.append("there is no such file")
    return line


def _without_file(r: random.Random) -> CommandLine:
    command = r.choice(list(WITHOUT_FILES))
    words, options = WITHOUT_FILES[command]
    line = CommandLine([command, *words])
    FIRST_WORDS.get(command, lambda r, line: None)(r, line)
    if command in ("sim", "run", "explore"):
        small = {"--shape": "64x64x64", "--tile": "32x32x32"}
        line.words += [word for pair in small.items() for word in pair]
        options = {n: v for n, v in options.items() if n not in small or r.random() < 0.3}
    _add_options(r, line, options)
    _add_outputs(r, line)
    return line


def _map_words(r: random.Random, line: CommandLine) -> None:
    for text, kind in (r.choice(GRIDS), r.choice(MAPS)):
        _note(line, kind, text)
        line.words.append(text)


def _machine_words(r: random.Random, line: CommandLine) -> None:
    if r.random() < 0.6:
        name, kind = r.choice(CHIPS)
        line.words.append(name)
        _note(line, kind, f"machine {name}")


def _record_words(r: random.Random, line: CommandLine) -> None:
    action, kind = r.choice(ACTIONS)
    _note(line, kind, f"action {action}")
    line.files["mine.jsonl"] = r.choice(["", "{}\n", "x\n", '{"kernel": 1}\n', "[]\n", "null\n"])
    line.words += [action, r.choice(["mine.jsonl", "mine.jsonl", "nowhere.jsonl", "."])]
    line.odd = True


CODES = ["", "s_endpgm\n", ".text\nfoo:\n  s_endpgm\n", "\x00\x01\x02", "v_add_f32 v0, v1\n"]


def _code_words(r: random.Random, line: CommandLine) -> None:
    line.files["code.s"] = r.choice(CODES)
    line.words += r.choice([["code.s"], ["code.s", "foo"], ["nowhere.s"], ["code.s", "nosuch"]])
    line.odd = True


def _cycles_words(r: random.Random, line: CommandLine) -> None:
    line.files["code.s"] = r.choice(CODES)
    line.words.append(r.choice(["code.s", "code.s", "nowhere.s", "nowhere.py"]))
    line.odd = True


FIRST_WORDS = {
    "map": _map_words,
    "machines": _machine_words,
    "records": _record_words,
    "emulate": _code_words,
    "cycles": _cycles_words,
}


def _note(line: CommandLine, kind: str, what: str) -> None:
    if kind == "bad":
        line.wrong.append(what)
    line.odd |= kind == "odd"


def _add_sizes(r: random.Random, line: CommandLine, kernel: KernelFile) -> None:
    option, sizes = SIZES_OPTION.get(line.words[0], "--set"), list(kernel.sizes)
    if sizes and r.random() < 0.12:
        sizes.pop(r.randrange(len(sizes)))
        line.odd = True
    if sizes:
        line.words += [option, ",".join(f"{name}={value}" for name, value in sizes)]
    else:
        line.odd = True
    if r.random() < 0.1:
        line.words += [option, r.choice(NO_SIZES)]
        line.odd = True


def _add_target(r: random.Random, line: CommandLine) -> None:
    if r.random() < 0.3:
        line.words += ["--target", r.choice(NO_TARGETS)]
        line.wrong.append(f"no target is called {line.words[-1]}")
    else:
        line.words += ["--target", r.choice(TARGETS)]
        line.odd |= line.words[-1] != "cpu"


def _add_options(r: random.Random, line: CommandLine, options: Options) -> None:
    for name in r.sample(list(options), min(len(options), r.choice([0, 1, 1, 2]))):
        good = [v for v in options[name] if v[1] == "good"]
        value, kind = r.choice(good if good and r.random() < 0.6 else options[name])
        line.words += [name, value]
        _note(line, kind, f"{name} {value!r}")
        line.odd = True  # two that are right may not go together


def _add_outputs(r: random.Random, line: CommandLine) -> None:
    for option in WRITES.get(line.words[0], ()):
        if line.words[0] == "explore" or r.random() < 0.3:  # it would serve its page without an end
            name = r.choice(["page.out", "page.out", "page.out", "nowhere/page.out"])
            line.words += [option, name]
            line.outputs.append(name)
            line.odd |= "/" in name
