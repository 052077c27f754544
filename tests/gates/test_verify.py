"""The verify gate: passes of several rows against single rows, in float32, bfloat16 and a batch; and exact ties."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity import device
from parity.decode import Decoded
from parity.errors import NotOffered, UsageError
from parity.gates import verify
from parity.gates.context import NoiseFloors
from parity.gates.verify_agreement import Agreement, DecodeCase, VerifyPass
from tests.gates import planted
from tests.sample import WHOLE, by_night


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One prompt, one padding width, a few steps: enough to see it red, and cheap."""
    monkeypatch.setattr(verify, "PROMPTS", 1)
    monkeypatch.setattr(verify, "BATCH_PROMPTS", 1)
    monkeypatch.setattr(verify, "EDGES", (32,))


@pytest.fixture
def rows_agree(shallow_golden, tmp_path):
    """The check of verify against decode, in a precision, under a defect."""
    return lambda precision, plant=lambda device: None: verify.rows_agree(
        planted.context_of(shallow_golden, tmp_path, plant), NoiseFloors(shallow_golden), precision
    )


@pytest.mark.parametrize(("precision", "units"), [("float32", (1, 1, 1)), ("bfloat16", (0.1, 0.05, 0.05 * 4))])
def test_figures_are_of_the_rows_that_were_decoded_alone(precision, units):
    """Rows of RMS 2.5, of which the pass repeats the second to the fourth: bit-equal, off by 0.5, and by 1."""
    plain = Decoded((3, 3, 3, 3, 3), {"verify.logits": np.tile(np.float32([3, 0, 0, 4]), (4, 1))})
    seen = plain.rows["verify.logits"].copy()
    seen[1, 1], seen[2, 2], seen[3, 3] = 0.5, -1, 0
    noise = SimpleNamespace(
        rms=lambda stage, scores: np.zeros(len(scores)),
        noisy=lambda stage: 0.05,
        pooled=lambda stage: 0.1,
        crest=lambda stage: 4,
    )
    case = DecodeCase("toy", 1, (7, 7), 5)
    tokens = np.array([3, 3, 3, 0])
    agreement = Agreement(precision, noise)
    agreement.add(VerifyPass(case, 1, 3, 3, {"verify.logits": seen, "verify.tokens": tokens}, tokens), plain)
    pooled, worst, largest = (0.05 / 3) ** 0.5 / units[0], 0.2 / units[1], 0.4 / units[2]
    assert agreement.statistics() == pytest.approx({"l2": pooled, "worst_row": worst, "largest": largest})
    assert agreement.figures()["rows"] == 3 and agreement.equal == 1 and agreement.tokens == {"same": 3}
    place = agreement.worst()[1]
    assert (place.prompt, place.round, place.position) == (1, 2, 5) and agreement.verdict() == "fail"


def test_an_expert_of_a_verify_pass_that_the_row_alone_does_not_choose_is_a_bug():
    """Two of three rows choose as they do alone; the last one the third of three scores."""
    router, experts = "target.layers.0.router_logits", "target.layers.0.experts"
    plain = Decoded(
        (3, 3, 3, 3),
        {
            "verify.logits": np.ones((3, 4), np.float32),
            router: np.tile(np.float32([3, 2, 1]), (3, 1)),
            experts: np.zeros((3, 1), np.int64),
        },
    )
    seen = {"verify.logits": np.ones((3, 4), np.float32), "verify.tokens": np.array([3, 3, 3])}
    agreement = Agreement("float32", NoiseFloors)
    case = DecodeCase("toy", 1, (7, 7), 5)
    chosen = np.array([[0], [0], [2]])
    agreement.add(VerifyPass(case, 0, 3, 2, seen | {experts: chosen}, np.array([3, 3, 3])), plain)
    assert agreement.experts == {"same": 2, "bug": 1} and agreement.bug.row == 2 and agreement.verdict() == "fail"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_clean_device_agrees_at_every_k_and_padding(precision, rows_agree):
    found = rows_agree(precision)
    assert found.verdict == "pass", found.evidence
    assert "K 1, 2, 4, 5, 4 prompts, lengths 31 to 53" in found.evidence
    assert found.figures["tokens"] == {"same": found.figures["rows"]}
    assert found.figures["rows"] > 150


@pytest.mark.parametrize("precision", ["float32", "bfloat16"] if WHOLE else ["bfloat16"])
def test_a_verify_path_of_its_own_fails_and_is_placed(precision, rows_agree):
    found = rows_agree(precision, planted.window_lost_in_wide_passes)
    assert found.verdict == "fail", found.evidence
    assert found.place.stage == "verify.logits"
    assert "drafts, row " in found.evidence


@by_night
def test_nan_rows_fail(rows_agree):
    def plant(device):
        def change():
            right = device.target.outer["head"]
            wrong = right.held.copy()
            wrong[0, 9] = float("nan")
            device.target.outer["head"] = type(right)(wrong, right.dtype)
            return lambda: device.target.outer.__setitem__("head", right)

        planted._in_wide_passes(device, change)

    assert rows_agree("bfloat16", plant).verdict == "fail"


def test_a_batch_of_two_agrees_and_its_figures_are_reported(shallow_golden, tmp_path):
    found = verify.batch_agrees(planted.context_of(shallow_golden, tmp_path), NoiseFloors(shallow_golden))
    assert found.verdict == "pass", found.evidence
    assert {"bit_equal", "worst_row"} <= found.figures["against_batch_1"].keys()


def test_a_factory_without_a_batch_is_never_a_pass(shallow_golden, tmp_path):
    context = planted.context_of(shallow_golden, tmp_path)
    build = context.build

    def alone(precision, **options):
        if "batch" in options:
            raise NotOffered("--device mine: its factory takes no batch")
        return build(precision=precision, **options)

    context.build = alone
    found = verify.batch_agrees(context, NoiseFloors(shallow_golden))
    assert found.verdict == "inconclusive"
    assert "takes no batch" in found.evidence


def test_a_batch_that_is_not_the_single_sequence_fails(shallow_golden, tmp_path):
    context = planted.context_of(shallow_golden, tmp_path)
    build = context.build

    def crossed(precision, **options):
        device = build(precision=precision, **options)
        if options.get("batch"):
            device.target.windows = (None,) * len(device.target.windows)
        return device

    context.build = crossed
    found = verify.batch_agrees(context, NoiseFloors(shallow_golden))
    assert found.verdict == "fail", found.evidence
    assert found.figures["verify"]["worst_row"] < found.figures["against_batch_1"]["worst_row"]


def test_a_k_that_the_device_refuses_is_said(shallow_golden, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "EDGES", ())
    context = planted.context_of(shallow_golden, tmp_path)
    build = context.build

    def small(precision, **options):
        if options["k"] > 4:
            raise UsageError("k: 5 drafts are more than this device takes.")
        return build(precision=precision, **options)

    context.build = small
    assert "K 5 not checked: k: 5 drafts" in verify.rows_agree(context, NoiseFloors(shallow_golden), "float32").evidence


def test_ties_go_to_the_lowest_id(shallow_golden, tmp_path):
    found = verify.lowest_wins(planted.context_of(shallow_golden, tmp_path))
    assert found.verdict == "pass", found.evidence
    assert found.figures["rows"] == 4 * (8 + 1 + 5)


def test_the_last_equal_value_winning_fails_and_is_told_from_a_wrong_path(shallow_golden, tmp_path, rows_agree):
    context = planted.context_of(shallow_golden, tmp_path, planted.last_equal_wins_in_wide_passes)
    found = verify.lowest_wins(context)
    assert found.verdict == "fail"
    assert "5 rows, row 0" in found.evidence
    if WHOLE:
        assert rows_agree("float32", planted.last_equal_wins_in_wide_passes).verdict == "pass"


def test_a_device_deaf_to_the_tap_leaves_ties_unchecked(shallow_golden, tmp_path):
    found = verify.lowest_wins(planted.context_of(shallow_golden, tmp_path, planted.deaf))
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize("batch", [0, True, "2"])
def test_a_batch_that_is_no_number_of_sequences_is_refused(batch, tiny):
    with pytest.raises(UsageError, match="is no number of sequences"):
        device.load(tiny / "target", tiny / "drafter", 4, batch=batch)
