"""docs/ref/production-kernels.md: its numbers follow from its table, and its links lead to kernels."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ref" / "production-kernels.md"
VERDICT = re.compile(
    r"^\| `\w+` \| [^|]+ \| (?:yes: .+|\*\*no\*\*: .+|\[`(\w+)`\]\(\.\./\.\./(tests/production/\w+\.py)\)) \|$"
)


def test_the_numbers_of_the_page_are_those_of_its_table():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    verdicts = [VERDICT.match(row) for row in rows]
    assert all(verdicts), [row for row, verdict in zip(rows, verdicts, strict=True) if not verdict]
    written = [(v[1], v[2]) for v in verdicts if v and v[1]]
    able = sum("| **no**: " not in row for row in rows)
    said = f"Of {len(rows)}, picked at random, {able} can ({able / len(rows):.0%}".replace("%", " %")
    assert said in PAGE.read_text() and f"; {len(written)} of them are written as tests" in PAGE.read_text()
    for name, file in written:
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
