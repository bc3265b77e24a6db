"""The mutants of a source, the tests that hold a module, and a session on a package of one function."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from .__main__ import main
from .changed import NotARevision, changed_lines, default_base, lines_of_difference
from .equivalent import LIST, BadEntry, Equivalent, read_equivalents
from .mutations import Mutant, mutants_of, parses
from .report import as_json, as_text, enough_killed
from .rooms import TESTS_OF, folders_of, module_tests
from .session import Found, NotRun, Plan, Session, Tried, candidates, draw, run
from .trial import NO_TESTS, Copy, Limits, Outcome, Ran, SelectedTests, limits_after

ROOT = Path(__file__).parents[2]

EACH_KIND = [
    ("a < b", ["a <= b"]),
    ("a <= b", ["a < b"]),
    ("a > b", ["a >= b"]),
    ("a >= b", ["a > b"]),
    ("a == b", ["a != b"]),
    ("a != b", ["a == b"]),
    ("a in b", ["a not in b"]),
    ("a not  in b", ["a in b"]),
    ("a is b", []),
    ("a < b < c", ["a <= b < c", "a < b <= c"]),
    ("a + b", ["a - b"]),
    ("a - b", ["a + b"]),
    ("a * b", ["a + b"]),
    ("a // b", ["a % b"]),
    ("a % b", ["a // b"]),
    ("a / b", []),
    ("a += b", ["a -= b"]),
    ("a //= b", ["a %= b"]),
    ("(a) + ( # +\n(b))", ["(a) - ( # +\n(b))"]),
    ("é + b", ["é - b"]),
    ("a and b or c", ["a or b or c", "a and b and c"]),
    ("not a", ["a"]),
    ("not(a)", ["(a)"]),
    ("x = 7", ["x = 6", "x = 8"]),
    ("x = 0x10", ["x = 15", "x = 17"]),
    ("x = True", []),
    ("min(a, b)", ["max(a, b)"]),
    ("np.maximum(a, b)", ["np.minimum(a, b)"]),
    ("x.reshape(-1)", []),
    ("x.reshape(2, -1)", ["x.reshape(1, -1)", "x.reshape(3, -1)"]),
    ("x[-1]", ["x[-0]", "x[-2]"]),
    ("if a: pass", ["if not (a): pass"]),
    ("if not a: pass", ["if a: pass"]),
    ("if a == b: pass", ["if a != b: pass"]),
    ("x = a if b else c", ["x = a if not (b) else c"]),
    ("[a for a in b if a]", ["[a for a in b if not (a)]"]),
    ("def f(x: A[1] = 2) -> B[3]: pass", ["def f(x: A[1] = 1) -> B[3]: pass", "def f(x: A[1] = 3) -> B[3]: pass"]),
    ("x: A[1] = b + c", ["x: A[1] = b - c"]),
    ("x = Literal[1]", []),
    ("assert a < b, c + d", ["assert a <= b, c + d"]),
    ("f'{a + 1}'", []),
    ("'%d' % (a + 1)", []),
    ("'a' + b + c", []),
    ("a += 'b' + c", []),
    ("'{}'.format(a + 1)", []),
    ("'''1 < 2'''", []),
    ("__all__ = a + b", []),
    ("if TYPE_CHECKING:\n    x = 1\nelse:\n    a < b", ["if TYPE_CHECKING:\n    x = 1\nelse:\n    a <= b"]),
]


@pytest.mark.parametrize(("source", "expected"), EACH_KIND, ids=[source for source, _ in EACH_KIND])
def test_each_kind_of_mutant_changes_its_own_span_alone(source, expected):
    found = [mutant.applied(source.encode()).decode() for mutant in mutants_of("x.py", source.encode())]
    assert sorted(found) == sorted(expected)
    assert all(parses(text.encode()) for text in found)


def test_a_mutant_knows_its_line_and_shows_its_lines_without_indents():
    source = b"def f(a, b):\r\n    # caf\xc3\xa9\r\n    return '\xc3\xa9', a < b\r\n"
    (mutant,) = mutants_of("x.py", source)
    assert (mutant.line, mutant.kind) == (3, "comparison")
    assert mutant.difference(source) == ("- return 'é', a < b", "+ return 'é', a <= b")
    assert mutant.applied(source) == source.replace(b"a < b", b"a <= b")


def test_a_condition_of_several_lines_is_negated_as_a_whole():
    source = b"if (\n    a\n    and b\n):\n    pass\n"
    negated = next(mutant for mutant in mutants_of("x.py", source) if mutant.kind == "condition")
    assert negated.applied(source) == b"if (\n    not (a\n    and b)\n):\n    pass\n"
    assert negated.difference(source) == ("- a", "- and b", "+ not (a", "+ and b)")


def test_every_mutant_of_the_tool_itself_can_be_parsed():
    for file in Path(__file__).parent.glob("*.py"):
        source = file.read_bytes()
        assert all(parses(mutant.applied(source)) for mutant in mutants_of(file.name, source)[::20])


def test_lines_of_a_difference():
    text = "+++ b/tilewave/a.py\n@@ -1 +1,2 @@ x\n+a\n+b\n@@ -9,3 +8,0 @@\n-c\n+++ b/tilewave/b.py\n@@ -4 +5 @@\n+d\n"
    assert lines_of_difference(text) == {"tilewave/a.py": {1, 2}, "tilewave/b.py": {5}}


@pytest.mark.parametrize(
    ("module", "folders"),
    [
        ("tilewave/passes/tile/simplify.py", ("tests/passes",)),
        ("tilewave/ops/rows.py", ("tests/ops", "tests/in_torch")),
        ("tilewave/cli/run.py", ("tests/cli",)),
        ("tilewave/backend/amd/program.py", ("tests/backend/amd",)),
        ("tilewave/backend/targets.py", ("tests/backend",)),
        ("tilewave/lower/gpu/kernel.py", ("tests/backend",)),
        ("tilewave/torch/op.py", ("tests/in_torch",)),
        ("tilewave/forks.py", ("tests/test_forks.py",)),
        ("tilewave/_version.py", ()),
    ],
)
def test_the_tests_of_a_module(module, folders):
    assert folders_of(ROOT, module) == folders


def test_every_folder_that_is_named_exists_and_every_module_but_the_version_has_tests():
    assert all((ROOT / place).exists() for place in TESTS_OF)
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tilewave").rglob("*.py")]
    without = {m for m in modules if not any((ROOT / folder).exists() for folder in folders_of(ROOT, m))}
    assert without == {"tilewave/__init__.py", "tilewave/_version.py"}


def test_tests_that_name_a_module_come_first():
    files = module_tests(ROOT, "tilewave/passes/schedule/interleave_mma.py")
    assert files.index("tests/passes/test_interleave_mma.py") < files.index("tests/passes/test_exact_passes.py")
    assert "tests/check/simplify.ir" in module_tests(ROOT, "tilewave/passes/tile/simplify.py")
    assert "tests/check/simplify.ir" not in files


def test_tests_of_other_folders_that_import_a_module_belong_to_it():
    files = module_tests(ROOT, "tilewave/analysis/packing.py")
    assert "tests/cost/test_unaligned_products.py" in files or "tests/analysis/test_reads.py" in files


def test_entries_of_equivalent_mutants():
    text = "# a comment\n\ntilewave/a.py\n- x = a < b\n+ x = a <= b\nThey are never\nequal.\n"
    entry = Equivalent("tilewave/a.py", ("- x = a < b", "+ x = a <= b"), "They are never equal.")
    assert read_equivalents(text) == [entry]


@pytest.mark.parametrize("text", ["tilewave/a.py\n- a\n+ b", "tilewave/a.py\nreason", "- a\n+ b\nreason"])
def test_an_entry_without_file_difference_or_reason_is_refused(text):
    with pytest.raises(BadEntry, match="an entry is a file, its lines"):
        read_equivalents(text)


def test_every_equivalent_mutant_is_still_one_of_its_file():
    for entry in read_equivalents(LIST.read_text()):
        source = (ROOT / entry.path).read_bytes()
        assert entry.difference in {mutant.difference(source) for mutant in mutants_of(entry.path, source)}


def test_what_a_run_means_for_a_mutant():
    meaning = {0: Outcome.SURVIVED, NO_TESTS: Outcome.SURVIVED, 1: Outcome.KILLED, 4: Outcome.KILLED}
    stopped = {-signal.SIGXCPU: Outcome.TIMED_OUT, -signal.SIGKILL: Outcome.TIMED_OUT, -signal.SIGSEGV: Outcome.KILLED}
    for status, outcome in (meaning | stopped).items():
        assert Ran(status, 0.0, "").outcome is outcome


def test_the_limits_leave_room_for_what_the_tests_take():
    assert limits_after(100.0).cpu_seconds > 300 and limits_after(100.0).wall_seconds > 3000


@pytest.mark.parametrize(("survivors", "enough"), [(0, True), (6, True), (7, False), (60, False)])
def test_nine_of_ten_must_be_killed_and_survivors_are_shown(survivors, enough):
    mutant = Mutant("tilewave/a.py", 0, 1, b"", "constant", 3)
    outcomes = [Outcome.SURVIVED] * survivors + [Outcome.TIMED_OUT] * (60 - survivors)
    tried = [Tried(mutant, ("- x = 1", "+ x = 2"), outcome) for outcome in outcomes]
    assert enough_killed(tried) is enough
    shown = as_text(Found(tuple(tried)))
    assert "left out" not in shown
    assert shown.count("survived: tilewave/a.py:3 (constant)\n- x = 1\n+ x = 2") == survivors
    assert f"0 killed, {survivors} survived, {60 - survivors} timed out" in shown


BEFORE = "def other(n):\n    return n + 1\n"
AFTER = BEFORE + "\n\ndef is_full(n):\n    return n >= 4\n"
HEAD = "from tilewave.ops.box import is_full\n\n\ndef test_full():\n"
WEAK = HEAD + "    assert is_full(9) and not is_full(1)\n"
STRONG = HEAD + "    assert is_full(4) and not is_full(3)\n"
RED_BESIDE = """
import pytest

def test_of_another_world():
    assert is_full(3)

@pytest.mark.parametrize("n", [4, 3], ids=["a", "a - b"])
def test_each(n):
    assert n == 4
"""


def git(root, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def box(tmp_path):
    """A repository with a package of one module, whose second function is new."""
    for folder in ("tilewave/ops", "tests/ops"):
        (tmp_path / folder).mkdir(parents=True)
    for package in ("tilewave", "tilewave/ops"):  # without it, an installed package of that name goes first
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "tilewave/ops/box.py").write_text(BEFORE)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    (tmp_path / "tilewave/ops/box.py").write_text(AFTER)
    return tmp_path


def tried_with(box, test, **asked):
    (box / "tests/ops/test_box.py").write_text(test)
    plan = Plan(**{"root": box, "base": "HEAD", "count": 60, "seed": 1, "jobs": 2} | asked)
    return run(plan, lambda what, total: lambda: None)


def test_only_changed_lines_are_mutated_and_equivalent_ones_are_not_drawn(box):
    assert changed_lines(box, "HEAD") == {"tilewave/ops/box.py": {3, 4, 5, 6}}
    (box / "tilewave/new.py").write_text("a < b\n")
    assert changed_lines(box, "HEAD")["tilewave/new.py"] == {1}
    listed = Equivalent("tilewave/ops/box.py", ("- return n >= 4", "+ return n > 4"), "for the test")
    plan = Plan(box, "HEAD", 60, 1, 2, "*/ops/*", (listed,))
    assert [mutant.new for mutant in candidates(plan)] == [b"3", b"5"]


def test_a_seed_draws_the_same_mutants_again(box):
    found = mutants_of("tilewave/ops/box.py", AFTER.encode())
    plans = [Plan(box, "HEAD", 3, seed, 2) for seed in (1, 1, 2, 3, 4)]
    first, again, *others = [draw(plan, found) for plan in plans]
    assert first == again and len(first) == 3 and any(other != first for other in others)


def test_a_weak_test_lets_mutants_survive_and_the_tree_is_left_alone(box):
    tried = tried_with(box, WEAK).tried
    assert sorted((one.mutant.new, one.outcome) for one in tried if one.mutant.kind == "constant") == [
        (b"3", Outcome.SURVIVED),
        (b"5", Outcome.SURVIVED),
    ]
    assert [one.outcome for one in tried if one.mutant.kind == "comparison"] == [Outcome.SURVIVED]
    assert (box / "tilewave/ops/box.py").read_text() == AFTER


def test_a_strong_test_kills_every_mutant(box):
    tried = tried_with(box, STRONG).tried
    assert len(tried) == 3 and {one.outcome for one in tried} == {Outcome.KILLED}


def test_without_tests_every_mutant_survives(box):
    (box / "tests/ops").rmdir()
    plan = Plan(box, "HEAD", 60, 1, 1)
    assert {one.outcome for one in run(plan, lambda what, total: lambda: None).tried} == {Outcome.SURVIVED}


@pytest.mark.parametrize(("strength", "outcome"), [(WEAK, Outcome.SURVIVED), (STRONG, Outcome.KILLED)])
def test_red_tests_are_left_out_and_the_others_go_on(box, strength, outcome):
    (box / "tests/ops/test_missing.py").write_text("import tilewave.ops.missing\n")
    found = tried_with(box, strength + RED_BESIDE)
    assert found.red == (
        "tests/ops/test_box.py::test_each[a - b]",
        "tests/ops/test_box.py::test_of_another_world",
        "tests/ops/test_missing.py",
    )
    assert len(found.tried) == 3 and {one.outcome for one in found.tried} == {outcome}
    assert as_text(found).startswith(
        "left out, because they are red without a mutant:\n" + "\n".join(found.red) + "\n\n"
    )
    assert json.loads(as_json(found))["left_out"] == [*found.red]


def test_a_run_that_names_no_red_test_is_refused(box):
    with pytest.raises(NotRun, match=r"(?s)tests end with status 4 without a mutant, and name none:.*nothing runs"):
        (box / "conftest.py").write_text("raise ImportError('nothing runs')\n")
        tried_with(box, STRONG)


def test_a_mutant_that_hangs_is_stopped(box, tmp_path_factory):
    (box / "tests/ops/test_box.py").write_text("def test_ever():\n    while True:\n        pass\n")
    copy = Copy(box, tmp_path_factory.mktemp("copy"))
    assert copy.run(SelectedTests(("tests/ops/test_box.py",)), Limits(1, 600)).outcome is Outcome.TIMED_OUT


def test_what_runs_is_ended_when_a_session_is_interrupted(box, tmp_path):
    (box / "tests/ops/test_box.py").write_text("def test_ever():\n    while True:\n        pass\n")
    session, ends = Session(Plan(box, "HEAD", 60, 1, 2), tmp_path / "copies"), []

    def work(copy, key):
        if key == "hangs":
            ends.append(copy.run(SelectedTests(("tests/ops/test_box.py",)), Limits(600, 600)))
            return
        while not any(other.running for other in session.copies):
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session._map(work, ["interrupts", "hangs"], lambda: None)
    assert [ran.status for ran in ends] == [-signal.SIGKILL]


def test_a_copy_takes_a_mutant_back_and_drops_what_was_compiled_of_it(box, tmp_path_factory):
    copy = Copy(box, tmp_path_factory.mktemp("copy"))
    compiled = copy.tree / "tilewave/ops/__pycache__/box.cpython-311.pyc"
    compiled.parent.mkdir()
    mutant = mutants_of("tilewave/ops/box.py", AFTER.encode())[0]
    compiled.touch()
    with copy.mutated(mutant):
        assert (copy.tree / mutant.path).read_bytes() == mutant.applied(AFTER.encode())
        assert not compiled.exists()
        compiled.touch()
    assert (copy.tree / mutant.path).read_text() == AFTER and not compiled.exists()


def test_the_command_lists_survivors_as_json_and_fails(box, capsys):
    (box / "tests/ops/test_box.py").write_text(WEAK)
    assert main(["--root", str(box), "--base", "HEAD", "--count", "1", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["survived"] == 1 and shown["mutants"][0]["line"] == 6
    assert shown["mutants"][0]["difference"][0] == "- return n >= 4"


def test_a_commit_that_is_not_there_is_said(box, capsys):
    assert main(["--root", str(box), "--base", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_commit_to_compare_with_is_where_the_branch_left_else_a_tag_else_twenty_before(box):
    assert default_base(box) == "HEAD~20"
    git(box, "tag", "v1")
    assert default_base(box) == "v1"
    git(box, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert len(default_base(box)) == 40


def test_a_difference_needs_a_commit(box):
    with pytest.raises(NotARevision):
        changed_lines(box, "nowhere")
