"""`make demo`: it shows what it says, and what it proposes exists."""

import re
import sys
from pathlib import Path

from tilewave.bench import measure
from tilewave.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]


def test_the_demo_shows_code_an_order_and_a_refusal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    import demo

    monkeypatch.setattr(demo, "ROUNDS", 2)
    waited = []
    monkeypatch.setattr(measure.time, "sleep", waited.append)
    monkeypatch.setattr(demo.console, "file", sys.stdout)
    demo.main()
    said = capsys.readouterr().out
    assert "0 of 1,048,576 elements wrong" in said
    assert re.search(r"│ numpy +│ [\d.]+ ± [\d.]+ ms +│ \d+ +│", said)
    assert waited == [measure.PAUSE_SECONDS] * 4, "a pause before each turn: numpy's threads spin after a product"
    assert "every tile exactly once: verified" in said
    assert re.search(r"error: workgroups \d+ and \d+ both compute tile", said)
    assert said.index("What to try next") > said.index("error: ")


def test_what_the_demo_proposes_exists(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    import demo

    for proposed, _ in demo.NEXT:
        program, _, rest = proposed.partition(" ")
        if program.endswith("tilewave"):
            assert rest.split()[0] in COMMANDS
        files = re.findall(r"(?:examples|docs)/[\w/.-]+", proposed)
        assert files or program.endswith("tilewave")
        assert all((ROOT / file).exists() for file in files)
