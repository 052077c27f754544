"""The reference once more with a run's experts: the golden where they are the golden's, the truth of the run if not."""

from __future__ import annotations

import numpy as np
import pytest

from parity import run_request
from parity.api import compare_dumps, run_device
from parity.compare import compare
from parity.compare.flips import Flips
from parity.errors import Inconclusive
from parity.golden.store import Dump
from parity.golden.views import JoinedSlices, PromptSlice
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from parity.trace import forced_names

DEVICE = "parity.device.variants:float64_sums"
"""Its rows behind a flip pass nothing by a golden without its experts, and no other row shows the flip."""


@pytest.fixture(scope="module")
def golden(small_golden) -> Dump:
    """One prompt and two rounds."""
    return PromptSlice(small_golden, 1, 2)


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory) -> Dump:
    """A run that went on with its own experts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            run_request, "forced_names", lambda *case: {name for name in forced_names(*case) if "experts" not in name}
        )
        return run_device(golden, DEVICE, "chained", out=tmp_path_factory.mktemp("unforced") / "run", free=False)


@pytest.fixture(scope="module")
def rerun() -> ReferenceRerun:
    """Made once for every run."""
    return ReferenceRerun()


class Garbage(Dump):
    """A run with meaningless numbers behind its flips, in every stage of the target, and the tokens they choose."""

    def __init__(self, golden: Dump, run: Dump):
        vars(self).update(vars(run))
        flips, self.changed, self.whole = Flips(golden, run), {}, run
        rng = np.random.default_rng(3)
        first = min(position for _, position in flips.places)
        for (variant, prompt, round_, stage), _ in run.rows.items():
            value = run.stored(variant, prompt, round_, stage)
            if stage in ("target.pre_head_hidden", "target.logits") and round_ == 0:
                value = value.copy()
                value[first] = rng.normal(size=value[first].shape) * 5
                self.changed[variant, prompt, round_, stage] = value
        logits = self.changed["bfloat16", 0, 0, "target.logits"].astype(np.float32)
        self.changed["bfloat16", 0, 0, "target.tokens"] = logits.argmax(axis=1)

    def stored(self, *place):
        return self.changed.get(place, self.whole.stored(*place))


def test_an_honest_run_passes_and_garbage_behind_its_flips_fails(golden, run, rerun):
    honest = compare_dumps(golden, run)
    assert honest.verdict == "pass", honest.first
    assert honest.own_experts.positions and not any(stage.rows_apart for stage in honest.stages)
    assert compare(golden, run, read_policy(None, "bfloat16")).exit_code != 0
    spoilt = compare_dumps(golden, Garbage(golden, run), rerun=rerun)
    assert spoilt.exit_code == 1 and spoilt.first.stage == "target.pre_head_hidden"


def test_it_says_nothing_of_what_is_emitted_for_its_choices_may_be_others(golden, run, rerun):
    told = rerun(golden, run, [0]).manifest.case.prompts
    assert [prompt.generation for prompt in told] == [None]


def test_with_the_goldens_own_experts_it_is_the_golden_bit_for_bit(golden, run, tmp_path):
    """Of two prompts, one runs again."""
    from parity.references.rerun import rerun

    class Same(Dump):
        """A run whose experts are the golden's."""

        def __init__(self):
            vars(self).update(vars(run))

        def contents(self, variant, prompt, round_, stage):
            return golden.contents("float32", prompt, round_, stage)

    beside = PromptSlice(golden.whole, 0, 2, budget=golden.manifest.case.max_new_tokens)
    again = Dump(rerun(JoinedSlices([golden, beside]), Same(), [0], tmp_path / "again"))
    assert {place[1] for place in again.rows} == {0}
    places = [place for place in golden.rows if place[0] in ("float32", "bfloat16")]
    assert places and set(again.rows) == set(places)
    differ = {place for place in places if not np.array_equal(golden.contents(*place), again.contents(*place))}
    assert not differ


def test_a_floor_of_several_roundings_leaves_the_next_one_as_it_would_have_been(golden, run):
    """Loaded models serve every rerun of a process: what one does to them must not stay."""
    apart = [ReferenceRerun() for _ in range(3)]
    before, several, after = (one(golden, run, [0], True, count) for one, count in zip(apart, (1, 3, 1), strict=True))
    rough = [place for place in before.rows if place[0] == "bfloat16"]
    assert rough and any(not np.array_equal(before.contents(*place), several.contents(*place)) for place in rough)
    assert all(np.array_equal(before.contents(*place), after.contents(*place)) for place in rough)


def test_its_floor_follows_its_own_choices_where_the_run_shows_none(golden, run, tmp_path):
    """Layers whose experts the run does not show are the reference's, in the truth and in its floor alike."""
    from parity.references.rerun import OwnExperts

    name = "target.layers.3.experts"
    taken = OwnExperts(golden, Without(run, name), 0, experts=6)
    assert taken(0, name) is None
    taken.chosen = {(0, name): np.arange(3)}.get
    assert taken(0, name).tolist() == [0, 1, 2]
    np.testing.assert_array_equal(taken(0, "target.tokens"), golden.contents("float32", 0, 0, "target.tokens"))


class Without(Dump):
    """A run that does not show a stage."""

    def __init__(self, run: Dump, name: str):
        vars(self).update(vars(run))
        self.name = name

    def contents(self, variant, prompt, round_, stage):
        return None if stage == self.name else super().contents(variant, prompt, round_, stage)


def test_ids_that_are_no_experts_are_the_goldens(golden, run):
    from parity.references.rerun import OwnExperts

    class Wrong(Without):
        def contents(self, variant, prompt, round_, stage):
            value = golden.contents("float32", prompt, round_, stage).copy()
            value[0], value[1], value[2] = -1, 99, value[2, 0]
            return value

    name = "target.layers.3.experts"
    true = golden.contents("float32", 0, 0, name)
    np.testing.assert_array_equal(OwnExperts(golden, Wrong(run, ""), 0, experts=6)(0, name), true)


def test_experts_that_the_run_was_forced_at_are_the_goldens_whatever_it_recorded(golden, run):
    """A local run records its own choice and continues with the golden's; so where a device shows rounds in part."""
    from parity.references.rerun import OwnExperts

    name = "target.layers.3.experts"
    true = golden.contents("float32", 0, 0, name)

    class Other(Without):
        def __init__(self, forced):
            super().__init__(run, "")
            templates = (golden.declared[name].stage.template,) if forced else ()
            self.case = run.manifest.case.model_copy(update={"forced": templates})

        @property
        def manifest(self):
            return run.manifest.model_copy(update={"case": self.case})

        def contents(self, variant, prompt, round_, stage):
            return (true + 1) % 6

    np.testing.assert_array_equal(OwnExperts(golden, Other(True), 0, experts=6)(0, name), true)
    np.testing.assert_array_equal(OwnExperts(golden, Other(False), 0, experts=6)(0, name), (true + 1) % 6)


@pytest.mark.parametrize("what", ["producer", "checkpoint"])
def test_what_cannot_be_run_again_is_refused_with_the_reason(what, golden, run, rerun):
    other = PromptSlice(golden.whole, 1, 2)
    manifest = other.manifest
    if what == "producer":
        changed = {
            "producer": manifest.producer.model_copy(
                update={"name": "vllm", "modules": ("parity.references.vllm_capture.dump",)}
            )
        }
    else:
        target = manifest.model.target.model_copy(update={"path": "/nowhere"})
        changed = {"model": manifest.model.model_copy(update={"target": target})}
    other.manifest = manifest.model_copy(update=changed)
    other.folder = golden.folder / what
    with pytest.raises(Inconclusive, match="vllm" if what == "producer" else "/nowhere is not here"):
        rerun(other, run, [0])
    assert compare_dumps(other, run, rerun=rerun).exit_code == 3
