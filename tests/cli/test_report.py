"""`parity report`: of a night and of a run, as a page, as Markdown, as data; and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from parity.cli.night_end import _tell
from parity.history import append
from parity.nightly.folder import NightFolder
from parity.nightly.judge import _cell
from parity.nightly.sealed import write_sealed
from tests.reports.nights import RED, unpack


@pytest.fixture
def night(tmp_path):
    return unpack(tmp_path / "night")


def test_a_night_becomes_a_page_beside_it(parity, night):
    ended = parity("report", night.path, "--json", night.path / "out.json")
    assert ended.code == 0 and ended.err == ""
    assert f"report {night.path / 'report.html'}" in ended.out
    assert ended.last.startswith("night verdict: fail; 4 cells: 1 fail, 1 broken, 2 pass; first " + RED)
    assert "device.faults:tap_off_by_one --mode local" in ended.last
    page = (night.path / "report.html").read_text()
    assert "Loading" not in page and "loading elsewhere:device" in page, "the end of a broken cell's log"
    told = json.loads((night.path / "out.json").read_text())
    assert (
        told["verdict"] == "fail" and told["cells"][0]["diagnosis"]["words"] == "taps +1 layers away (tap-off-by-one)"
    )


def test_the_page_of_the_night_before_leads_to_the_next_one(parity, tmp_path):
    url, folders = str(tmp_path / "history"), [unpack(tmp_path / "nights" / name) for name in ("a", "b & c")]
    later = folders[1].night.model_copy(update={"name": "20261122T020000.000"})
    results = [one.model_copy(update={"night": later.name}) for one in folders[1].results()]
    write_sealed(folders[1].path / "night.json", later)
    folders[1] = NightFolder(folders[1].path)
    for one in results:
        folders[1].add(one)
    for folder in folders:
        few = [one.model_copy(update={"metrics": one.metrics[:3]}) for one in folder.results()]
        append(url, folder.night, few)
        _tell(folder, url)
    pages = [(folder.path / "report.html").read_text() for folder in folders]
    assert 'rel="next" href="../b%20%26%20c/report.html"' in pages[0] and 'rel="prev"' not in pages[0]
    assert 'rel="prev" href="../a/report.html"' in pages[1] and 'rel="next"' not in pages[1]


def test_markdown_goes_to_standard_output_alone(parity, night):
    ended = parity("report", night.path, "--markdown")
    assert ended.out.startswith("## ❌ Parity: fail") and not (night.path / "report.html").exists()
    parity("report", night.path, "--markdown", "--out", night.path / "also.html")
    assert (night.path / "also.html").is_file()


def test_an_unfinished_night_is_no_pass(parity, night):
    for cell in night.night.cells:
        if cell.name != night.night.cells[1].name:
            night.result_file(cell.name).unlink()
    assert "night verdict: inconclusive; 4 cells: 3 not run, 1 pass" in parity("report", night.path).last


def test_a_run_has_nothing_of_a_night_and_the_terminals_counts(parity, shallow_golden, tmp_path):
    options = ("--golden", shallow_golden.folder, "--device", "parity.device.faults:tap_order")
    parity("run", *options, "--out", tmp_path / "run")
    ended = parity("report", tmp_path / "run", "--golden", shallow_golden.folder)
    told = parity("diff", tmp_path / "run", "--golden", shallow_golden.folder)
    counts = next(line for line in told.out.splitlines() if " families of " in line).partition(";")[0]
    assert ended.code == 0 and f"run verdict: fail; {counts}" in ended.last and "drafter.taps" in ended.last
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"The run is wrong. {counts}." in page
    assert not [word for word in ("Matrix", "What changed", "Night", "Trend", "<nav") if word in page]
    assert page.count('<figure class="heat">') == 23 and "Chained, 23 maps" in page and "Local, " not in page
    assert "Tokens per round by prompt" in page and "Gates</h4>" not in page
    assert parity("inspect", tmp_path / "run").code == 0, "the run can still be read"


@pytest.mark.parametrize(
    "name", ["parity.device.variants:gathered", "numpy,tp=2", "numpy, reversed", "\u65e5\u672c", "../x", "d" * 99]
)
@pytest.mark.parametrize("bounds", ["", "bounds.toml", "my own/wide bounds.toml"])
def test_a_run_has_a_cell_whatever_its_device_and_policy_are_called(name, bounds):
    case = SimpleNamespace(mode="chained", k=4, precision="bfloat16", max_new_tokens=12)
    run = SimpleNamespace(manifest=SimpleNamespace(case=case, tensors=(), producer=SimpleNamespace(name=name)))
    side = SimpleNamespace(path="/models/gpt.oss v1")
    golden = SimpleNamespace(manifest=SimpleNamespace(model=SimpleNamespace(target=side, drafter=side)), folder="g")
    cell = _cell(golden, run, bounds)
    assert cell.device == name and cell.bounds == bounds and cell.axes.family == "gpt-oss-v1"


def test_what_is_no_night_and_no_run_is_refused(parity, shallow_golden, tmp_path):
    ended = parity("report", tmp_path)
    assert ended.code == 2 and "neither the folder of a night (night.json) nor of a run (manifest.json)" in ended.err
    ended = parity("report", shallow_golden.folder, "--golden", shallow_golden.folder)
    assert ended.code == 2 and "is a golden" in ended.err


def test_a_damaged_cell_is_named(parity, night):
    file = night.result_file(RED)
    file.write_text(file.read_text()[:500])
    ended = parity("report", night.path)
    assert ended.code == 2 and file.name in ended.err and not (night.path / "report.html").exists()


def test_a_page_that_cannot_be_written_leaves_nothing_behind(parity, night):
    (night.path / "taken").mkdir()
    ended = parity("report", night.path, "--out", night.path / "taken" / ".." / "night.json" / "x.html")
    assert ended.code == 2 and "cannot be written" in ended.err
    shutil.rmtree(night.path)


def test_help_and_diff_do_not_import_what_a_page_or_another_command_needs():
    code = (
        "import sys; from parity.cli import cli; import parity.reports.terminal, parity.golden.choice, parity.oracles; "
        "cli.commands['diff']; "
        "others = {'parity.cli.bench', 'parity.producers', 'parity.builders', 'parity.guard', 'parity.batching'}; "
        "sys.exit(bool({'jinja2', 'pandas', 'logging', 'parity.reports.page', *others} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
