"""Admission: what does not fit is refused before anything is computed; what is admitted runs to its end."""

from __future__ import annotations

import json
import shutil
from itertools import cycle, product

import pytest

from parity import device
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.producers import dump_golden
from parity.references import seam
from parity.rounds import generate, untapped
from tests.sample import WHOLE, cover, first

PROMPT, BUDGET = [5, 12, 19, 26], 6
MOST = {"p-eagle": 8, "dflash": 7}
"""Drafts that a tiny drafter was made for; the others take any number."""
SIDES = {"device": device.load, "references": seam.load}
OPTIONS = (dict(batch=3), dict(batch=2, tp=2, moe="gathered"))
IDS, FEW = [7, 8, 9], 3
"""A prompt and tokens of an answer: with three copies, its caches have as many rows as there are copies."""


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture
def load(tiny):
    """Loads one side with a family's tiny drafter in float32."""

    def loaded(side, family, k=4, drafter=None, **options):
        own = drafter or tiny / FAMILIES[family].checkpoint
        return SIDES[side](tiny / "target", own, k, "float32", **options)

    return loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_every_k_gives_the_references_rounds(family, load):
    ids = list(range(40, 64))
    most = MOST.get(family, 10)
    for k in (1, most) if WHOLE else (most,):
        assert generate(load("device", family, k), ids, 8) == generate(load("references", family, k), ids, 8), k


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("family", FAMILIES)
def test_k_that_the_drafter_was_not_made_for_is_refused_at_load(family, side, load):
    limits = {"p-eagle": "num_parallel_positions", "dflash": "block_size"}
    for k in (0, -1, MOST.get(family, 10) + 1):
        if k < 1 or family in MOST:
            with pytest.raises(UsageError, match=limits[family] if k > 0 else r"drafts|drafter"):
                load(side, family, k)


@pytest.mark.parametrize(("family", "side"), cover(product(FAMILIES, SIDES)))
def test_what_fits_runs_to_its_end_and_a_row_less_is_refused_before_any_stage(family, side, load):
    need = len(PROMPT) + BUDGET + 4
    made, stages = load(side, family, max_positions=need), []
    plain = generate(made, PROMPT, BUDGET, lambda round_: 0).emitted
    for ks in first([(0, 0, 4), (4, 0), (4,), (1, 4)], 2):
        asked = cycle(ks)
        told = generate(made, PROMPT, BUDGET, lambda round_, asked=asked: next(asked))
        assert told.emitted == plain and len(plain) == BUDGET

    def tap(stage, value):
        stages.append(stage)
        return value

    with pytest.raises(UsageError, match=f"{need - 1}.*max_positions"):
        load(side, family, max_positions=need - 1).prefill(PROMPT, BUDGET, tap)
    assert not stages


@pytest.mark.parametrize(("family", "side"), cover(product([name for name in FAMILIES if name != "n-gram"], SIDES)))
def test_a_drafter_of_fewer_positions_than_its_target_limits_the_sequence_and_is_named(
    family, side, load, tiny, tmp_path
):
    shutil.copytree(tiny / FAMILIES[family].checkpoint, tmp_path / "drafter")
    config = tmp_path / "drafter" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps(raw | {"max_position_embeddings": 12}))
    made = load(side, family, drafter=tmp_path / "drafter")
    assert made.describe().max_positions == 12
    made.prefill(PROMPT, 4, untapped)
    with pytest.raises(UsageError, match=r"drafter.*max_position_embeddings"):
        made.prefill(PROMPT, 5, untapped)


@pytest.mark.parametrize(("family", "options"), cover(product(FAMILIES, OPTIONS), lambda row: (row[0], str(row[1]))))
def test_options_change_nothing_of_a_family(family, options, load):
    assert _watched(load("device", family, **options)) == _watched(load("device", family))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_split_that_leaves_a_remainder_is_refused_at_load(family, load):
    for ranks, model in ((3, "target"), (8, "drafter")):
        if model == "target" or family != "n-gram":
            with pytest.raises(UsageError, match=f"tp: {ranks} ranks cannot share out the {model}'s"):
                load("device", family, tp=ranks)


def _watched(made):
    """What comes out while every stage is looked at."""
    tokens = [made.prefill(IDS, FEW, lambda stage, value: value)]
    while len(tokens) < FEW and tokens[-1] not in made.describe().eos:
        drafts = made.draft(lambda stage, value: value)
        verified = made.verify(drafts, lambda stage, value: value)
        tokens += made.commit(drafts, verified, lambda stage, value: value).tolist()
    return tokens


@pytest.mark.parametrize("side", SIDES)
def test_an_id_outside_the_vocabulary_is_refused_before_any_stage(side, load):
    for wrong in (-1, 10**6):
        with pytest.raises(UsageError, match="outside the vocabulary"):
            load(side, "n-gram").prefill([5, wrong], 4, lambda stage, value: pytest.fail(stage))


def test_a_golden_longer_than_the_device_is_refused_before_its_first_prompt(shallow_golden, parity):
    ended = parity("diff", "--golden", shallow_golden.folder, "--device", "numpy,max_positions=56")
    assert ended.code == 2 and "has 56 positions; prompt" in ended.err and "drafts" in ended.err


@pytest.mark.parametrize(
    ("reference", "drafter", "said"),
    [
        ("vllm", "draft-model", "is a draft-model drafter: --reference vllm is for p-eagle and eagle-3"),
        ("vllm", "n-gram", "is a n-gram drafter: --reference vllm is for p-eagle and eagle-3"),
        ("eagle", "dflash", "is a dflash drafter: --reference eagle is for eagle-3"),
        ("eagle", "draft-model", "is a draft-model drafter: --reference eagle is for eagle-3"),
    ],
)
def test_a_reference_of_other_families_is_refused_by_name(reference, drafter, said, tiny):
    with pytest.raises(UsageError, match=said):
        dump_golden(drafter=tiny / drafter, reference=reference)


@pytest.mark.parametrize("reference", ["vllm", "eagle"])
def test_a_reference_that_drafts_k_in_every_round_is_refused_a_schedule(reference):
    with pytest.raises(UsageError, match=f"--reference {reference} drafts K tokens in every round"):
        dump_golden(reference=reference, k=(4, 0))
