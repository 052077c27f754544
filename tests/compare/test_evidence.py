"""What a pass must not rest on: copied answers, and bounds or floors that allow anything."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.compare import compare
from parity.compare.report import FAIL
from parity.golden.store import Dump
from parity.policy import Policy, read_policy
from tests.meta.dumps import Pair, clean, write
from tests.meta.plants import FFN, LOGITS, each
from tests.meta.worlds import NAMES, SHORT, Arithmetic, prompt, weights

EXACT = Arithmetic(halves=True)
ROUNDED = ml_dtypes.bfloat16


def judged(pair: Pair, folder, policy: Policy | None = None):
    return compare(*write(pair, folder), policy or read_policy(None, pair.precision))


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> tuple[Dump, Dump]:
    """A clean golden and run on disk."""
    return write(clean(SHORT), tmp_path_factory.mktemp("honest"))


def in_float32() -> Pair:
    """A clean float32 device: it adds its sums in two halves."""
    pair, w, rng = clean(SHORT), weights(SHORT), np.random.default_rng(11)
    pair.precision = "float32"
    for number, count in enumerate(SHORT.prompts):
        seen = prompt(rng.integers(0, 5000, count), w, EXACT, SHORT)
        true = pair.golden["float32"][number]
        pair.run[number] = {
            place: true[place] if NAMES[place[1]].stage.exact else value for place, value in seen.items()
        }
    return pair


def handed_in(pair: Pair, variant: str, prompts: tuple[int, ...]) -> Pair:
    """These prompts' numbers are a variant of the golden, in the run's dtype; scores go with the run's choices."""
    for number in prompts:
        for place, value in pair.run[number].items():
            if not NAMES[place[1]].stage.exact and not place[1].endswith("logits"):
                pair.run[number][place] = pair.golden[variant][number][place].astype(value.dtype)
    return pair


def test_a_clean_float32_device_is_no_copy(tmp_path):
    report = judged(in_float32(), tmp_path)
    assert report.verdict != "inconclusive" and not any(stage.note for stage in report.stages)


@pytest.mark.parametrize("prompts", [(0, 1), (1,)])
@pytest.mark.parametrize(
    ("make", "variant", "words"),
    [
        (in_float32, "float32", "is the golden bit for bit"),
        (lambda: clean(SHORT), "float32", "the golden bit for bit"),
        (lambda: clean(SHORT), "bfloat16", "is the golden's noise floor bit for bit"),
    ],
)
def test_a_prompt_that_is_copied_is_no_evidence(make, variant, words, prompts, tmp_path):
    report = judged(handed_in(make(), variant, prompts), tmp_path)
    assert report.exit_code == 3
    assert any(words in stage.note for stage in report.stages if stage.stage == FFN)


@pytest.mark.parametrize("copied", ["prefill", "verify rounds"])
def test_a_copy_of_some_passes_is_told_whatever_became_of_the_others(copied, tmp_path):
    """Most of the rows are the prefill's, most of the tensors are not."""
    pair, honest = handed_in(clean(SHORT), "bfloat16", (0,)), clean(SHORT).run[0]
    pair.run[0] |= {place: value for place, value in honest.items() if (place[0] == 0) != (copied == "prefill")}
    report = judged(pair, tmp_path)
    assert report.exit_code == 3
    assert any(f"rows of its {copied}" in stage.note for stage in report.stages if stage.stage == FFN)


def test_the_local_floor_is_no_chained_run(tmp_path):
    pair = clean(SHORT)
    approximate = [{place: x for place, x in one.items() if not NAMES[place[1]].stage.exact} for one in pair.run]
    pair.golden["bfloat16.local"] = approximate
    report = judged(pair, tmp_path)
    assert report.exit_code == 3
    assert any("bfloat16.local noise floor bit for bit" in stage.note for stage in report.stages)


def test_a_policy_may_say_that_equal_bits_are_due(tmp_path):
    policy = read_policy(None, "bfloat16")
    rows = tuple(row.model_copy(update={"copies": row.judge == "noise"}) for row in policy.rows)
    pair = handed_in(clean(SHORT), "bfloat16", (0, 1))
    assert judged(pair, tmp_path, policy.model_copy(update={"rows": rows})).verdict == "pass"


def off(side: list, golden: list, share: float, dtype, row: int | None = None, stage: str = FFN) -> None:
    """Relative noise of this size on a stage, in every row or one of the first tensor."""
    rng = np.random.default_rng(int(1000 * share))
    for number, (tensors, place) in enumerate(each(side, stage)):
        true = golden[next(i for i, one in enumerate(side) if one is tensors)][place]
        noise = rng.normal(size=true.shape) * np.sqrt((true**2).mean(axis=1, keepdims=True)) * share
        if row is not None:
            noise[np.arange(len(noise)) != (row if number == 0 else -1)] = 0
        base = true if row is None else tensors[place].astype(np.float32)
        tensors[place] = (base + noise).astype(dtype)


@pytest.mark.parametrize(("floor", "wrong"), [(0.24, 0.5), (0.15, 0.3), (0.1, 0.2)])
def test_a_floor_under_which_much_is_wrong_bounds_nothing(floor, wrong, tmp_path):
    pair = clean(SHORT)
    off(pair.golden["bfloat16"], pair.golden["float32"], floor, ROUNDED)
    off(pair.run, pair.golden["float32"], wrong, np.float32)
    report = judged(pair, tmp_path)
    found = next(stage for stage in report.stages if stage.stage == FFN)
    assert report.exit_code == 3 and "bounds nothing" in found.note, found


def test_a_single_row_under_whose_floor_anything_passes_is_no_evidence(tmp_path):
    pair = clean(SHORT)
    off(pair.golden["bfloat16"], pair.golden["float32"], 0.5, ROUNDED, row=3)
    report = judged(pair, tmp_path)
    found = next(stage for stage in report.stages if stage.stage == FFN)
    assert report.exit_code == 3 and found.note.startswith("worst row lets rows"), found


def test_a_choice_is_not_explained_by_noise_that_explains_anything(tmp_path):
    pair = clean(SHORT)
    off(pair.golden["bfloat16"], pair.golden["float32"], 0.3, ROUNDED, stage=LOGITS)
    tensors, place = next(each(pair.run, "target.tokens"))
    second = int(np.argsort(pair.golden["float32"][0][0, LOGITS][0])[-2])
    tensors[place][0] = second
    scores = tensors[0, LOGITS].astype(np.float32)
    scores[0, second] = scores[0].max() * np.float32(1.02)
    tensors[0, LOGITS] = scores.astype(ROUNDED)
    found = next(stage for stage in judged(pair, tmp_path).stages if stage.stage == "target.tokens")
    assert found.choices["noise"] and found.verdict == "inconclusive", found


@pytest.mark.parametrize(
    "bounds",
    [
        dict(judge="noise", l2=dict(ok=199, warn=199)),
        dict(judge="relative", r_ratio=dict(ok=199, warn=199)),
        dict(judge="relative", ulp_max=dict(ok=65000, warn=65000)),
        *(
            dict(judge="relative", **{name: dict(ok=0.99, warn=0.99) for name in ("l2", *beside)})
            for beside in ((), ("median",), ("scale",), ("bias",))
        ),
        dict(judge="relative", largest=dict(ok=2, warn=2)),
        *(
            dict(judge="noise", **{name: dict(ok=0.3, warn=0.3)})
            for name in ("cosine_distance", "pearson_distance", "all_error")
        ),
        dict(judge="noise", l2=dict(ok=199, warn=199), unlike=dict(ok=0.9, warn=0.9)),
        *(dict(judge="noise", **{name: dict(ok=0.9, warn=0.9)}) for name in ("ulp_beyond", "top5_missed")),
        dict(judge="relative", beyond_tolerance=dict(ok=1, warn=1), tolerances={"bfloat16": dict(rtol=0, atol=100)}),
    ],
)
def test_a_bound_that_allows_anything_at_this_golden_is_no_evidence(bounds, honest):
    default = read_policy(None, "bfloat16")
    loose = Policy.model_validate({"name": "loose", "row": [dict(stages=FFN, reason="far too wide", **bounds)]}).rows
    report = compare(*honest, default.model_copy(update={"rows": loose + default.rows}), [FFN])
    found = next(stage for stage in report.stages if stage.stage == FFN)
    assert report.verdict != FAIL and report.exit_code == 3 and "bounds nothing" in found.note, found
