"""The site in a real browser, opened as a file: it is searched, and nothing is asked of the network."""

import time


def test_the_site_can_be_searched_as_files(browser, site):
    browser.open(site / "tutorials/02-your-own-order.html")
    browser.run("const box = document.querySelector('input.md-search__input'); box.focus(); box.value = 'hilbert'")
    browser.run("document.querySelector('input.md-search__input').dispatchEvent(new KeyboardEvent('keyup'))")
    deadline = time.monotonic() + 60
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.pathname)"
    while not browser.run(found):
        assert time.monotonic() < deadline, "nothing was found within a minute"
        time.sleep(0.1)
    assert any(path.endswith("/mapping.html") for path in browser.run(found))


def test_pages_fit_the_window_and_ask_nothing_of_the_network(browser, site):
    for page in ("index.html", "language.html", "reference/tilewave.html"):
        browser.open(site / page)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert not [address for address in browser.requested() if not address.startswith(("file:", "data:", "blob:"))]
