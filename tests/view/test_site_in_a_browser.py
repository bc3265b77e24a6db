"""The site in a real browser, opened as files: it is searched, and nothing is loaded from the network."""

import json

from built_site import SEARCHED

FIRST = "document.querySelector('.md-search-result__item > a')"


def test_the_search_of_the_site_finds_the_page_of_a_word_first(browser, site):
    browser.open(site / "index.html")
    first = {word: found_first(browser, word) for word in SEARCHED}
    wrong = {word: path for word, path in first.items() if not path.endswith(f"/{SEARCHED[word]}")}
    assert not wrong


def found_first(browser, word):
    """Return the path of the page that the search lists first, once what it found before is gone."""
    browser.wait_until(f"{typing('')}; return {FIRST} === null")
    browser.wait_until(f"{typing(word)}; return {FIRST} !== null")
    return browser.run(f"return {FIRST}.pathname")


def typing(word):
    """The script that types a word into the search."""
    box = "const box = document.querySelector('input.md-search__input'); box.focus()"
    return f"{box}; box.value = {json.dumps(word)}; box.dispatchEvent(new KeyboardEvent('keyup'))"


def test_pages_fit_the_window_and_ask_nothing_of_the_network(browser, site):
    for page in ("index.html", "ref/language.html", "reference/tilewave.html"):
        browser.open(site / page)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert not [address for address in browser.requested() if not address.startswith(("file:", "data:", "blob:"))]
