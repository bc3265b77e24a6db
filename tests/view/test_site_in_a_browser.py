"""The site in a real browser, opened as files: it is searched, and nothing is loaded from the network."""

import time

from built_site import SEARCHED

RESULTS = "return [...document.querySelectorAll('.md-search-result__item > a')].map(link => link.pathname)"


def test_the_search_of_the_site_finds_the_page_of_a_word_first(browser, site):
    first = {word: results(browser, site, word)[0] for word in SEARCHED}
    wrong = {word: path for word, path in first.items() if not path.endswith(f"/{SEARCHED[word]}")}
    assert not wrong


def results(browser, site, word):
    """Return the paths of the pages that the search finds, best first; the site is opened as files."""
    browser.open(site / "index.html")
    browser.run(f"const box = document.querySelector('input.md-search__input'); box.focus(); box.value = '{word}'")
    deadline = time.monotonic() + 60
    found = []
    while not found:
        assert time.monotonic() < deadline, f"nothing was found for {word!r} within a minute"
        browser.run("document.querySelector('input.md-search__input').dispatchEvent(new KeyboardEvent('keyup'))")
        time.sleep(0.2)
        found = browser.run(RESULTS)
    return found


def test_pages_fit_the_window_and_ask_nothing_of_the_network(browser, site):
    for page in ("index.html", "ref/language.html", "reference/tilewave.html"):
        browser.open(site / page)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert not [address for address in browser.requested() if not address.startswith(("file:", "data:", "blob:"))]
