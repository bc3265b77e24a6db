"""README and docs are tested: code, printed output, error texts, commands, links, lengths, and lists of names.

Blocks of one document run in order, in one namespace, in an empty directory that contains `examples`. A block is saved
there under the name in its info string (```python gemm.py), so that errors and later commands can name it.

    ```python              run; its output is compared with a ```text block right after it
    ```python error        must raise a TilewaveError whose text is the ```text block after it
    ```python torch        run where torch is installed
    ```sh                  run where it begins with `tilewave`; in a ```text block after it, … matches anything

`pytest tests/test_documents.py --update-golden` writes the output into the documents; read the diff.
"""

import ast
import contextlib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import tilewave
from tilewave.bench import measure
from tilewave.cli.commands import COMMANDS
from tilewave.cli.main import main
from tilewave.errors import TilewaveError
from tilewave.ir import ops
from tilewave.ir.core import part_names
from tilewave.ir.types import DType
from tilewave.lang.mma_types import MMAType
from tilewave.pipeline import cpu_lists, lists, tile_level

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
EXAMPLES = sorted(path.stem for path in ROOT.glob("examples/*.py"))
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^tilewave ([a-z]+)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text, and the line where the text begins."""

    info: tuple[str, ...]
    text: str
    line: int

    @property
    def kind(self):
        return self.info[0] if self.info else ""

    @property
    def file(self):
        named = [word for word in self.info if word.endswith(".py")]
        return named[0] if named else f"example_{self.line}.py"


NOTHING = Block((), "", 0)


def blocks_of(text):
    return [
        Block(tuple(m["info"].split()), m["text"], text.count("\n", 0, m.start("text")) + 1)
        for m in FENCE.finditer(text)
    ]


def name_of(document):
    return str(document.relative_to(ROOT))


documents = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


# -- running --------------------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty directory with `examples`, which can be imported; other tests' copies of them are put aside."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)  # before each sample; no page shows a time of this machine
    monkeypatch.setattr(sys, "path", [str(tmp_path / "examples"), *sys.path])
    aside = {name: sys.modules.pop(name) for name in EXAMPLES if name in sys.modules}
    yield tmp_path
    for name in EXAMPLES:
        sys.modules.pop(name, None)
    sys.modules.update(aside)


@documents
def test_what_a_document_shows_happens(document, workplace, request):
    text = document.read_text()
    blocks = blocks_of(text)
    names = {"__name__": "document"}
    found = {}
    for block, following in zip(blocks, [*blocks[1:], NOTHING], strict=False):
        shown = following if following.kind == "text" else None
        where = f"{name_of(document)}:{block.line}"
        if block.kind == "python" and "gpu" in block.info and not cuda_is_here():
            continue  # tests/gpu runs it on a card
        if "torch" in block.info:
            pytest.importorskip("torch", reason="this page is about torch, which is not installed")
        if block.kind == "python":
            said = run_python(block, names, workplace, where)
            assert shown or not said or "error" not in block.info, (
                f"{where}: its error stands in no text block:\n{said}"
            )
            if shown:
                found[shown.line] = said
        elif block.kind == "sh" and COMMAND.match(block.text):
            run_commands(block, shown, workplace, where)
    if request.config.getoption("--update-golden") and not os.environ.get("CI"):
        document.write_text(with_output(text, found))
        return
    for shown in blocks:
        if shown.line in found:
            compare(found[shown.line], shown.text, f"{name_of(document)}:{shown.line}")


STARTS = [b for b in blocks_of((ROOT / "README.md").read_text()) if b.kind == "python" and b.text.startswith("import")]


def test_the_readme_has_three_starts():
    assert len(STARTS) == 3
    assert [word for start in STARTS for word in start.info if word == "gpu"] == ["gpu"]


@pytest.mark.parametrize("start", STARTS, ids=["numpy", "torch on a GPU", "AMD without a card"])
def test_a_start_runs_by_itself_in_an_empty_directory(start, tmp_path):
    """As it is copied from the page: nothing of ours lies beside it."""
    if "gpu" in start.info and not cuda_is_here():
        pytest.skip("this start is for a machine with a GPU, on which tests/gpu runs it")
    (tmp_path / "start.py").write_text(start.text)
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**elsewhere, "PYTHONPATH": str(ROOT)}  # the package, as if it were installed
    done = subprocess.run([sys.executable, "start.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_start_carries_no_order_for_a_chip():
    assert "WorkgroupMapping" not in STARTS[0].text and "xcd" not in STARTS[0].text


def cuda_is_here():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def run_python(block, names, directory, where):
    """What a block prints, or the text of the error it is meant to raise."""
    path = directory / block.file
    assert not path.exists(), f"{where}: there is a {block.file} already"
    path.write_text(block.text)
    linecache.checkcache(str(path))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, str(path), "exec", dont_inherit=True), names)
    except TilewaveError as error:
        assert "error" in block.info, f"{where}: {error}"
        return f"error: {error}\n"
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    assert "error" not in block.info, f"{where}: nothing went wrong here"
    return printed.getvalue()


def run_commands(block, shown, directory, where):
    known = set(COMMANDS)
    asked = set(COMMAND.findall(block.text))
    assert asked <= known, f"{where}: no command is called {sorted(asked - known)[0]!r}"
    printed = run_here(block.text, where) if is_plain(block.text) else run_in_bash(block.text, directory, where)
    if shown:
        pattern = ".*?".join(map(re.escape, shown.text.strip().split("…")))
        assert re.search(pattern, printed, re.DOTALL), f"{where}: the command printed\n{printed}"


TERMINAL = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}


def is_plain(text):
    """Return whether each line is one of our commands, which needs no shell."""
    lines = text.strip().splitlines()
    words = [list(shlex.shlex(line, posix=True, punctuation_chars=True)) for line in lines]
    return all(line[0] == "tilewave" and not any(set(word) <= set("|&;<>()") for word in line) for line in words)


def run_here(text, where):
    """Return what commands print, run in this process, where the compiler is there already."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        for name, value in TERMINAL.items():
            patch.setenv(name, value)
        for line in text.strip().splitlines():
            patch.setattr(sys, "argv", shlex.split(line, comments=True))
            try:
                main()
            except SystemExit as leave:
                assert not leave.code, f"{where}: exit code {leave.code}\n{printed.getvalue()}"
    return printed.getvalue()


def run_in_bash(text, directory, where):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    bash = ["bash", "-e", "-o", "pipefail", "-c", text]
    env = {**os.environ, **TERMINAL, "PATH": path}
    done = subprocess.run(bash, cwd=directory, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compare(found, shown, where):
    """Texts of errors may be shown with or without the `error: ` that a terminal puts before them."""
    shown = shown if shown.startswith("error: ") else shown.removeprefix("\n")
    found = found if shown.startswith("error: ") else found.removeprefix("error: ")
    if sys.version_info < (3, 11):  # Python tells no columns: no carets, and no variables' names in IR and memories
        if re.search(r"%\w|_shared\[", found):
            return
        found, shown = without_carets(found), without_carets(shown)
    assert found.rstrip() == shown.rstrip(), f"{where} shows something else"


def without_carets(text):
    return "\n".join(line for line in text.splitlines() if set(line.strip()) != {"^"})


def with_output(text, found):
    """The document with what was printed in its text blocks."""

    def put(match):
        line = text.count("\n", 0, match.start("text")) + 1
        if line not in found:
            return match[0]
        return f"```{match['info']}\n{found[line].rstrip()}\n```"

    return FENCE.sub(put, text)


# -- what a document must have --------------------------------------------------------------------------------------

MOST_WORDS = 1200
"""The longest page that teaches: about six screens, code included."""
LONG = ("README", "docs/ref/", "docs/decisions", "docs/contributing", "docs/internals/ir-ops", "docs/internals/passes-")
"""The beginnings of paths of lists that are looked up, which may be longer."""


@documents
def test_a_page_is_short(document):
    words = [word for word in document.read_text().split() if re.search(r"\w", word)]  # | and = are none
    if not name_of(document).startswith(LONG):
        assert len(words) <= MOST_WORDS, (
            f"{name_of(document)} has {len(words)} words; split it, or move lists to docs/ref"
        )


@documents
def test_a_page_begins_with_a_title_and_says_what_the_reader_gets(document):
    title, blank, first, *_ = document.read_text().splitlines()
    assert title.startswith("# ") and not blank and first, f"{name_of(document)}: no paragraph after the title"


@documents
def test_every_section_that_shows_code_checks_something(document):
    text = document.read_text()
    for section in re.split(r"^(?=#+ )", FENCE.sub(lambda m: m[0].replace("\n#", "\n\0#"), text), flags=re.MULTILINE):
        blocks = blocks_of(section)
        python = [b for b in blocks if b.kind == "python"]
        checked = any("assert" in b.text or "error" in b.info for b in python) or any(b.kind == "text" for b in blocks)
        assert checked or not python, f"{name_of(document)}: nothing can fail in {section.partition(chr(10))[0]!r}"


@documents
def test_every_text_block_is_checked(document):
    blocks = blocks_of(document.read_text())
    for before, block in zip([NOTHING, *blocks], blocks, strict=False):
        checked = before.kind in ("python", "sh")
        assert block.kind != "text" or checked, f"{name_of(document)}:{block.line}: nobody checks this text"


@documents
def test_links_lead_somewhere(document):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", document.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), f"{name_of(document)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{name_of(document)} links to {target}: no such heading"


@documents
def test_files_that_prose_names_are_there(document):
    prose = FENCE.sub("", document.read_text())
    for name in re.findall(r"`([a-z_0-9/]+/(?!x\.py)[a-z_0-9]+\.(?:py|md|csv|cu))`", prose):
        homes = ROOT, ROOT / "tilewave", ROOT / "docs", ROOT / "examples"
        assert any((home / name).exists() for home in homes), f"{name_of(document)} names {name}, which is not there"


def anchors(text):
    """The names that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@documents
def test_a_file_that_is_quoted_is_quoted_as_it_is(document):
    """```ir tests/check/simplify.ir holds that file."""
    for block in blocks_of(document.read_text()):
        for file in block.info[1:]:
            if "/" in file:
                assert block.text == (ROOT / file).read_text(), f"{name_of(document)}:{block.line}: {file} differs"


@documents
def test_prose_names_only_values_that_are_shown(document):
    text = document.read_text()
    shown = {name for block in blocks_of(text) for name in re.findall(r"%\w+", block.text)}
    prose = {
        name for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) for name in re.findall(r"%[a-z]\w*", code)
    }
    assert not sorted(prose - shown)


def words_in_code(document):
    """Every word that stands in a code block or between backticks."""
    text = document.read_text()
    code = [b.text for b in blocks_of(text)] + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return {word for piece in code for word in re.findall(r"\w+", piece)}


def test_the_language_reference_names_everything_public():
    words = words_in_code(ROOT / "docs/ref/language.md")
    assert not sorted(set(tilewave.__all__) - words)
    assert not sorted({x.name for x in vars(tilewave).values() if isinstance(x, DType)} - words)
    assert not [m.name for m in MMAType if m.name not in words]


def test_the_pass_documents_have_a_section_for_every_pass():
    pages = sorted(ROOT.glob("docs/internals/passes*.md"))
    heads = set().union(*(anchors(page.read_text()) for page in pages))
    source = "".join(Path(module.__file__).read_text() for module in (tile_level, cpu_lists, lists))
    listed = re.findall(r"^from tilewave\.passes\.(?:\w+\.)*(\w+) import", source, re.MULTILINE)
    assert not sorted(set(listed) - heads)


def test_every_decision_is_short_and_says_why():
    decisions = sorted(ROOT.glob("docs/decisions/*.md"))
    numbers = [path.name[:4] for path in decisions]
    assert numbers == [f"{n:04}" for n in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text()
        heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert heads == ["Context", "Decision", "Consequences"], path.name
        assert len(text.splitlines()) <= 25, f"{path.name} is long"


def test_every_decision_is_in_the_list(request):
    document = ROOT / "docs/decisions.md"
    head, rule, _ = document.read_text().partition("|---|---|\n")
    titles = {path.name: path.read_text().partition("\n")[0] for path in sorted(ROOT.glob("docs/decisions/*.md"))}
    rows = [re.sub(r"# (\d+): (.*)", rf"| [\1](decisions/{name}) | \2 |\n", title) for name, title in titles.items()]
    if request.config.getoption("--update-golden") and not os.environ.get("CI"):
        document.write_text(head + rule + "".join(rows))
    assert document.read_text() == head + rule + "".join(rows), "a decision is missing; run pytest --update-golden"


# -- the table of ops -----------------------------------------------------------------------------------------------

BEGIN, END = "<!-- ops: made by tests/test_documents.py --update-golden -->\n", "<!-- end of ops -->\n"


def test_the_op_document_lists_every_op(request):
    document = ROOT / "docs/internals/ir-ops.md"
    head, rest = document.read_text().split(BEGIN)
    table, tail = rest.split(END)
    if request.config.getoption("--update-golden") and not os.environ.get("CI"):
        document.write_text(head + BEGIN + op_tables() + END + tail)
        return
    assert table == op_tables(), "the ops say something else; run pytest --update-golden"
    assert not sorted(word for word in ops.VOCABULARY if f"`{word}" not in table)


def op_tables():
    """One table per file of `ir/ops`; ops that say nothing for themselves share a line."""
    made = []
    for idea in ops.IDEAS:
        rows = [r for r in map(op_row, classes_in(Path(idea.__file__).read_text())) if r]
        title = idea.__doc__.partition("\n")[0]
        made.append(f"**{title}**\n\n| op | levels | meaning |\n|---|---|---|\n")
        made += [f"| {spelled} | {levels} | {meaning} |\n" for spelled, levels, meaning in merged(rows)]
        made.append("\n")
    return "\n" + "".join(made)


def classes_in(code):
    """(class, the first paragraph of its own docstring) in the order of the file."""
    tree = ast.parse(code)
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    known = [n for n in classes if hasattr(ops, n.name)]
    return [(getattr(ops, n.name), " ".join(first_paragraph(ast.get_docstring(n) or "").split())) for n in known]


def first_paragraph(text):
    return text.partition("\n\n")[0]


def op_row(given):
    cls, meaning = given
    if cls.word() not in ops.VOCABULARY:
        return None
    levels = ", ".join(level for level, allowed in ops.LEVELS.items() if cls in allowed)
    return f"`{spelling(cls)}`", levels, meaning


def spelling(cls):
    """`read(memory, [at]) {axes, through, per_lane}`."""
    kinds = {name: str(cls.__dataclass_fields__[name].type) for name in part_names(cls)}
    lists = {"Value": "{}", "tuple[Value, ...]": "[{}]"}
    operands = [lists[kind].format(name) for name, kind in kinds.items() if kind in lists]
    attributes = [name for name, kind in kinds.items() if kind not in lists and kind != "Block"]
    regions = "".join(f" do {name}" for name, kind in kinds.items() if kind == "Block")
    return f"{cls.word()}({', '.join(operands)})" + (f" {{{', '.join(attributes)}}}" if attributes else "") + regions


def merged(rows):
    found = []
    for spelled, levels, meaning in rows:
        if not meaning and found and not found[-1][2] and found[-1][1] == levels:
            found[-1] = (f"{found[-1][0]} {spelled}", levels, "")
        else:
            found.append((spelled, levels, meaning))
    return [(s, levels, meaning or "what its name says") for s, levels, meaning in found]


def test_blocks_are_found_with_their_names():
    text = "# x\n```python error gemm.py\na\n```\n\n```text\nb\n```\n"
    python, shown = blocks_of(text)
    assert (python.kind, python.file, python.text, python.line) == ("python", "gemm.py", "a\n", 3)
    assert shown == replace(python, info=("text",), text="b\n", line=7)
    assert with_output(text, {7: "new\n"}) == text.replace("b\n", "new\n")
