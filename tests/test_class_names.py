"""One public class name means one thing in the whole package."""

import re
from collections import defaultdict
from pathlib import Path

import tilewave

TWICE = {"Memory": "what the author writes as an annotation, and the type that it becomes"}


def test_a_public_class_name_means_one_thing():
    package = Path(tilewave.__file__).parent
    homes = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            homes[name].append(path.relative_to(package).as_posix())
    assert {name for name, files in homes.items() if len(files) > 1} == {*TWICE}
