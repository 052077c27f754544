"""The page and its short form tell the whole night, and nothing that comes from outside is markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt

from parity.nightly.records import Commit, DiagnosisSummary
from parity.reports.page.markdown import markdown
from parity.reports.page.night import make_view
from parity.reports.page.render import render
from tests.reports.nights import RED, past, step, told, unpack

EVIL = "<script>window.met = 1</script>\"'`|\n[x](https://example.invalid) @someone"


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("nights") / "night")


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return told(tmp_path_factory.mktemp("nights") / "told")


@pytest.fixture(scope="module")
def page(view):
    return render(view)


@pytest.fixture(scope="module")
def evil(night):
    """Every text that comes from outside is hostile."""
    results = []
    for one in night.results():
        prompts = tuple(prompt.model_copy(update={"prompt": EVIL}) for prompt in one.prompts)
        said = DiagnosisSummary(causes=((EVIL, EVIL, EVIL),), titles=(EVIL,), unexplained=EVIL, words=EVIL)
        stages = {
            mode: tuple(stage | {"note": EVIL, "family": EVIL} for stage in found) for mode, found in one.stages.items()
        }
        heat = tuple(found.model_copy(update={"family": EVIL}) for found in one.heat[:2])
        update = dict(
            error=one.error and EVIL,
            first=EVIL,
            reproduce=EVIL,
            diagnosis=said,
            findings=(EVIL,),
            prompts=prompts,
            stages=stages,
            heat=heat,
        )
        results.append(one.model_copy(update=update))
    head = Commit.model_construct(name=EVIL, subject=EVIL, author=EVIL, address='https://host.invalid/"><script>')
    plan = night.night.model_copy(update={"machine": EVIL, "commit": EVIL, "matrix": EVIL, "head": head})
    changes = past(night, step(sentence=EVIL, commits=(EVIL, EVIL)))
    return make_view(plan, results, changes, {cell.name: EVIL for cell in plan.cells})


def text(page: str) -> str:
    """What a reader reads."""
    shown = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_the_verdict_comes_first_then_changes_red_cells_the_matrix_and_the_cells(page):
    said = text(page)
    places = [
        said.index(words)
        for words in (
            "Fail",
            "4 cells: 1 fail, 1 broken, 2 pass",
            "What is wrong",
            "What changed since the night before",
            "Matrix Show",
            "Cells ",
        )
    ]
    assert places[:5] == sorted(places[:5])
    for words in ("0000000", "x86_64, 2 cores", "numpy 2."):
        assert words in said


def test_a_change_says_which_cell_since_when_which_stage_and_why(page):
    section = text(page.split('id="changed"')[1].split("</section>")[0])
    for words in (
        RED,
        "2026-11-18",
        "1111111..2222222",
        "First stage drafter.taps",
        "1 quiet change",
    ):
        assert words in section


def test_a_cause_has_its_cells_their_places_the_usual_fix_and_a_command(page, night):
    red = next(one for one in night.results() if one.verdict == "fail")
    section = text(page.split('id="causes"')[1].split("</section>")[0])
    for words in (
        "Taps +1 layers away : 1 of 4 cells, since 2026-11-18",
        RED,
        red.first,
        red.reproduce,
        "Usual fix: the layer at which the target's hidden is captured",
        "cannot be imported",
    ):
        assert words in section


def test_every_cell_has_its_pipeline_maps_acceptance_decisions_speed_trend_and_gates(page, night):
    for number, result in enumerate(night.results(), 1):
        section = page.split(f'id="cell-{number}"')[1].split('<details class="cell"')[0]
        if not result.error:
            assert section.count('<figure class="heat">') == len(result.heat) == 46
            for title in ("Pipeline", "Acceptance", "Decisions", "Speed", "Trend", "Gates"):
                assert f"<h4>{title}</h4>" in section, (result.cell.name, title)
            for prompt in result.prompts:
                assert prompt.prompt in section


def test_a_planned_cell_without_a_result_is_no_pass(night):
    clean = [one for one in night.results() if one.verdict == "pass"]
    found = make_view(night.night, clean)
    assert found.verdict == "inconclusive" and len(found.cells) == 4
    assert text(render(found)).count("no result: the cell has not run to its end") >= 2
    assert make_view(night.night, []).verdict == "inconclusive"


def test_without_history_the_page_says_that_nothing_is_known(night):
    assert "Not known: no history was given" in text(render(make_view(night.night, night.results())))


def test_cells_that_wait_for_a_band_are_told(night):
    found = past(night, waiting={RED: 4})
    assert "1 cell of 4 has too few nights for a noise band; the last needs 4 more nights" in text(
        render(make_view(night.night, night.results(), found))
    )


def test_nothing_from_outside_is_markup(evil):
    page = render(evil)
    assert page.count("<script") == 1 and "&lt;script&gt;window.met" in page
    assert EVIL.split("\n")[0] in text(page)


def test_the_policy_names_its_one_style_and_script_by_digest_and_forbids_the_rest(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1].replace("&#39;", "'")
    for kind, element in (("style-src", "style"), ("script-src", "script")):
        (inside,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not re.search(
        r"\sstyle=|\son[a-z]+=|https?://(?!www\.w3\.org)", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    )


def test_twelve_cells_stay_below_three_megabytes(view, page):
    per_cell = len(page.encode()) / sum(not cell.error for cell in view.cells)
    assert 12 * per_cell < 3e6


def test_cells_that_pass_are_folded_together_behind_the_red_ones(page):
    red, green = page.split('id="cells"')[1].split('<details class="greens">')
    assert red.count('<details class="cell"') == 2 and green.count('<details class="cell"') == 2
    assert "2 cells without a failure" in text(green)


def test_the_head_commit_is_told_with_its_author_and_its_page(night):
    head = Commit(name="1" * 40, subject="Read taps", author="Ada", address=f"https://host.invalid/c/{'1' * 40}")
    page = render(make_view(night.night.model_copy(update={"head": head}), night.results()))
    assert f'<a href="{head.address}" rel="noreferrer"><code>{"1" * 10}</code></a> Read taps' in page and "Ada" in page


def test_markdown_is_short_and_folds_the_cells(view):
    said = markdown(view)
    assert len(said.splitlines()) <= 60
    assert said.startswith("## ❌ Parity: fail")
    row = next(line for line in said.splitlines() if line.startswith(f"| {RED}"))
    assert "drafter.taps" in row and "usual fix" in row and "`parity diff --device" in row
    assert said.index("is worse since 2026-11-18") < said.index("### Cells to look at") < said.index("<details>")


def test_markdown_of_a_large_night_keeps_to_sixty_lines(view):
    many = tuple(cell for cell in view.cells for _ in range(20))
    said = markdown(replace(view, cells=many, past=replace(view.past, changes=view.past.changes * 30)))
    assert len(said.splitlines()) <= 60 and "more cells: see the page" in said and "more changes" in said


def test_markdown_keeps_hostile_text_text_and_in_its_column(evil):
    parsed = MarkdownIt("commonmark").enable("table").parse(markdown(evil))
    inside = [one for token in parsed for one in token.children or ()]
    kinds = {one.type for one in inside}
    assert "code_inline" in kinds and not kinds & {"html_inline", "link_open", "image"}, kinds
    assert {one.content.strip() for one in parsed if one.type == "html_block"} <= {
        "<details><summary>All 4 cells</summary>",
        "</details>",
    }
    assert "@someone" not in "".join(one.content for one in inside if one.type == "text")
    rows = "".join({"tr_open": "|", "td_open": "x"}.get(one.type, "") for one in parsed).split("|")
    assert {len(row) for row in rows if row} == {5, 6}, "no text makes a column"
