"""What a package index shows of the README: every link leads somewhere, or is none."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = "https://host.example/owner/tilewave"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return the names of hatch_build.py, which runs with hatchling when a package is built."""
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin", "hatchling.metadata.plugin.interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["hatchling.metadata.plugin.interface"].MetadataHookInterface = object
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def filled_in(hook, monkeypatch, home):
    monkeypatch.setenv("TILEWAVE_URL", home)
    page = hook["IndexPage"]()
    page.root = str(ROOT)
    metadata = {}
    page.update(metadata)
    return metadata


def targets(text):
    """Return the targets of links and pictures outside code, without the code under test."""
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```$", "", text))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def test_with_an_address_every_link_and_picture_leads_to_a_file_there(hook, monkeypatch):
    metadata = filled_in(hook, monkeypatch, HOME + "/")
    found = targets(metadata["readme"]["text"])
    assert len(found) == len(targets(README)) > 20
    for target in found:
        place = re.fullmatch(rf"{HOME}/(blob|raw)/main/([^#]+)(#.*)?", target)
        assert (place and (ROOT / place[2]).exists()) or (target in README and ":" in target), target
        assert not place or (place[1] == "raw") == place[2].endswith(".png")
    assert metadata["urls"]["Homepage"] == HOME and metadata["urls"]["Changelog"].startswith(HOME)


def test_without_an_address_no_link_leads_nowhere_and_every_word_stays(hook, monkeypatch):
    metadata = filled_in(hook, monkeypatch, "")
    text = metadata["readme"]["text"]
    assert [target for target in targets(text) if ":" not in target] == [] and "![" not in text
    code = "init_args=[Register[M, N, f32](0.0)]"
    assert text.count(code) == README.count(code) == 3
    assert "[Tutorials](" in README and "| Tutorials |" in text
    assert metadata["urls"] == {}
