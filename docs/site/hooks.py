"""The hooks of mkdocs: they add the API reference, the pages of linked source files, and the file names of blocks.

The documents are plain Markdown that any viewer shows; this module makes what the site needs in addition.
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
BOOST = {"guide/": 4.0, "targets/": 4.0, "tutorials/": 2.0, "install.md": 4.0, "decisions/": 0.5}
"""How much more a match counts in the search, by the beginning of a page's path: guides rank before internals."""
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".js": "javascript"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them; add the API reference and all decisions to the navigation."""
    config.mdx_configs["toc"]["slugify"] = heading_name
    nav: Any = config.nav
    listed = {title: pages for part in nav for title, pages in part.items()}
    api = next(part["API"] for part in listed["Reference"] if isinstance(part, dict))
    api += [{page.title: page.path} for page in reference.pages()]
    listed["Decisions"] += [f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("*.md"))]
    return config


def heading_name(text: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages: the API reference, and each file outside docs/ that a document links to."""
    made = {"reference/index.md": reference.index()} | {p.path: reference.text_of(p) for p in reference.pages()}
    made |= {page_of(path): shown(path) for path in linked_files()}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def linked_files() -> list[Path]:
    """Return the files and folders outside docs/ that documents link to."""
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
    """Return the page of a file: its name and its text."""
    title = f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "\n".join(f"- `{child.name}`" for child in sorted(path.iterdir()) if child.suffix != ".pyc")
    return title + f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Title blocks with the name of their file, and point links to files outside docs/ to the pages of these files."""
    if page.file.src_uri.startswith("files/"):
        return markdown
    page.meta["search"] = {"boost": next((n for start, n in BOOST.items() if page.file.src_uri.startswith(start)), 1.0)}
    return LINK.sub(lambda m: followed(m, page), BLOCK.sub(named_block, markdown))


def named_block(found: re.Match[str]) -> str:
    """Return the info string of a block with its title: ```python error half.py is Python with the title half.py."""
    files = [word for word in found[2].split() if "." in word]
    return f'```{found[1]} title="{files[0]}"' if files else f"```{found[1]}"


def followed(found: re.Match[str], page: Page) -> str:
    target, heading = found[1], found[2] or ""
    path = (DOCS / page.file.src_uri).parent.joinpath(target).resolve()
    if target.startswith("http") or path.is_relative_to(DOCS) or not path.exists():
        return target + heading
    return posixpath.relpath(page_of(path), posixpath.dirname(page.file.src_uri) or ".")


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse pages that load anything from another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if fetched := LOADED.search(path.read_text()):
            raise PluginError(f"{path.relative_to(config.site_dir)} loads something from elsewhere: {fetched[0]}")
