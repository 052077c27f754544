"""What a corroboration must not rest on, and whom a disagreement must not be blamed on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity.golden.reading import read_manifest
from tests.corroborate.conftest import STAGES, wrong

TAPS, LOGITS = "drafter.taps", "drafter.logits"


@pytest.fixture
def held(parity, tmp_path):
    """Hold goldens against each other: how the command ended, each stage's verdict, and the first golden's marks."""

    def run(*goldens, policy=None):
        options = ["--policy", policy] if policy else []
        found = parity("corroborate", *goldens, "--json", tmp_path / "found.json", *options)
        said = json.loads((tmp_path / "found.json").read_text()) if found.code != 2 else {"stages": {}}
        return (
            found,
            {name: one["verdict"] for name, one in said["stages"].items()},
            read_manifest(goldens[0]).corroborations,
        )

    return run


def test_independent_ones_confirm_each_other(held, witness):
    found, verdicts, (mark,) = held(witness("one"), witness("other"))
    assert found.code == 0 and verdicts == dict.fromkeys(STAGES, "corroborated"), found.out
    assert set(mark.stages) == set(STAGES)


def test_a_witness_that_names_no_source_confirms_nothing(held, witness):
    """It could be a copy of the golden, or a device's output that was imported with --reference."""
    found, verdicts, (mark,) = held(witness("one"), witness("imported", modules=()))
    assert found.code == 3 and set(verdicts.values()) == {"uncorroborated"}
    assert "nothing shows that they are independent" in found.out and "imported" in found.out
    assert (mark.stages, mark.disputed) == ((), ())


def test_a_witness_that_names_no_source_acquits_no_device(held, witness):
    """Its disagreement is shown. A mark would turn the device's failures into a dispute of the references."""
    found, verdicts, (mark,) = held(witness("one"), witness("imported", wrong(TAPS), modules=()))
    assert found.code == 1 and verdicts[TAPS] == "disputed"
    assert (mark.stages, mark.disputed) == ((), ())


def test_two_that_name_no_source_outvote_nobody(held, witness):
    copies = [witness(name, wrong(TAPS), modules=()) for name in ("copy", "again")]
    _, verdicts, _ = held(witness("one"), *copies)
    assert verdicts[TAPS] == "disputed"


@pytest.mark.parametrize("module", ["parity.references.hf_target", "transformers.models.gpt_oss.modeling_gpt_oss"])
def test_a_target_from_the_same_place_is_one_opinion(module, held, witness):
    made = ("parity.references", module)
    found, _, (mark,) = held(witness("one", modules=("one", *made)), witness("other", modules=("other", *made)))
    assert found.code == 3 and "one opinion" in found.out and mark.stages == ()


def test_two_of_one_source_outvote_nobody(held, witness):
    found, verdicts, _ = held(
        witness("one"),
        witness("other", wrong(TAPS), modules=("same",)),
        witness("third", wrong(TAPS), modules=("same", "more")),
    )
    assert found.code == 1 and verdicts[TAPS] == "disputed"


def test_three_that_all_differ_blame_nobody(held, witness):
    def far(prompt, round_, stage, array):
        return array * np.float32(1.3) if stage == TAPS else array

    found, verdicts, _ = held(witness("one"), witness("other", wrong(TAPS)), witness("third", far))
    assert verdicts[TAPS] == "disputed" and "none of them is trusted" in found.last


JUDGES_NOTHING = """
name = "blind"
[[row]]
stages = "{stages}"
judge = "none"
reason = "Nobody looks at these stages."
[[row]]
stages = "*tokens"
judge = "exact"
reason = "Tokens are looked at."
[[row]]
stages = "*"
judge = "relative"
l2 = {{ ok = 1e-5, warn = {warn} }}
reason = "The bounds of the test."
"""


def test_what_a_policy_does_not_judge_is_not_confirmed(held, witness, tmp_path):
    (tmp_path / "blind.toml").write_text(JUDGES_NOTHING.format(stages="drafter.[ft]*", warn=1e-5))
    found, verdicts, (mark,) = held(witness("one"), witness("other", wrong(TAPS)), policy=tmp_path / "blind.toml")
    assert verdicts[TAPS] == "uncorroborated" and TAPS not in mark.stages and found.code == 3


def test_a_warning_is_no_confirmation(held, witness, tmp_path):
    (tmp_path / "wide.toml").write_text(JUDGES_NOTHING.format(stages="drafter.fc_out", warn=0.2))
    _, verdicts, (mark,) = held(witness("one"), witness("other", wrong(TAPS)), policy=tmp_path / "wide.toml")
    assert verdicts[TAPS] == "disputed" and TAPS not in mark.stages


def test_a_policy_in_multiples_of_noise_is_refused(held, witness):
    """Between two references there is no floor: half a bfloat16 ULP would stand in for it."""
    found, _, _ = held(witness("one"), witness("other"), policy="bfloat16")
    assert found.code == 2 and "relative" in found.err, found


def test_a_dispute_between_others_is_no_confirmation(held, witness):
    """One and other agree, third parts from other; the marks say what the verdict says."""

    def near(factor):
        return lambda prompt, round_, stage, array: array * np.float32(factor) if stage == TAPS else array

    first, other, third = witness("one"), witness("other", near(1 + 8e-6)), witness("third", near(1 - 8e-6))
    found, verdicts, marks = held(first, other, third)
    assert found.code == 1 and verdicts[TAPS] == "disputed"
    assert not any(TAPS in mark.stages for mark in marks)


def test_nobody_is_outvoted_on_prompts_that_the_others_did_not_run(held, witness):
    """One and other confirm each other on prompt 0 only: on prompt 1 it is one against third."""
    both = witness("one", wrong(TAPS, prompt=1)), witness("other", prompts=[0])
    third = witness("third", wrong(TAPS, prompt=0), prompts=[0, 1])
    found, verdicts, marks = held(*both, third)
    assert verdicts[TAPS] == "disputed", found.out
    assert any(TAPS in mark.disputed for mark in marks)


def test_the_third_is_outvoted_where_the_others_ran_all_its_prompts(held, witness):
    found, verdicts, _ = held(witness("one"), witness("other"), witness("third", wrong(TAPS), prompts=[1]))
    assert verdicts[TAPS] == "outvoted" and "third is wrong" in found.last


def test_an_earlier_witness_s_dispute_stays(held, witness):
    first = witness("one")
    held(first, witness("other", wrong(TAPS)))
    _, _, marks = held(first, witness("third"))
    assert {mark.witness for mark in marks} == {"other", "third"}
    assert [mark.disputed for mark in marks if mark.witness == "other"] == [(TAPS,)]


def test_the_same_witness_is_marked_once(held, witness):
    first = witness("one")
    other = witness("other")
    held(first, other)
    _, _, marks = held(first, other)
    assert len(marks) == 1


def test_another_dtype_is_no_agreement(held, witness):
    def change(prompt, round_, name, array):
        return array.astype(np.float16) if name == LOGITS else array

    found, verdicts, _ = held(witness("one"), witness("other", change))
    assert verdicts[LOGITS] == "disputed" and "float16" in found.out, found.out


def test_a_tensor_that_both_lack_is_no_agreement(held, witness):
    def change(prompt, round_, name, array):
        return None if (round_, name) == (1, LOGITS) else array

    found, verdicts, (mark,) = held(witness("one", change), witness("other", change))
    assert verdicts[LOGITS] == "uncorroborated" and LOGITS not in mark.stages and found.code == 3, found.out


def test_a_tensor_that_one_lacks_is_a_dispute(held, witness):
    def change(prompt, round_, name, array):
        return None if (prompt, round_, name) == (1, 1, LOGITS) else array

    _, verdicts, _ = held(witness("one"), witness("other", change))
    assert verdicts[LOGITS] == "disputed"


@pytest.mark.parametrize(("value", "both"), [(np.nan, True), (np.nan, False), (np.inf, False)])
def test_what_is_not_finite_is_not_confirmed(both, value, held, witness):
    def change(prompt, round_, name, array):
        return np.where(np.arange(array.shape[-1]) == 3, np.float32(value), array) if name == TAPS else array

    first = witness("one", change) if both else witness("one")
    found, verdicts, (mark,) = held(first, witness("other", change))
    assert verdicts[TAPS] != "corroborated" and TAPS not in mark.stages and found.code


def test_zeros_in_both_say_nothing(held, witness):
    def change(prompt, round_, name, array):
        return np.zeros_like(array) if name == TAPS else array

    found, verdicts, _ = held(witness("one", change), witness("other", change))
    assert verdicts[TAPS] == "uncorroborated" and found.code == 3


def test_replicas_that_differ_are_no_agreement(held, witness):
    def torn(prompt, round_, name, array):
        return array + (array.dtype.type(1) if name == TAPS else array.dtype.type(0))

    found, verdicts, _ = held(witness("one"), witness("other", second_rank=torn))
    assert verdicts[TAPS] == "disputed" and "ranks" in found.out
    assert verdicts[LOGITS] == "corroborated"


def test_stages_that_could_not_be_compared_are_no_pass(held, witness):
    """Without the drafts nobody knows which rounds mean the same."""
    few = [stage for stage in STAGES if stage != "drafter.draft_tokens"]
    found, verdicts, _ = held(witness("one", stages=few), witness("other", stages=few))
    assert verdicts["verify.tokens"] == "uncorroborated" and found.code == 3, found.out


def test_a_reference_that_ends_before_the_other_disagrees(held, witness):
    found, verdicts, _ = held(witness("one"), witness("other", rounds=2))
    assert found.code == 1 and verdicts["drafter.input_ids"] == "disputed" and "and none" in found.out, found.out


def test_behind_another_first_token_nothing_means_the_same(held, witness):
    """The prefill's own token is emitted before the first round drafts."""

    def another(prompt, round_, name, array):
        first = {("target.tokens", 0): -1, ("drafter.input_ids", 1): 0}.get((name, round_))
        return array if first is None else array + np.eye(len(array), dtype=array.dtype)[first]

    other = witness("other", another, first=1)
    _, verdicts, _ = held(witness("one"), other)
    assert verdicts["drafter.input_ids"] == "corroborated" and verdicts[LOGITS] == "uncorroborated"


def test_the_prompts_that_were_compared_are_said(held, witness):
    found, _, (mark,) = held(witness("one"), witness("other", prompts=[1]))
    assert mark.prompts == 1 and "on 1 of 2 prompts" in found.out, found.out


def test_a_device_that_fails_where_the_references_agree_is_not_acquitted(shallow_golden):
    from dataclasses import replace

    from parity.compare.places import attest
    from parity.compare.report import FAIL, StageResult
    from parity.golden.producer import Corroboration

    class Marked:
        declared = shallow_golden.declared
        manifest = shallow_golden.manifest.model_copy(
            update={
                "corroborations": (
                    Corroboration(
                        witness="other",
                        versions={},
                        source_digest="",
                        prompts=2,
                        policy="float32",
                        stages=(LOGITS,),
                        disputed=(TAPS,),
                    ),
                )
            }
        )

    failed = StageResult(LOGITS, LOGITS, None, "noise", FAIL, "a reason", rows=1)
    unseen = replace(failed, stage="drafter.fc_out", family="drafter.fc_out")
    verdicts = {one.stage: one.verdict for one in attest([failed, unseen], Marked)}
    assert verdicts == {LOGITS: FAIL, "drafter.fc_out": "disputed"}


CACHE = "kv.drafter.0.k"


@pytest.mark.parametrize(("since", "verdict"), [(0, "outvoted"), (2, "disputed")])
def test_what_came_before_a_bug_is_not_blamed_on_it(since, verdict, held, witness):
    """Only one and third show the cache, and part there from prefill on; third's taps are wrong since some round."""
    both = (*STAGES, CACHE)

    def late(prompt, round_, name, array):
        return array * np.float32(1.1) if name == TAPS and round_ >= since else array

    found, verdicts, _ = held(
        witness("one", wrong(CACHE), stages=both), witness("other"), witness("third", late, stages=both)
    )
    assert verdicts[TAPS] == "outvoted" and verdicts[CACHE] == verdict, found.out
