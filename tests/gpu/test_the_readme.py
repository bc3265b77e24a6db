"""What README.md shows, from its first block to its last, where there is a card."""

import pathlib
import re

import pytest

pytestmark = pytest.mark.gpu
README = pathlib.Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python(?: gpu| \w+\.py)?\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_its_examples_run_on_a_card(tmp_path):
    assert any("cuda" in block for block in BLOCKS)
    names = {"__name__": "readme"}
    for i, block in enumerate(BLOCKS):
        path = tmp_path / f"block_{i}.py"
        path.write_text(block)
        exec(compile(block, str(path), "exec", dont_inherit=True), names)
