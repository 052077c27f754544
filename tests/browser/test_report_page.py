"""The report page in a real browser, with the network off."""

from __future__ import annotations

import re

import pytest

from parity.reports.page.render import write
from tests.browser.driven import DESK, PHONE
from tests.reports.nights import RED, told

PLOTS = ".map svg, svg.squares, svg.row-plot, svg.spark, svg.trend, svg.axis, svg.swatch, svg.mark"
HIDDEN_WIDTH = """
const wide = [...document.querySelectorAll('body *')]
  .filter(one => !one.closest('.scroll, .command code, pre, .symbols, .skip'))
  .filter(one => one.getBoundingClientRect().right > innerWidth + 1);
return [document.documentElement.scrollWidth, wide.map(one => one.outerHTML.slice(0, 90))]
"""
BAD = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>bad</title></head><body><main><h1>Bad</h1>
<p style="color:#bbb;background:#fff">pale</p><img src="https://example.invalid/dot.png"><script>nowhere()</script>
<div style="width:2000px">wide</div></main></body></html>"""


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return told(tmp_path_factory.mktemp("nights") / "night")


@pytest.fixture(scope="module")
def page(view, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write(view, path)
    return path


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A page that every check has to object to."""
    path = tmp_path_factory.mktemp("bad") / "bad.html"
    path.write_text(BAD)
    return path


def test_it_opens_offline_asks_for_nothing_and_complains_of_nothing(browser, page):
    browser.open(page)
    assert browser.js("return document.querySelector('h1').innerText.trim()") == "Fail"
    assert browser.requests() == [page.as_uri()]
    assert browser.console() == []


def test_its_policy_stops_what_would_ask(browser, page):
    browser.open(page)
    browser.js("document.body.append(Object.assign(new Image(), {src: 'https://example.invalid/a.png'}))")
    browser.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.met = 1'}))")
    assert browser.js("return window.met") is None
    said = " ".join(browser.console())
    assert "img" in said and "script" in said and said.count("Content Security Policy") >= 2


def test_every_plot_is_there_and_has_a_size(browser, page, view):
    browser.open(page)
    browser.unfold()
    judged = [cell for cell in view.cells if not cell.error]
    expected = {
        ".map svg": sum(len(maps) for cell in judged for maps in cell.maps.values()),
        ".node": sum(len(group.nodes) for cell in judged for group in cell.groups),
        ".forest .row-plot": sum(len(cell.drafts.rows) + len(cell.prompts.rows) for cell in judged),
        ".speeds .row-plot": 3 * len(judged),
        "svg.spark": sum(len(cell.series) for cell in judged),
        "svg.trend": 1,
        ".squares": sum(
            bool(one.squares)
            for cell in judged
            for group in cell.groups
            for node in group.nodes
            for one in node.readings
        ),
    }
    counted = "return Object.fromEntries(arguments[0].map(one => [one, document.querySelectorAll(one).length]))"
    assert browser.js(counted, list(expected)) == expected and all(expected.values())
    empty = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".filter(one => !one.getBoundingClientRect().width || !one.getBoundingClientRect().height)"
        ".map(one => one.outerHTML.slice(0, 120))"
    )
    assert browser.js(empty, PLOTS) == []
    drawn = (
        "return [...document.querySelectorAll('.map svg, svg.trend, svg.spark')]"
        ".filter(one => !one.querySelector('path, polyline')).length"
    )
    assert browser.js(drawn) == 0


def test_colours_are_the_legends(browser, page):
    browser.open(page)
    browser.unfold()
    colour = "return getComputedStyle(document.querySelector(arguments[0])).fill"
    shades = [browser.js(colour, f".swatch .{shade}") for shade in ("h0", "h1", "h2", "h3", "h4", "h5", "h6", "hx")]
    assert len(set(shades)) == 8 and browser.js(colour, ".heat path.h1") == shades[1]


@pytest.mark.parametrize("size", [PHONE, (320, 700), DESK])
def test_it_never_scrolls_sideways(browser, page, size):
    browser.open(page, size)
    browser.unfold()
    width, wide = browser.js(HIDDEN_WIDTH)
    assert width <= size[0] and wide == []


def test_without_javascript_the_text_and_the_plots_are_there(browser, page, view):
    browser.open(page, scripts=False)
    said = re.sub(r"\s+", " ", browser.html())
    for words in (view.tally, view.cells[0].first, view.cells[0].reproduce, "Usual fix:", "is worse since 2026-11-18"):
        assert words in said.replace("&gt;", ">")
    assert all(cell.name in said for cell in view.cells)
    assert re.search(r'<div class="filter" hidden', said) and not re.search(r'class="copy">', said), (
        "nothing that needs a script is offered"
    )
    assert said.count('class="heat"') == sum(len(maps) for cell in view.cells for maps in cell.maps.values())


def test_the_matrix_can_be_filtered(browser, page):
    browser.open(page)
    assert browser.js("return document.querySelector('.filter').checkVisibility()")
    shown = "return [...document.querySelectorAll('.matrix tbody tr')].filter(one => one.checkVisibility()).length"
    assert browser.js(shown) == 4
    typed = (
        "const box = document.getElementById('filter'); box.value = arguments[0]; box.dispatchEvent(new Event('input'))"
    )
    browser.js(typed, "ranks tp2")
    assert browser.js(shown) == 1
    browser.js(typed, "")
    browser.js(
        "const box = document.getElementById('only'); box.value = 'broken'; box.dispatchEvent(new Event('change'))"
    )
    assert browser.js(shown) == 1 and browser.js("return document.getElementById('shown').textContent") == "1 of 4"


def test_a_command_can_be_copied(browser, page):
    browser.open(page)
    browser.js("document.querySelector('.copy').click()")
    label = "const done = arguments[0]; setTimeout(() => done(document.querySelector('.copy').textContent), 200)"
    assert browser.driver.execute_async_script(label) in ("Copied", "Selected")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, page):
    browser.open(page)
    seen = []
    for _ in range(12):
        for kind in ("keyDown", "keyUp"):
            browser.cdp("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(
            browser.js(
                "const at = document.activeElement; return [at.className || at.tagName, "
                "getComputedStyle(at).outlineStyle, at.getBoundingClientRect().x]"
            )
        )
    assert seen[0][0] == "skip" and seen[0][2] >= 0, "the skip link comes first and is on the screen"
    assert all(outline != "none" for _, outline, _ in seen), seen
    beyond = (
        "return [...document.querySelectorAll('.scroll, .command code, pre')].filter(one => one.tabIndex !== 0).length"
    )
    assert browser.js(beyond) == 0


def test_a_link_to_a_closed_cell_opens_it(browser, page):
    browser.open(page)
    assert not browser.js("return document.getElementById('cell-2').open")
    browser.js("location.hash = '#cell-2'")
    wait = "const done = arguments[0]; setTimeout(() => done(document.getElementById('cell-2').open), 100)"
    assert browser.driver.execute_async_script(wait)


def test_print_is_light_and_everything_in_it_is_open(browser, page):
    browser.open(page, theme="dark", media="print", scripts=False)
    closed = (
        "return [...document.querySelectorAll('details:not([open]) > :not(summary)')]"
        ".filter(one => !one.getBoundingClientRect().height).length"
    )
    assert browser.js("return document.querySelectorAll('details:not([open])').length") > 3
    assert browser.js(closed) == 0
    assert browser.js("return getComputedStyle(document.body).color") == "rgb(27, 35, 41)"
    assert browser.js("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(re.findall(rb"/Type\s*/Page\b", browser.pdf())) >= 4


@pytest.mark.parametrize(("theme", "size"), [("light", DESK), ("dark", PHONE)])
def test_axe_finds_nothing(browser, page, axe, theme, size):
    browser.open(page, size, theme)
    browser.unfold()
    assert browser.violations(axe) == []


def test_the_html_is_valid_and_the_bad_pages_is_not(page, bad, nu):
    good, found = nu(page, bad)
    assert good == [] and any("alt" in line for line in found)


def test_the_checks_object_to_a_bad_page(browser, bad, axe):
    browser.open(bad, PHONE)
    assert "https://example.invalid/dot.png" in browser.requests()
    assert any("nowhere is not defined" in said for said in browser.console())
    assert browser.js(HIDDEN_WIDTH)[0] > 390
    found = " ".join(browser.violations(axe))
    assert all(rule in found for rule in ("color-contrast", "image-alt", "html-has-lang"))


def test_the_recorded_red_cell_is_open_and_the_green_ones_closed(browser, page):
    browser.open(page)
    found = browser.js(
        "return [...document.querySelectorAll('details.cell')]"
        ".map(one => [one.querySelector('h3').textContent, one.open])"
    )
    assert found[0] == [RED, True] and [opened for _, opened in found[1:]] == [False, False, True]
