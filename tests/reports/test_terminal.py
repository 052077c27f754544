"""What a comparison prints: what does not pass, a verdict on one screen, at 80 columns and in a pipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.api import open_golden
from parity.compare import compare
from parity.compare.exercised import not_exercised, on_forced_inputs
from parity.policy import read_policy
from parity.reports.terminal import print_demo, print_report
from parity.trace import forced_templates
from tests.meta.dumps import clean, write
from tests.meta.plants import FFN, drop, values, with_nan
from tests.meta.worlds import Size


@pytest.fixture
def shown(tmp_path, capsys, monkeypatch):
    """Prints the comparison of a hand-made pair; its report and lines."""

    def printed(*plants, columns=None, whole=False, change=lambda report: report):
        pair = clean(Size(prompts=(60, 20)))
        for plant in plants:
            plant(pair)
        golden, run = write(pair, tmp_path)
        report = change(compare(golden, run, read_policy(None, "bfloat16")))
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        print_report(report, whole=whole)
        return report, capsys.readouterr().out.splitlines()

    return printed


def listed(lines):
    """Families in the table."""
    rows = [line.split() for line in lines if line.split()[:1] in (["pass"], ["fail"], ["forced"], ["warn"])]
    return [family for _, family, *_ in rows if "." in family]


WRONG = values(lambda x: x * 1.5, FFN)


def test_a_clean_run_lists_no_family_and_says_how_many_pass(shown):
    report, lines = shown()
    families = {stage.family for stage in report.stages}
    assert report.verdict == "pass" and listed(lines) == []
    assert any(line.startswith(f"{len(families)} families of {len(report.stages)} stages: ") for line in lines)
    assert lines[-1] == f"{report.mode} verdict: pass" and not any(line.startswith("next ") for line in lines)


def test_all_lists_every_family(shown):
    report, lines = shown(whole=True)
    assert listed(lines) == list(dict.fromkeys(stage.family for stage in report.stages))


@pytest.mark.parametrize("columns", [None, 80, 200])
def test_a_red_run_says_what_where_since_when_whose_and_what_to_do_next(columns, shown):
    report, lines = shown(WRONG, columns=columns)
    heads = {line.split()[0]: line for line in lines if line[:1].isalpha()}
    assert {"what", "where", "since", "whose", "next"} <= set(heads)
    assert FFN in heads["what"] and report.first.row.split(",")[0] in heads["where"] and "rows" in heads["since"]
    assert heads["next"].split(maxsplit=1)[1] == f"parity diagnose {report.run} --golden {report.golden}"
    assert lines[-1].startswith(f"{report.mode} verdict: fail; first divergent: {FFN}")
    red = [stage.family for stage in report.stages if stage.verdict != "pass"]
    assert set(listed(lines)) == set(red)


@pytest.mark.parametrize(("mode", "says"), [("local", " only (1 of 2)"), ("chained", None)])
def test_a_local_comparison_says_in_which_layers_its_first_stage_fails(mode, says, shown):
    """In a chained one an error travels from layer to layer."""

    def beside_a_clean_layer(report):
        clean_one = replace(report.first_stage, layer=report.first_stage.layer + 1, verdict="pass", first=None)
        return replace(report, mode=mode, stages=(*report.stages, clean_one))

    report, lines = shown(WRONG, change=beside_a_clean_layer)
    told = [line.removeprefix("layers").strip() for line in lines if line.startswith("layers")]
    assert told == ([f"layer {report.first_stage.layer}{says}"] if says else [])


@pytest.mark.parametrize("plant", [values(with_nan, FFN), drop(FFN, ("bfloat16",))])
def test_what_is_wrong_whatever_the_values_is_said_once_and_its_family_fails(plant, shown):
    report, lines = shown(plant)
    told = report.findings[0].message
    assert report.verdict == "fail" and sum(told in line for line in lines[:-1]) == 1
    assert f"what           {told}" in lines
    assert {line.split()[0] for line in lines if "target.layers.{l}.ffn_out" in line} <= {"fail"}


@pytest.mark.parametrize("whole", [False, True])
def test_at_80_columns_all_is_wrapped_and_nothing_is_cut(whole, shown):
    hidden = {f"target.layers.{layer}.q": f"target.layers.{layer}.out" for layer in range(8)}
    told = "a sentence of many words that says what is not seen " * 4
    report, lines = shown(
        WRONG, columns=80, whole=whole, change=lambda report: replace(report, not_shown=hidden, unseen=(told.strip(),))
    )
    paths = ("golden /", "run ", "next ", f"{report.mode} verdict")  # to be copied in one piece
    assert [line for line in lines if len(line.rstrip()) > 80 and not line.startswith(paths)] == []
    assert "…" not in "".join(lines) and told.strip() in " ".join(" ".join(lines).split())
    assert {stage.family for stage in report.stages if stage.verdict != "pass"} <= set(listed(lines))


def test_in_a_pipe_a_statement_is_one_line(shown):
    told = "a sentence of many words that says what is not seen " * 8
    _, lines = shown(change=lambda report: replace(report, unseen=(told.strip(),)))
    assert f"not seen       {told.strip()}" in lines


def test_what_passes_on_the_goldens_own_choices_is_called_forced(shown):
    report, lines = shown(whole=True, change=lambda report: replace(report, forced=("accept.length",)))
    words = {line.split()[1]: line.split()[0] for line in lines if line.split()[:1] in (["pass"], ["forced"])}
    assert words["accept.length"] == "forced" and words["drafter.draft_tokens"] == "pass"
    assert any(line.startswith("forced         accept.length: right on choices") for line in lines)
    assert report.verdict == "pass"


def test_only_what_is_made_from_nothing_but_forced_choices_is_forced():
    forced = on_forced_inputs(forced_templates("chained"), "chained")
    assert set(forced) == {"drafter.input_ids", "accept.length", "accept.emitted", "kv.target.length"}
    assert on_forced_inputs(forced_templates("local"), "local") == on_forced_inputs((), "chained") == ()


def test_what_no_round_of_a_golden_does_is_said(shallow_golden):
    golden = open_golden(shallow_golden.folder)
    prompt = golden.manifest.case.prompts[0]
    k = golden.manifest.case.k

    class Golden:
        manifest = golden.manifest

    def said(accepted, finish, ids, times):
        run = prompt.generated.model_copy(update={"accepted_drafts": accepted, "finish": finish, "emitted": (1,)})
        one = prompt.model_copy(update={"generation": run, "ids": ids})
        case = golden.manifest.case.model_copy(update={"prompts": (one,) * times})
        Golden.manifest = golden.manifest.model_copy(update={"case": case})
        return list(not_exercised(Golden))

    assert said((0, 1, k), "eos", tuple(range(80)), 2) == []
    few = said((k,), "length", (1, 2), 1)
    assert len(few) == 6 and few[0].startswith("a second sequence")
    assert "rejects its first" in few[1] and "end token" in few[3]
    assert few[-2].endswith("window of 32") and few[-1].endswith("context of 64")


def test_a_demo_that_passes_fits_a_screen_and_one_that_fails_says_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for plants, whole in (([], False), ([], True), ([WRONG], False)):
        pair = clean(Size(prompts=(60, 20)))
        for plant in plants:
            plant(pair)
        golden, run = write(pair, tmp_path / f"{len(plants)}-{whole}")
        report = compare(golden, run, read_policy(None, "bfloat16"))
        print_demo(golden, [report, report], whole)
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].startswith(f"{report.mode} verdict: {report.verdict}")
        assert bool(listed(lines)) == (whole or bool(plants))
        assert (len(lines) <= 24) == (not plants and not whole)
        assert any(line.startswith("what") for line in lines) == bool(plants)


def test_a_first_failure_behind_what_is_inconclusive_is_nobodys_yet(shown):
    def in_doubt(report):
        first, embed = report.first_stage, report.stages[0]
        changed = {id(first): replace(first, marks=("inherited",)), id(embed): replace(embed, verdict="inconclusive")}
        assert not report.in_doubt and "before it" not in report.first_summary
        return replace(report, stages=tuple(changed.get(id(stage), stage) for stage in report.stages))

    report, lines = shown(WRONG, change=in_doubt)
    (whose,) = (line for line in lines if line.startswith("whose"))
    assert f"not told: {report.stages[0].stage}, which it is computed from, is inconclusive; --mode local" in whose
    assert f"{report.stages[0].stage} before it is inconclusive" in report.first_summary
