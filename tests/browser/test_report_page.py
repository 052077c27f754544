"""The report page in a real browser, with the network off."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from parity.reports.page.render import write
from tests.browser.driven import DESK, PHONE
from tests.reports.nights import RED, told
from tests.sample import WHOLE

PLOTS = ".map > svg, svg.squares, svg.row-plot, svg.spark, svg.trend, svg.axis, svg.swatch, svg.mark"
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
        ".map .plot": sum(len(maps) for cell in judged for maps in cell.maps.values()),
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
        "return [...document.querySelectorAll('.map .plot, svg.trend, svg.spark')]"
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
    seen = "document.querySelector('#cell-2 .body').checkVisibility()"
    wait = f"const done = arguments[0]; setTimeout(() => done({seen}), 100)"
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


LOOKS = [("light", DESK), ("dark", PHONE)]


@pytest.mark.parametrize(("theme", "size"), LOOKS if WHOLE else LOOKS[1:])
def test_axe_finds_nothing(browser, page, axe, theme, size):
    browser.open(page, size, theme)
    browser.unfold()
    assert browser.violations(axe) == []


def test_the_html_is_valid_and_the_bad_pages_is_not(page, run_page, bad, nu):
    good, alone, found = nu(page, run_page, bad)
    assert good == alone == [] and any("alt" in line for line in found)


def test_the_checks_object_to_a_bad_page(browser, bad, axe):
    browser.open(bad, PHONE)
    assert "https://example.invalid/dot.png" in browser.requests()
    assert any("nowhere is not defined" in said for said in browser.console())
    assert browser.js(HIDDEN_WIDTH)[0] > 390
    found = " ".join(browser.violations(axe))
    assert all(rule in found for rule in ("color-contrast", "image-alt", "html-has-lang"))


def test_red_cells_are_open_and_those_that_pass_folded_behind_them(browser, page):
    browser.open(page)
    found = browser.js(
        "return [...document.querySelectorAll('details.cell')]"
        ".map(one => [one.querySelector('h3').textContent, one.open, one.checkVisibility()])"
    )
    assert found[0] == [RED, True, True]
    assert [shown for *_, shown in found] == [True, True, False, False]


def test_a_map_is_read_by_pointer_and_by_keys(browser, page):
    browser.open(page)
    told = "return document.getElementById('tip').checkVisibility() && document.getElementById('tip').textContent"
    plots = "[...document.querySelectorAll('.plot')].filter(one => one.checkVisibility())"
    browser.js(f"const plot = {plots}[0]; plot.scrollIntoView({{block: 'center'}}); window.plot = plot")
    x, y = browser.js("const box = plot.getBoundingClientRect(); return [box.left + 2, box.top + 2]")
    assert browser.js(told) is False
    browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert re.fullmatch(r"positions? 0( to \d+)?: [\d,.]+ x noise", browser.js(told)), browser.js(told)
    browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.js(told) is False
    browser.js("plot.focus()")
    for code in (39, 39, 37):
        key = {37: "ArrowLeft", 39: "ArrowRight"}[code]
        browser.cdp("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code)
    assert browser.js("return plot.dataset.at") == "0,1" and "position" in browser.js(told)


def test_every_square_that_is_read_is_a_recorded_figure(browser, page, view):
    browser.open(page)
    values = browser.js("return [...document.querySelectorAll('.plot')].map(one => one.dataset.values)")
    for said in values:
        layers, positions, rows = said.split("|")
        rows = [row.split(",") for row in rows.split(";")]
        assert len(rows) == len(layers.split(",")) and {len(row) for row in rows} == {len(positions.split(","))}


def test_navigation_stays_in_sight_and_leaves_headings_uncovered(browser, page):
    for size in (DESK, PHONE):
        browser.open(page, size)
        browser.js("document.documentElement.style.scrollBehavior = 'auto'; location.hash = '#cells'")
        wait = (
            "const done = arguments[0]; setTimeout(() => done([document.querySelector('nav').getBoundingClientRect(), "
            "document.getElementById('h-cells').getBoundingClientRect()].map(one => [one.top, one.bottom])), 200)"
        )
        (top, bottom), (heading, _) = browser.driver.execute_async_script(wait)
        assert top == 0 and 0 < bottom <= heading, size


LUMINANCE = """
const probe = document.body.appendChild(document.createElement('i'));
return arguments[0].map(name => {
  probe.style.color = `var(--${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(one => one / 255)
    .map(one => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
})
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_red_stands_out_more_than_orange_and_a_failure_more_than_a_warning(browser, page, theme):
    browser.open(page, theme=theme)
    card, *levels = browser.js(LUMINANCE, ["card", "h2", "h3", "h4", "h5", "h6"])
    contrast = [(max(one, card) + 0.05) / (min(one, card) + 0.05) for one in levels]
    assert contrast[2:] == sorted(contrast[2:]) and contrast[1] < contrast[3], contrast
    warn, fail = browser.js(LUMINANCE, ["warn", "fail"])
    assert abs(fail - card) >= abs(warn - card)


def test_the_origin_is_marked_and_what_inherits_is_dimmed(browser, page):
    browser.open(page)
    marked = "return [...document.querySelectorAll('.node.origin')].map(one => one.textContent.trim().split(/\\s+/)[0])"
    assert browser.js(marked) == ["Taps"]
    plain, dimmed = browser.js(
        "return ['.node.origin .chip', '.inherits > .chip'].map("
        "one => getComputedStyle(document.querySelector(one)).backgroundColor)"
    )
    assert plain != dimmed == "rgba(0, 0, 0, 0)"


@pytest.fixture(scope="module")
def run_page(view, tmp_path_factory):
    """The recorded red cell as a page of a run alone."""
    path = tmp_path_factory.mktemp("page") / "run.html"
    write(replace(view, cells=view.red[:1], alone=True), path)
    return path


@pytest.mark.parametrize(("theme", "size"), LOOKS if WHOLE else LOOKS[:1])
def test_the_page_of_a_run_is_sound_too(browser, run_page, axe, theme, size):
    browser.open(run_page, size, theme)
    browser.unfold()
    width, wide = browser.js(HIDDEN_WIDTH)
    assert width <= size[0] and wide == [] and browser.console() == [] and browser.requests() == [run_page.as_uri()]
    assert browser.violations(axe) == []
    assert browser.js("return document.querySelector('nav, .matrix, .cell, #changed')") is None
