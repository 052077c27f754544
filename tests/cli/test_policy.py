"""Policies: what ships is printed, checked and used; other tools' rules say what they cannot see."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from parity.compare import compare
from parity.compare.places import excess
from parity.compare.report import NOT_JUDGED
from parity.compare.rows import HALF_ULP
from parity.compare.statistics import LEAST
from parity.errors import UsageError
from parity.policy import Limit, read_policy, shipped
from parity.reports.terminal import print_report
from tests.meta.dumps import clean, write
from tests.meta.plants import FFN, LOGITS, OUT, Q, values, with_nan
from tests.meta.worlds import SHORT

PRESETS = ("turbomind", "nxdi", "aws-r-ratio", "torch-testing", "pcc")


TOLERANT = 'judge = "relative"\nbeyond_tolerance = { ok = 2, warn = 2 }\ntolerances.bfloat16 = {'


@pytest.fixture
def verdict(tmp_path):
    """Judge a synthetic run, with a defect or clean, by a shipped policy."""

    def judge(policy: str, plant=lambda pair: None):
        pair = clean(SHORT)
        plant(pair)
        return compare(*write(pair, tmp_path / policy), read_policy(policy, "bfloat16"))

    return judge


@pytest.fixture
def refused(tmp_path):
    """A policy of one row that is refused, with these words."""

    def check(row: str, words: str) -> None:
        path = tmp_path / "policy.toml"
        path.write_text(f'name = "odd"\n[[row]]\nstages = "*"\nreason = "because it must be"\n{row}')
        with pytest.raises(UsageError, match=words):
            read_policy(path, "bfloat16")

    return check


def test_the_default_policy_is_printed_as_the_file_it_is(parity, tmp_path):
    found = parity("policy")
    assert found.code == 0 and tomllib.loads(found.out)["name"] == "bfloat16"
    mine = tmp_path / "mine.toml"
    mine.write_text(found.out)
    assert read_policy(mine, "float32") == read_policy("bfloat16", "bfloat16")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_printed_and_says_what_it_cannot_see(name, parity, tmp_path):
    file = tmp_path / "policy.json"
    found = parity("policy", name, "--json", file)
    assert found.code == 0 and tomllib.loads(found.out)["blind"]
    assert json.loads(file.read_text())["name"] == name
    assert name in parity("policy", "--list").out


def test_every_shipped_policy_gives_its_reasons_and_reads():
    for name in shipped():
        policy = read_policy(name, "bfloat16")
        assert policy.name == name and policy.blind and all(row.reason for row in policy.rows)


def test_an_unknown_name_lists_the_known_ones(parity):
    found = parity("policy", "torhc-testing")
    assert found.code == 2 and "torch-testing" in found.err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('judge = "noise"', "sets no bound"),
        ('judge = "exact"\nl2 = { ok = 1, warn = 1 }', "sets a bound"),
        ('judge = "noise"\nl2 = { ok = 2, warn = 1 }', "below ok"),
        ('judge = "noise"\nl3 = { ok = 1, warn = 1 }', "l3"),
        ('judge = "relative"\nulp = 2\nulp_beyond = { ok = 0, warn = 0 }', "ulp = 2"),
        ('judge = "relative"\nbeyond_tolerance = { ok = 1, warn = 1 }', "go together"),
        ('modes = []\njudge = "exact"', "modes"),
        ('modes = ["sideways"]\njudge = "exact"', r"modes.*'chained'"),
        ('modes = ["chained", "golden"]\njudge = "exact"', r"modes.*'local'"),
        ('modes = "chained"\njudge = "exact"', "modes"),
        ('judge = "noise"\nl2 = { ok = 1, warn = inf }', "finite"),
        ('judge = "noise"\nl2 = { ok = nan, warn = nan }', "l2"),
        ('judge = "noise"\nl2 = { ok = 1, warn = 1e308 }', "bounds nothing"),
        ('judge = "noise"\nl2 = { ok = 1, warn = 1 }\nscale = { ok = 5, warn = 1e4 }', "standard error"),
        ('judge = "noise"\nscale = { ok = 5, warn = 5 }', "scale bounds a factor .* and nothing bounds the rest"),
        (
            'judge = "noise"\nbias = { ok = 5, warn = 5 }\nunlike = { ok = 0.1, warn = 0.1 }',
            "bias .* and unlike .* rest",
        ),
        ('judge = "noise"\nmedian = { ok = 1, warn = 1 }', "median bounds half of the rows and nothing"),
        ('judge = "relative"\nl2 = { ok = 0.1, warn = 1 }', "zeros"),
        ('judge = "relative"\ncosine_distance = { ok = 1, warn = 1 }', "unrelated"),
        ('judge = "relative"\ntop5_missed = { ok = 1, warn = 1 }', "everything"),
        ('judge = "relative"\nulp_max = { ok = 1e9, warn = 1e9 }', "factor of two"),
        ('judge = "relative"\nulp = 1073741823\nulp_beyond = { ok = 0, warn = 0 }', "factor of two"),
        (f"{TOLERANT} rtol = inf, atol = 1 }}", "finite"),
        (f"{TOLERANT} rtol = 0.5, atol = 1 }}", "rtol x beyond_tolerance = 1 bounds nothing"),
        (f"{TOLERANT} rtol = 0, atol = 1e308 }}", "bounds nothing"),
        (
            'judge = "exact"\n[[row]]\nstages = "logits"\njudge = "exact"\nreason = "strict but dead"',
            r"row 2 \('logits'\).*row 1 \('\*'\)",
        ),
        (
            'modes = ["local"]\njudge = "exact"\n'
            '[[row]]\nstages = "*"\nmodes = ["chained"]\njudge = "none"\nreason = "between the two"\n'
            '[[row]]\nstages = "q"\njudge = "exact"\nreason = "strict but dead"',
            r"row 3 .* row 1 .* and row 2 ",
        ),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(row, words, refused):
    refused(row, words)


@pytest.mark.parametrize(
    ("limit", "figure"),
    [
        (Limit.NOISE, 0.225 / HALF_ULP),
        (Limit.ERRORS, 0.1 / LEAST),
        (Limit.ABSOLUTE, float(np.finfo(np.float16).max)),
        (Limit.ULP, 1 / float(np.finfo(np.float32).eps)),
    ],
)
def test_a_limit_is_where_its_reason_says(limit, figure):
    assert limit.figure == pytest.approx(figure, rel=0.15 if limit in (Limit.NOISE, Limit.ERRORS) else 0)
    limit.refuse(np.nextafter(limit.figure, 0), "l2")
    with pytest.raises(ValueError, match=r"l2 = .* bounds nothing"):
        limit.refuse(limit.figure, "l2")


@pytest.mark.parametrize("name", ["turbomind", "nxdi", "aws-r-ratio", "pcc"])
def test_a_clean_device_passes_the_preset(name, verdict):
    assert verdict(name).exit_code == 0


def test_torch_testing_fails_a_clean_device_where_sums_cancel(verdict):
    report = verdict("torch-testing")
    assert {stage.stage for stage in report.stages if stage.verdict == "fail"} >= {Q, FFN}


@pytest.mark.parametrize("name", ["turbomind", "pcc"])
def test_correlation_cannot_see_a_scale(name, verdict):
    assert verdict(name, values(lambda x: x * np.float32(1.2), FFN)).exit_code == 0
    assert verdict("bfloat16", values(lambda x: x * np.float32(1.2), FFN)).exit_code == 1


def test_a_stage_the_preset_does_not_name_is_listed_as_not_judged(verdict):
    report = verdict("nxdi", values(np.negative, OUT))
    judged = {stage.stage: stage.verdict for stage in report.stages}
    assert report.exit_code == 0 and judged[OUT] == NOT_JUDGED and judged[LOGITS] == "pass"


@pytest.mark.parametrize("name", PRESETS)
def test_structure_and_integers_fail_under_every_preset(name, verdict):
    broken = verdict(name, values(with_nan, OUT))
    assert broken.exit_code == 1 and OUT in {finding.stage for finding in broken.findings}


@pytest.mark.parametrize("name", PRESETS)
def test_shifted_positions_fail_under_every_preset(name, verdict):
    assert verdict(name, values(lambda x: x + 1, "drafter.positions")).exit_code == 1


def test_a_comparison_in_which_nothing_was_judged_is_inconclusive(tmp_path):
    dumps = write(clean(SHORT), tmp_path)
    assert compare(*dumps, read_policy("nxdi", "bfloat16"), globs=("attn_in",)).exit_code == 3


@pytest.mark.parametrize(("judged", "code"), [("*attn_in", 0), ("", 3)], ids=["one stage", "none"])
def test_a_policy_that_judges_no_number_proves_nothing(judged, code, tmp_path):
    rows = (("*tokens", "decision"), ("*experts", "experts"), ("drafter.[ps]*s", "exact"), ("accept.*", "exact"))
    rows += (("kv.*.length", "exact"), *([(judged, "noise")] if judged else []), ("*", "none"))
    text = "".join(
        f'[[row]]\nstages = "{glob}"\njudge = "{judge}"\nreason = "for a test of it"\n'
        + "l2 = { ok = 3, warn = 3 }\n" * (judge == "noise")
        for glob, judge in rows
    )
    policy = tmp_path / "policy.toml"
    policy.write_text(f'name = "odd"\n{text}')
    report = compare(*write(clean(SHORT), tmp_path / "dumps"), read_policy(policy, "bfloat16"))
    assert report.exit_code == code
    assert [*report.parted] == ["the policy judges no stage of numbers, by rows whose judge is none"] * (code == 3)


def test_ulp_bounds_judge_by_distance(tmp_path):
    policy = tmp_path / "ulp.toml"
    exact = '[[row]]\nstages = "%s"\njudge = "exact"\nreason = "ids are ids"\n'
    ulps = '[[row]]\nstages = "*"\njudge = "relative"\nl2 = { ok = 0.1, warn = 0.1 }\n'
    ulps += 'ulp = 1\nulp_beyond = { ok = %s, warn = %s }\nreason = "within one ULP"\n'
    rows = "".join(exact % glob for glob in ("*tokens", "*experts", "drafter.[ps]*s", "accept.*", "kv.*.length"))
    dumps = write(clean(SHORT), tmp_path / "dumps")
    for share, code in ((0.9, 0), (0.001, 1)):
        policy.write_text('name = "ulp"\n' + rows + ulps % (share, share))
        assert compare(*dumps, read_policy(policy, "bfloat16"), globs=("q", "slots")).exit_code == code


def test_a_truth_value_is_no_bound(refused):
    refused('judge = "relative"\nl2 = { ok = true, warn = true }', "l2.ok")


def test_beyond_a_bound_of_zero_is_beyond_every_multiple_of_it(tmp_path):
    """A division by zero took the place of the verdict."""
    path, shown = tmp_path / "policy.toml", shipped()["bfloat16"].read_text()
    row = 'stages = "target.layers.*.q"\nreason = "the same bits"\njudge = "relative"\nl2 = { ok = 0, warn = 0 }'
    path.write_text(shown.replace("[[row]]", f"[[row]]\n{row}\n\n[[row]]", 1))
    report = compare(*write(clean(SHORT), tmp_path / "pair"), read_policy(path, "bfloat16"))
    assert report.verdict == "fail" and report.first_stage.stage.endswith(".q")
    beyond, within = (replace(report.first_stage, x={"l2": x}, bounds={"l2": (0.0, 0.0)}) for x in (0.5, 0.0))
    assert excess(beyond) == inf and excess(within) == 0.0


@pytest.fixture
def dumps(tmp_path):
    """A clean synthetic run and its golden."""
    return write(clean(SHORT), tmp_path / "dumps")


@pytest.fixture
def told(dumps, tmp_path, capsys):
    """A policy file, a shipped one with words replaced; the report of a clean run by it, and what is printed."""

    def judge(name: str, *changes: tuple[str, str]):
        path = tmp_path / "mine.toml"
        text = shipped()[name].read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        report = compare(*dumps, read_policy(path))
        print_report(report)
        return path, report, capsys.readouterr().out

    return judge


LOOSE = ("pearson_distance = { ok = 0.01, warn = 0.01 }", "pearson_distance = { ok = 0.02, warn = 0.02 }")


def test_a_loosened_copy_is_named_by_its_file_and_not_by_the_shipped_ones_words(told):
    path, report, out = told("pcc", LOOSE)
    rows = len(read_policy("pcc").rows)
    assert f"{path} (not the shipped pcc: 1 of {rows} rows differ)" in " ".join(out.split()), out
    assert "cannot see" not in out and report.blind == ""
    assert (report.policy, report.policy_file) == ("pcc", str(path))


def test_what_a_file_of_its_own_cannot_see_is_said_of_the_file(told):
    path, _, out = told("pcc", LOOSE, ("blind = ", 'blind = "mine alone" # '))
    assert f"policy {path}: mine alone" in " ".join(out.split()), out
    path, _, out = told("pcc", ("blind = ", 'blind = "" # '))
    assert f"{path} (the rows of the shipped pcc, other words)" in " ".join(out.split()), out


def test_a_copy_of_a_shipped_policy_is_the_shipped_one(told):
    _, report, out = told("pcc", ("# ", "#  "))
    assert report.policy_file == "" and "policy pcc: " in out and "mine.toml" not in out


def test_a_name_that_does_not_ship_is_named_by_its_file(told):
    path, report, out = told("pcc", ('name = "pcc"', 'name = "ours"'))
    assert f"{path} (ours, which does not ship)" in " ".join(out.split()) and report.blind


def test_the_command_of_a_verdict_repeats_what_it_depends_on(told, dumps):
    path, report, _ = told("pcc", LOOSE)
    assert report.reproduce.endswith(f" --policy {path}")
    plain = compare(*dumps, read_policy()).reproduce
    assert plain.endswith(f" --golden {dumps[0].folder}")
    for name, strict, more in ((None, True, " --strict"), ("pcc", True, " --policy pcc --strict")):
        assert compare(*dumps, read_policy(name), strict=strict).reproduce == plain + more
