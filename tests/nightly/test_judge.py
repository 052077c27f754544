"""One cell judged: what it keeps for the report, and its figures for history."""

import json
from pathlib import Path

import pytest

from parity.diagnose import whole
from parity.golden.trust import trusted
from parity.nightly.cell import judge_cell
from parity.nightly.folder import NightFolder
from parity.nightly.judge import broken
from parity.nightly.records import Cell, CellAxes, CellResult, Night
from parity.producers import counterfactuals
from tests.sample import WHOLE, by_night

GATES = ("provenance", "stages", "decisions", "acceptance")


def cell_of(golden, device="numpy", **changes) -> Cell:
    case, model = golden.manifest.case, golden.manifest.model
    options = dict(gates=GATES, speed_tokens=6, diagnose=False) | changes
    return Cell(
        axes=CellAxes(case="chat", device="numpy", family="peagle", k=case.k, tp=1, policy="bfloat16"),
        target=model.target.path,
        drafter=model.drafter.path,
        prompts="prompts.jsonl",
        max_new_tokens=case.max_new_tokens,
        golden=str(golden.folder),
        device=device,
        **options,
    )


@pytest.fixture(scope="module")
def clean(shallow_golden, tmp_path_factory) -> CellResult:
    """Its gates are looked at by night."""
    cell = cell_of(shallow_golden, gates=GATES if WHOLE else ("acceptance",))
    return judge_cell("night", cell, shallow_golden, tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def planted(tiny_golden, tmp_path_factory) -> CellResult:
    """By day hypotheses about taps alone are tried: diagnose/test_diagnose searches through all."""
    changes = dict(diagnose=True, speed_tokens=0, gates=GATES[:2])
    cell = cell_of(tiny_golden, "parity.device.faults:tap_order", **changes)
    with pytest.MonkeyPatch.context() as patch:
        if not WHOLE:
            patch.setattr(whole, "counterfactuals", of_taps)
        return judge_cell("night", cell, tiny_golden, tmp_path_factory.mktemp("cell"))


def of_taps(golden, threads):
    """The references with hypotheses about taps."""
    reference, hypotheses = counterfactuals(golden, threads)
    return reference, [each for each in hypotheses if each.id.startswith("tap-")]


@by_night
def test_a_clean_device_that_shows_a_part_passes_in_a_night(tiny_golden, tmp_path):
    cell = cell_of(tiny_golden, "numpy,show=layer-kernels", speed_tokens=0, gates=("stages",))
    found = judge_cell("night", cell, tiny_golden, tmp_path)
    assert (found.verdict, found.first) == ("pass", "")


@pytest.mark.parametrize(
    ("device", "verdict"),
    [pytest.param("numpy", "pass", marks=by_night), ("parity.device.faults:sample_argmax_returned", "fail")],
)
def test_a_cell_that_samples_is_judged(device, verdict, sampled_golden, tmp_path):
    golden = trusted(sampled_golden, sampled=True)
    cell = cell_of(golden, device, sample=golden.manifest.case.sampling, gates=("provenance", "stages"), speed_tokens=0)
    found = judge_cell("night", cell, golden, tmp_path)
    assert found.verdict == verdict, found.first
    said = {check["name"].split(",")[0]: check["verdict"] for gate in found.gates for check in gate["checks"]}
    assert said["chained"] == said["float32 chained"] == verdict, found.gates


@by_night
def test_two_prompts_are_too_few_for_acceptance_and_the_cell_says_so(clean):
    assert clean.verdict == "inconclusive" and clean.first == "gate acceptance: acceptance length, free"
    assert "parity gate --only acceptance" in clean.reproduce
    assert {gate["gate"]: gate["verdict"] for gate in clean.gates} == {
        "provenance": "pass",
        "stages": "pass",
        "decisions": "pass",
        "acceptance": "inconclusive",
    }


def test_a_defect_is_placed_and_named(planted):
    assert planted.verdict == "fail" and planted.first.startswith("drafter.taps, prompt 0, round 0")
    assert planted.reproduce.startswith("parity diff --device parity.device.faults:tap_order --mode local")
    assert planted.diagnosis.words == "taps concatenated in the order (2, 1, 0) (tap-order)"
    assert planted.diagnosis.causes[0][0] == "tap-order"


def test_figures_are_those_of_the_stages_in_both_modes(clean):
    figures = {(one.stage, one.mode, one.name): one for one in clean.metrics}
    for mode, stages in clean.stages.items():
        for stage in stages:
            for name, value in stage["x"].items():
                assert figures[stage["stage"], mode, name].value == float(value)
    assert figures["target.embed", "local", "l2"].bound == 1.5
    assert figures["target.embed", "local", "max_abs"].bound is None
    assert figures["cell", "", "passed"].value == 0
    assert len(figures) == len(clean.metrics), "a figure has one row"


def test_acceptance_is_kept_by_prompt_and_by_draft(clean, shallow_golden):
    assert [one.prompt for one in clean.prompts] == [one.id for one in shallow_golden.manifest.case.prompts]
    lengths = [length for one in clean.prompts for length in one.lengths]
    by_draft = [one.accepted for one in clean.positions]
    assert len(by_draft) == shallow_golden.manifest.case.k and by_draft == sorted(by_draft, reverse=True)
    assert all(
        one.rounds == len(lengths) and one.low <= one.accepted / one.rounds <= one.high for one in clean.positions
    )


def test_speed_is_a_ratio_to_the_baseline_of_the_same_process(clean):
    speed = clean.speed
    assert min(speed.baseline, speed.plain, speed.speculative, speed.over_baseline, speed.model_over_plain) > 0
    assert {one.name for one in clean.metrics if one.stage == "speed"} == {
        "over_baseline",
        "over_plain",
        "model_over_plain",
    }


def test_a_map_for_every_stage_of_numbers(clean):
    families = {one.family for one in clean.heat if one.mode == "local"}
    assert {"target.layers.{l}.attn_out", "drafter.fc_out", "kv.target.{l}.k", "drafter.logits"} <= families
    assert all(len(row) == len(one.positions) for one in clean.heat for row in one.x)


def test_a_broken_cell_is_no_pass_and_says_why(shallow_golden):
    found = broken("night", cell_of(shallow_golden), "killed by signal 9", "2026-11-21T00:00:00Z", 1.5)
    assert found.verdict == "inconclusive" and found.error == "killed by signal 9"
    assert [(one.name, one.value) for one in found.metrics] == [("passed", 0.0), ("seconds", 1.5)]


def test_a_night_is_read_back_as_it_was_written(tmp_path, clean):
    night = Night(
        name="night",
        started=clean.started,
        commit="abc",
        dirty=False,
        matrix="matrix.toml",
        matrix_digest="0",
        engine="local",
        machine="here",
        cells=(clean.cell,),
    )
    folder = NightFolder.start(tmp_path / "night", night)
    assert folder.missing() == (clean.cell.name,) and folder.results() == ()
    folder.add(clean)
    assert folder.night.model_dump() == night.model_dump() and folder.missing() == ()
    assert folder.results()[0].model_dump_json() == clean.model_dump_json()
    json.loads(folder.result_file(clean.cell.name).read_text(), parse_constant=pytest.fail)
    assert not list(Path(folder.path).rglob("*.partial"))


def test_a_damaged_record_is_one_sentence(tmp_path, parity):
    from parity.errors import UsageError

    (tmp_path / "night.json").write_text('{"schema_version": 1}')
    with pytest.raises(UsageError, match=r"night.json is no record of a night: name: Field required"):
        _ = NightFolder(tmp_path).night
