"""What mkdocs does for our documents beyond itself: the reference, the files that pages link to, the names of blocks.

Documents are written to be read as they are, on whatever shows Markdown; what a site needs besides is made here.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
BLOCK = re.compile(r"^```(\w+)((?: [\w./-]+)+)$", re.MULTILINE)
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//"
    r"|<link\b[^>]*rel=\"(?:stylesheet|preload|icon)\"[^>]*href=\"(?:https?:)?//"
)
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".js": "javascript"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings have the names that they have elsewhere; the reference and all decisions stand in the navigation."""
    config.mdx_configs["toc"]["slugify"] = heading_name
    nav: Any = config.nav
    listed = {title: pages for part in nav for title, pages in part.items()}
    listed["Reference"] += [{page.title: page.path} for page in reference.pages()]
    listed["Decisions"] += [f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("*.md"))]
    return config


def heading_name(text: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that no file holds: the reference, and each file beside the documents that one of them links to."""
    made = {"reference/index.md": reference.index()} | {p.path: reference.text_of(p) for p in reference.pages()}
    made |= {page_of(path): shown(path) for path in linked_files()}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def linked_files() -> list[Path]:
    """Files and folders outside docs/ that documents link to."""
    found = set()
    for document in DOCS.rglob("*.md"):
        for target, _ in LINK.findall(document.read_text()):
            path = (document.parent / target).resolve()
            if not target.startswith("http") and path.exists() and not path.is_relative_to(DOCS):
                found.add(path)
    return sorted(found)


def page_of(path: Path) -> str:
    return f"files/{path.relative_to(ROOT).as_posix()}.md"


def shown(path: Path) -> str:
    """A file as a page: its name, and its text."""
    title = f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "\n".join(f"- `{child.name}`" for child in sorted(path.iterdir()) if child.suffix != ".pyc")
    return title + f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Blocks show the name of their file; links to files outside the documents lead to those files' pages."""
    if page.file.src_uri.startswith("files/"):
        return markdown
    return LINK.sub(lambda m: followed(m, page), BLOCK.sub(named_block, markdown))


def named_block(found: re.Match[str]) -> str:
    """```python error half.py: a block of Python with the title half.py."""
    files = [word for word in found[2].split() if "." in word]
    return f'```{found[1]} title="{files[0]}"' if files else f"```{found[1]}"


def followed(found: re.Match[str], page: Page) -> str:
    target, heading = found[1], found[2] or ""
    path = (DOCS / page.file.src_uri).parent.joinpath(target).resolve()
    if target.startswith("http") or path.is_relative_to(DOCS) or not path.exists():
        return target + heading
    return posixpath.relpath(page_of(path), posixpath.dirname(page.file.src_uri) or ".")


def on_post_build(config: MkDocsConfig) -> None:
    """A page that would fetch something from elsewhere is refused."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if fetched := LOADED.search(path.read_text()):
            raise PluginError(f"{path.relative_to(config.site_dir)} loads something from elsewhere: {fetched[0]}")
