"""The field's words: names and sentences of the package and the documents use the words that people search for."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTEAD = {
    r"copy[ _]engine|CopyEngine": "TMA",
    r"share_copies|(?<![A-Za-z])sharers?(?![A-Za-z])|\bfours\b": "multicast, peers",
    r"(?<![A-Za-z])signals?(?![A-Za-z])": "mbarrier",
    r"(?<![A-Za-z])awaits?(?![A-Za-z])": "wait",
    r"stagger": "ping-pong",
    r"last[ _]round": "stream-K, the last wave",
    r"sums? in parts|share_parts|add_up_parts": "split-K",
    r"(?<![A-Za-z])beats?(?![A-Za-z])": "wave of workgroups",
    r"start_early|let_next_start": "programmatic dependent launch",
    r"minimize_global": "coalesce",
    r"guard_edges|at the edge|hangs? over": "boundary tile, predicate",
    r"hoist_reads|drop_unused": "LICM, DCE",
    r"recompute_rows|(?<![A-Za-z])renew(s|ed)?(?![A-Za-z])": "rematerialize",
    r"turn_products|(?<![A-Za-z])turned(?![A-Za-z])": "transposed",
    r"odd rows|misfit|off_lines|begin anywhere": "unaligned",
    r"(?<![A-Za-z])told(?![A-Za-z])|SizeTold": "given",
    r"\bon record\b": "tuning record",
    r"one_order": "batch-invariant",
    r"\bfew tiles": "small grid",
    r"keep_maximum|skip_unit_factors": "deferred rescaling",
    r"Declined": "remark",
    r"(?<![A-Za-z])lies?(?![A-Za-z])": "is stored, layout",
    r"(?<![A-Za-z])alike(?![A-Za-z])": "same layout, replayed",
    r"numbers of the call": "scalar arguments",
    r"(?<![A-Za-z])wild(?![A-Za-z])": "out-of-bounds",
    r"(?<![A-Za-z])behind(?![A-Za-z])": "after",
    r"\bin front of\b": "before",
    r"(?i:(?<![a-z])(whoever|nobody)(?![a-z]))": "plain subjects",
}
ALLOWED = {
    "tilewave/renamed.py": "the names of the version before",
    "tilewave/runtime/pool.py": "signals of pthreads and of the operating system",
    "tilewave/ir/core.py": "the spelling of batch-invariant kernels in the IR's text and in tuning records",
    "tilewave/tune/measured.py": "columns of measured rows",
    "docs/decisions": "decisions keep the words of their time",
    "docs/ref/glossary.md": "old words lead to the new ones",
    "docs/notebooks": "made of the tutorials",
}
RIGHT = r"signaling|signal (handler|number)|OS signal|lies (within|between|above|below|on|inside)"
"""Phrases in which such a word is the right one."""
AROUND = re.compile(r"\(\?<?!\[A-Za-z\]\)")
"""What a pattern says of the letters beside a word; without it, the word's own letters are found sooner."""
STANDARD = [
    "TMA",
    "multicast",
    "mbarrier",
    "split-K",
    "stream-K",
    "coalesce",
    "predicate",
    "rematerialize",
    "occupancy",
    "LICM",
    "DCE",
    "autotune",
    "ping-pong",
    "software pipeline",
    "register pressure",
    "cost model",
    "warp specialization",
    "bank conflict",
    "dynamic shape",
    "batch-invariant",
]
ALONE = re.compile(r"(Of|That|Those|And|The same)\b")
QUOTED = re.compile(rf"[\"']{ALONE.pattern}")
"""What every file with such a docstring has: others need no parsing."""
MOST_DEPENDENT = 60
"""Docstrings that begin as a continuation of something else; they cannot be read alone."""


@cache
def texts():
    """Return the text of every module and document, by its path."""
    files = [*ROOT.glob("tilewave/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    return {str(p.relative_to(ROOT)): p.read_text() for p in files}


@cache
def judged_texts():
    """Return the texts that must not have old words, without phrases in which such a word is right."""
    judged = {path: text for path, text in texts().items() if not path.startswith(tuple(ALLOWED))}
    return {path: re.sub(RIGHT, "", text) for path, text in judged.items()}


@pytest.mark.parametrize("old", INSTEAD)
def test_an_old_word_is_not_used(old):
    pattern, anywhere = re.compile(old), re.compile(AROUND.sub("", old))
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in judged_texts().items()
        if anywhere.search(text) and pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"write {INSTEAD[old]} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("word", STANDARD)
def test_a_standard_word_is_found_in_the_package_and_in_the_documents(word):
    pattern = re.compile(re.sub("[- ]", r"[\\s_-]?", word), re.IGNORECASE)
    for place in ("tilewave/", "docs/"):
        assert any(pattern.search(text) for path, text in texts().items() if path.startswith(place)), place


def test_docstrings_can_be_read_alone():
    found = [
        f"{path}: {text.splitlines()[0]}"
        for path, source in texts().items()
        if path.endswith(".py") and QUOTED.search(source)
        for text in docstrings(ast.parse(source))
        if ALONE.match(text)
    ]
    assert len(found) <= MOST_DEPENDENT, "\n".join(found)


def docstrings(tree):
    """Yield the docstrings of a module, its classes, functions and fields."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) or [] if not isinstance(node, (ast.Lambda, ast.IfExp)) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
