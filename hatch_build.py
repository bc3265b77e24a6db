"""What a package index shows of the README: there, no files lie beside it that its links could lead to.

`TILEWAVE_URL=https://host/owner/tilewave python -m build` says where the repository can be read: links and pictures
lead there, and the package names it. Without it links are plain words, and pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CODE = r"^```.*?^```$|`[^`\n]*`"
"""What looks like a link there is none: `Register[M, N, f32](0.0)`."""
LINK = re.compile(rf"(?ms){CODE}|(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!\w+:)(?P<path>[^)\s]+)\)")


class IndexPage(MetadataHookInterface):
    """Fills in the README and the addresses of a package when it is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        home = os.environ.get("TILEWAVE_URL", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": on_an_index(text, home)}
        metadata["urls"] = addresses(home)


def on_an_index(text: str, home: str) -> str:
    """The README with links that lead to `home`, or without links where there is none."""

    def led(found: re.Match[str]) -> str:
        path, words, picture = found["path"], found["words"], found["picture"]
        if path is None:
            return found[0]
        if not home:
            return "" if picture else words
        return f"{picture}[{words}]({home}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(led, text)


def addresses(home: str) -> dict[str, str]:
    if not home:
        return {}
    beside = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {"Homepage": home, **{name: f"{home}/blob/main/{path}" for name, path in beside.items()}}
