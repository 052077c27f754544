"""The decisions gate: every row judged to the end, and red on a wrong tie rule, token or vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.api import run_device
from parity.builders import builder
from parity.compare.basis import Basis
from parity.compare.choices import SAME
from parity.errors import Inconclusive
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.decisions import GROUPS, PlantedTies, _same
from parity.gates.decisions_rows import DraftVocabulary, JudgedRows, _moved, _slots, judge_rows, read_draft_vocabulary
from parity.golden.store import Dump
from parity.isolation.device import _offers
from parity.seam import RankTap, RowTap
from tests.sample import by_night

FAULTS, OTHERS = "parity.device.faults:", "tests.gates.choice_faults:"
TARGET, VERIFY, DRAFTER, OWN, TIES = range(5)


@pytest.fixture(scope="module")
def gate(shallow_golden, tmp_path_factory):
    """The gate's five checks on a device, made once for each."""
    made = {}

    def run(device: str = "numpy", precision: str = "bfloat16"):
        if (device, precision) not in made:
            folder = tmp_path_factory.mktemp("gate")
            context = GateContext(shallow_golden, device, builder(device, shallow_golden), precision, folder)
            made[device, precision] = run_gate(context, "decisions").checks, context.run("chained")
        return made[device, precision]

    return run


def verdicts(checks) -> list[str]:
    return [check.verdict for check in checks]


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_clean_device_passes_and_every_row_is_counted(precision, gate, shallow_golden):
    checks, _ = gate(precision=precision)
    assert verdicts(checks) == ["pass"] * 5
    for check, stage in zip(checks, GROUPS.values(), strict=False):
        due = sum(
            row.shape[0] for place, row in shallow_golden.rows.items() if place[0] == "float32" and place[3] == stage
        )
        assert check.figures["rows"] == due == check.figures["same"] + check.figures["tie"] + check.figures["noise"]
        assert 0 <= check.figures["kl_mean"] <= check.figures["kl_max"] < 0.05, check.evidence


def test_a_device_that_hands_rows_over_one_by_one_is_judged_as_any_other(gate):
    checks, _ = gate(OTHERS + "step_by_step")
    assert verdicts(checks) == ["pass"] * 5 and [one.evidence for one in checks] == [one.evidence for one in gate()[0]]


def test_what_a_tap_offers_is_a_method():
    for protocol, name in ((RowTap, "rows"), (RankTap, "ranks")):
        counting = type("Counting", (), {name: {}, "__call__": lambda *_: None})()
        assert not isinstance(counting, protocol) and not _offers(counting, name)
        assert isinstance(type("Taking", (), {name: lambda *_: None, "__call__": lambda *_: None})(), protocol)


def test_slots_count_anew_in_each_prompt_and_round():
    prompt, round_ = np.array([[0, 0, 0, 0, 0, 1, 1, 1], [1, 1, 2, 2, 2, 2, 2, 1]])
    assert _slots(prompt, round_).tolist() == [0, 1, 0, 1, 2, 0, 1, 0]


def test_the_drafters_slots_are_counted_apart(gate, shallow_golden):
    slots = gate()[0][DRAFTER].figures["slots"]
    rounds = sum(len(prompt.generation.acceptance_length) for prompt in shallow_golden.manifest.case.prompts)
    assert list(slots) == ["NTP", "MTP 1", "MTP 2", "MTP 3"]
    assert {one["rows"] for one in slots.values()} == {rounds}


@pytest.mark.parametrize("device", [FAULTS + "verify_tie_rule", OTHERS + "drafter_last_equal_wins"])
def test_a_tie_rule_that_lets_the_last_equal_value_win_is_red_on_the_planted_ties(device, gate):
    ties = gate(device)[0][TIES]
    assert ties.verdict == "fail" and "one of them" in ties.evidence
    assert ties.place.stage == ("drafter.draft_tokens" if "drafter" in device else "target.tokens")


def test_no_rows_are_not_rows_without_a_difference():
    rows = JudgedRows(*["verify.logits", np.array([], object), *[np.zeros(0)] * 10])
    assert not _same(rows)
    assert _same(replace(rows, verdict=np.array([SAME]))) and not _same(
        replace(rows, verdict=np.array([SAME]), lack="x")
    )


def test_a_device_that_never_chooses_its_last_columns_is_red_on_the_planted_ties():
    vocabulary = SimpleNamespace(ascending=True, tokens=np.arange(600))
    ties = PlantedTies(vocabulary, (3,), np.random.default_rng(0))
    tied = ties("verify.logits", np.zeros((5, 600), np.float32))
    ties.look("verify.tokens", tied.argmax(axis=1))
    assert not ties.wrong
    ties.look("verify.tokens", tied[:, :-32].argmax(axis=1))
    assert 2 in {one.row for one in ties.wrong}


def test_a_device_that_does_not_take_the_taps_logits_is_red(gate):
    ties = gate(OTHERS + "deaf")[0][TIES]
    assert ties.verdict == "fail" and "does not continue with what the tap returns" in ties.evidence


def test_a_token_that_is_not_the_best_is_a_bug_and_contradicts_its_own_logits(gate):
    checks, _ = gate(OTHERS + "tenth_best")
    assert verdicts(checks)[:4] == ["fail", "fail", "pass", "fail"]
    verify, rounds = checks[VERIFY].figures, gate()[0][DRAFTER].figures["slots"]["NTP"]["rows"]
    assert verify["bug"] == rounds and verify["regret_max"] > 0, "the check continues behind the first bug"
    assert checks[VERIFY].place.round == 1 and checks[OWN].place.stage == "target.tokens"


def test_wrong_tokens_that_agree_with_their_own_logits_are_bugs(gate):
    checks, _ = gate(OTHERS + "columns_rolled")
    assert verdicts(checks) == ["fail", "fail", "pass", "pass", "pass"]
    assert checks[TARGET].figures["overlap"]["top1"] < 0.1 and checks[TARGET].figures["kl_mean"] > 1


def test_draft_ids_that_skip_d2t_are_red_although_the_logits_are_right(gate):
    checks, _ = gate(FAULTS + "d2t_missing")
    assert verdicts(checks) == ["pass", "pass", "fail", "fail", "fail"]
    assert checks[DRAFTER].figures["kl_max"] < 0.05


def spoilt(run: Dump, stage: str, change) -> Dump:
    """The run with one stage changed wherever it is read."""
    other = Dump(run.folder)
    honest = other.stored

    def stored(variant, prompt, round_, name):
        value = honest(variant, prompt, round_, name)
        return change(value.copy()) if name == stage and value is not None else value

    other.stored = stored
    return other


def group(run: Dump, golden: Dump, stage: str = "verify.tokens"):
    return judge_rows(Basis(golden, run), run, stage, read_draft_vocabulary(golden))


def test_a_row_that_is_not_finite_fails_whatever_its_token(gate, shallow_golden, tmp_path):
    def poison(logits):
        logits[1, 3] = np.nan
        return logits

    context = GateContext(shallow_golden, "numpy", builder("numpy", shallow_golden), "bfloat16", tmp_path)
    context.give(spoilt(gate()[1], "verify.logits", poison))
    checks = run_gate(context, "decisions").checks
    assert checks[VERIFY].verdict == "fail" and checks[VERIFY].figures["not_finite"] > 0


def test_rounds_that_are_missing_are_no_pass(gate, shallow_golden, tmp_path):
    run = Dump(gate()[1].folder)
    rows = tuple(row for row in run.manifest.tensors if row.key != "p000/r0002/verify.logits")
    run.manifest = run.manifest.model_copy(update={"tensors": rows})
    run.index()
    context = GateContext(shallow_golden, "numpy", builder("numpy", shallow_golden), "bfloat16", tmp_path)
    context.give(run)
    check = run_gate(context, "decisions").checks[VERIFY]
    assert check.verdict == "inconclusive" and "verify" in check.name


@by_night
def test_a_run_that_was_not_forced_is_no_pass(shallow_golden, remake_small_golden, tmp_path):
    """Of twelve tokens, one of which rounding takes for another."""
    model = shallow_golden.manifest.model
    pair = {side: Path(getattr(model, side).path) for side in ("target", "drafter")}
    golden = remake_small_golden(tmp_path / "golden", **pair)
    run = run_device(golden, "numpy", "chained", out=tmp_path / "run", free=False)
    case = run.manifest.case.model_copy(update={"forced": ()})
    run.manifest = run.manifest.model_copy(update={"case": case})
    context = GateContext(golden, "numpy", builder("numpy", golden), "bfloat16", tmp_path)
    context.give(run)
    checks = run_gate(context, "decisions").checks
    assert verdicts(checks)[:3] == ["inconclusive"] * 3 and "was not forced" in checks[TARGET].evidence


def test_ties_are_counted_at_one_and_at_two_ulp(gate, shallow_golden):
    """The runner-up is chosen in every row, with its golden logit set 0, 1, 2 and 3 ULP below the best one."""
    run, golden = gate()[1], Dump(shallow_golden.folder)
    honest, step = golden.stored, 0.125

    def stored(variant, prompt, round_, name):
        value = honest(variant, prompt, round_, name)
        if name == "verify.logits" and variant == "float32":
            value = value.copy()
            rows = np.arange(len(value))
            value[rows, value.argmax(axis=1)] = 18.0
            value[rows, value.argmin(axis=1)] = 18.0 - step * (rows % 4)
        return value

    golden.stored = stored
    chosen = {
        (prompt, round_): honest("float32", prompt, round_, "verify.logits").argmin(axis=1)
        for variant, prompt, round_, name in golden.rows
        if name == "verify.logits" and variant == "float32"
    }
    other = Dump(run.folder)
    true = other.stored
    other.stored = lambda v, p, r, n: chosen[p, r] if n == "verify.tokens" else true(v, p, r, n)
    found = group(other, golden)
    count = len(found.verdict)
    far = found.regret / step
    assert [(far == ulps).sum() > 0 for ulps in range(4)] == [True] * 4
    assert (found.verdict[far <= 1] == "tie").all() and (found.verdict[far > 1] != "tie").all()
    assert found.near.sum() == (far <= 2).sum() < count


def test_divergence_is_kl_of_golden_and_device_in_nats():
    golden, device = np.array([[0.0, np.log(3.0)]]), np.array([[0.0, 0.0]])
    kl, relative, finite = _moved(golden, device)
    assert kl[0] == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))
    assert relative[0] == pytest.approx(1.0) and finite.all()


def test_the_drafters_vocabulary_is_what_the_golden_says_and_the_checkpoint_too(shallow_golden, tiny):
    told, found = read_draft_vocabulary(shallow_golden), read_draft_vocabulary(moved(shallow_golden, tiny / "drafter"))
    assert told.source == "the golden's manifest" and told.tokens.tolist() == found.tokens.tolist()
    assert found.source == "d2t of model.safetensors" and found.ascending
    assert found.columns(found.tokens).tolist() == list(range(992))
    assert found.columns(np.array([-5, 10**6])).tolist() == [-1, -1]


def test_without_the_checkpoint_the_goldens_own_rows_tell_and_the_rest_is_unknown(shallow_golden, tmp_path):
    golden = moved(shallow_golden, tmp_path)
    found = read_draft_vocabulary(golden)
    assert found.source == "the golden's own rows" and 0 < (found.tokens >= 0).sum() < 100


def test_a_checkpoint_that_contradicts_the_golden_is_inconclusive(shallow_golden, tmp_path):
    from safetensors.numpy import save_file

    save_file({"d2t": np.zeros(992, np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(Inconclusive, match="says"):
        read_draft_vocabulary(moved(shallow_golden, tmp_path))


def moved(golden: Dump, folder) -> Dump:
    """The golden as one that does not say what is drafted, its drafter said to be here."""
    other = Dump(golden.folder)
    drafter = other.manifest.model.drafter.model_copy(update={"path": str(folder)})
    model = other.manifest.model.model_copy(update={"drafter": drafter, "draft_vocabulary": None})
    other.manifest = other.manifest.model_copy(update={"model": model})
    return other


def test_columns_out_of_order_are_said_to_be():
    assert not replace(DraftVocabulary(np.array([3, 5]), ""), tokens=np.array([5, 3])).ascending


def test_ties_are_planted_at_the_ends_and_the_middle_at_neighbours_and_far_apart():
    ties, free = PlantedTies(None, (), np.random.default_rng(0)), np.arange(100, 200)
    assert ties._columns(free, 1).tolist() == ties._columns(free, 4).tolist() == [100, 150, 199]
    assert ties._columns(free, 2).tolist() == [197, 198, 199]
    assert np.diff(ties._columns(free, 5)).tolist() == [1, 1]
    eighth = {column: part for part, columns in enumerate(np.array_split(free, 8)) for column in columns.tolist()}
    far = [ties._columns(free, row).tolist() for row in range(0, 60, 3)]
    assert all(columns == sorted(columns) and len({eighth[one] for one in columns}) == 3 for columns in far)
