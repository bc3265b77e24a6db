"""The documents as a site: the reference has every public name, every page is reachable, and nothing is loaded."""

import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path
from typing import get_origin

import pytest
from built_site import SEARCHED

import tilewave

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def module_of_the_site(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


reference = module_of_the_site("reference")
NAMES = [(page, name) for page in reference.pages() for name in page.names]


def test_the_reference_has_every_public_name():
    (whole,) = (page for page in reference.pages() if page.module == "tilewave")
    public = {*tilewave.__all__, *tilewave.PYTHONS_OWN} - {"__version__", "mapping"}
    assert set(whole.names) == public
    for page in reference.pages():
        headings = re.findall(r"^## (\w+) ", reference.text_of(page), re.MULTILINE)
        assert tuple(headings) == page.names
    assert all(f"#{name})" in reference.index() for _, name in NAMES)


@pytest.mark.parametrize(("page", "name"), NAMES, ids=lambda x: getattr(x, "module", x))
def test_a_public_name_says_what_it_is(page, name):
    found = reference.object_named(page.module, name)
    told = [line for line in reference.entry(page.module, name) if line.strip() and not line.startswith("```")]
    assert told, "nothing is said of it"
    if callable(found) and get_origin(found) is None:
        inner = getattr(found, "function", found)
        said = inspect.getdoc(inner) or ""
        assert said and not said.startswith(f"{getattr(inner, '__name__', name)}("), f"{name} has no docstring"


def pages_in_the_navigation():
    listed = re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text())
    return {*listed, *(f"decisions/{path.name}" for path in DOCS.glob("decisions/*.md"))}


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages | {"reference/index.md"} == pages_in_the_navigation()


def test_tutorials_are_numbered_and_each_leads_to_the_next():
    tutorials = sorted(DOCS.glob("tutorials/*.md"))
    assert [path.name[:2] for path in tutorials] == [f"{n:02}" for n in range(1, len(tutorials) + 1)]
    for number, (path, following) in enumerate(zip(tutorials, [*tutorials[1:], None], strict=True), 1):
        text = path.read_text()
        assert text.startswith(f"# {number}. ")
        assert following is None or f"({following.name})" in text


# -- the site itself -------------------------------------------------------------------------------------------------


def test_the_site_is_built_and_can_be_searched(site):
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"] for entry in index["docs"] if "hilbert" in entry["text"].lower()}
    assert any(where.startswith("ref/mappings.html#") for where in found)
    assert "reference/tilewave.mapping.html#hilbert" in found
    assert not [entry for entry in index["docs"] if entry["location"].startswith("files/")]


@pytest.mark.parametrize("word", SEARCHED)
def test_a_word_of_the_field_is_in_a_heading_or_the_first_paragraph_of_its_page(site, word):
    index = json.loads((site / "search/search_index.json").read_text())
    entries = [entry for entry in index["docs"] if entry["location"].partition("#")[0] == SEARCHED[word]]
    first = next(entry["text"] for entry in entries if "#" not in entry["location"])
    headings = [entry["title"] for entry in entries]
    assert any(word.lower() in text.lower() for text in [*headings, first]), headings


def test_links_to_the_sources_lead_to_their_pages(site):
    contributing = (site / "contributing.html").read_text()
    assert 'href="files/tilewave/machine/chips.py.html"' in contributing
    assert "GFX942" in (site / "files/tilewave/machine/chips.py.html").read_text()


def test_blocks_have_the_names_of_their_files(site):
    assert re.search(r'class="filename">gemm\.py<', (site / "tutorials/02-your-own-order.html").read_text())


def test_nothing_on_a_page_comes_from_elsewhere(site):
    fetched = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(?:https?:)?//|<link rel=\"stylesheet\" href=\"http")
    assert not [path for path in site.rglob("*.html") if fetched.search(path.read_text())]
