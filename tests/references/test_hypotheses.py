"""Hypotheses: each changes first the stage that it claims, undoes itself, and goes with others.

A sample of them; the whole catalogue is `make catalogue`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.references.constants import constants
from parity.references.counterfactual import Counterfactuals
from parity.references.hypotheses import DECISIONS, HYPOTHESES, NotApplicable, offered
from parity.references.hypotheses.__main__ import page
from parity.references.points import replaced
from parity.references.prompts import read_prompts
from parity.stages import dataflow, declared, matches
from parity.trace import ForcingTrace, Trace, forced_names
from tests.sample import sample

ROOT = Path(__file__).parents[2]
BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}
BUDGET = 14
FIRST_VALUES = {
    "tap-config-ignored": "thirds",
    "input-chunk-boundary": 7,
    "rope-beta-fast": 4.0,
    "rope-concentration-drafter": "applied",
    "drafter-window": 16,
    "load-experts-exchanged": (2, 1, 4),
    "load-experts-exchanged-gate-up": (2, 1, 4),
    "load-experts-exchanged-gate-up-and-bias": (2, 1, 4),
    "load-experts-exchanged-down": (2, 1, 4),
    "load-experts-exchanged-down-and-bias": (2, 1, 4),
    "input-other-ids": ((5, 7), (71, 9)),
}
IN_PASSES = ("in-verify", "in-prefill")
FIRST_VALUES |= {f"rope-beta-fast-{end}": 4.0 for end in IN_PASSES}
"""The first value that means anything to the tiny pair, where the usual one does not."""

ELSEWHERE = {
    "input-raw-prompt": "test_another_prompt_is_another_sequence",
    "rope-position-rounded": "test_rounded_positions_show_behind_256",
    "rope-position-rounded-drafter": "test_rounded_positions_show_behind_256",
    "d2t-row-before": "test_every_reading_of_d2t_differs",
    "verify-tie-rule": "test_ties_are_decided_another_way",
    "accept-eos-ignored": "test_eos_in_the_middle_of_a_round",
    "accept-eos-dropped": "test_eos_in_the_middle_of_a_round",
    "load-square-transpose": "test_a_square_weight_is_needed",
}
ELSEWHERE |= {
    f"{name}-{end}": ELSEWHERE[name] for name in ("rope-position-rounded", "load-square-transpose") for end in IN_PASSES
}
"""What this prompt cannot show, and the test that shows it."""


class Enough(Exception):
    """A difference was found: the rounds behind it need not run."""


class Case:
    """One prompt of the tiny pair: past the window and the original context, with rounds of 1, 1, 4 and 4 drafts."""

    def __init__(self, tiny: Path, target: str = "target", ids=None, budget: int = BUDGET, drafter: str = "drafter"):
        torch.set_num_threads(1)
        self.counterfactuals = Counterfactuals(tiny / target, tiny / drafter, 4)
        config = self.counterfactuals.loop.drafter.config
        self.names = declared(8, config.num_layers, config.family)
        self.ids = ids or read_prompts(tiny / "prompts/chat.jsonl", tiny / target, 1280)[3][1][3:75]
        self.budget = budget
        self.retell()

    def retell(self) -> None:
        """Take the references' own run as the truth."""
        record = Trace(self.names)
        self.result = self.counterfactuals.run((), self.ids, self.budget, record)
        self.truth = record.tensors

    def run(self, assumed, mode="local", stop=False) -> ForcingTrace:
        trace = ForcingTrace(
            self.names, lambda round_, stage: self.truth.get((round_, stage)), forced_names(mode, self.names)
        )
        if stop:
            begin = trace.begin

            def enough(round_):
                if self.first(trace, round_):
                    raise Enough
                begin(round_)

            trace.begin = enough
        with suppress(Enough):
            self.counterfactuals.run(assumed, self.ids, self.budget, trace)
        return trace

    def first(self, trace: Trace, before: int = 99) -> str | None:
        """The first stage, in the order data flows, in which a run differs from the truth."""
        for round_ in range(min(before, len(self.result.acceptance_length) + 1)):
            for named in dataflow(self.names.values(), round_):
                if differ(trace.tensors.get((round_, named.name)), self.truth.get((round_, named.name))):
                    return named.name
        return None


def differ(mine, true) -> bool:
    """Beyond float32 rounding; another shape or a missing tensor counts."""
    if mine is None or true is None:
        return (mine is None) != (true is None)
    if mine.shape != true.shape:
        return True
    if true.dtype.kind in "iub":
        return not np.array_equal(mine, true)
    return not np.linalg.norm(mine - true) <= 1e-5 * np.linalg.norm(true)


def state(loop) -> dict:
    """Everything that a mutation may replace, by identity; what a run itself writes is left out."""
    run = ("state", "cache", "tap", "streams")
    modules = [*loop.target.model.named_modules(), *loop.drafter.named_modules()]
    found = {("loop", key): id(value) for key, value in vars(loop).items() if key not in run}
    found |= {("target", key): id(value) for key, value in vars(loop.target).items() if key not in run}
    for name, module in modules:
        found |= {(name, key): id(value) for key, value in vars(module).items() if key != "parity_tap"}
        found[name, "hooks"] = len(module._forward_hooks)
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        found |= {(name, key): tensor.data_ptr() for key, tensor in tensors}
    return found


def value_of(hypothesis):
    """The value to test a hypothesis with."""
    if hypothesis.part:
        return hypothesis.sized(0, 0, 0.5)
    values = [FIRST_VALUES[hypothesis.id]] if hypothesis.id in FIRST_VALUES else hypothesis.values
    return values[0] if values else 0.5


@pytest.fixture(scope="module")
def case(tiny):
    return Case(tiny)


def test_without_an_assumption_the_references_are_themselves(case):
    again = case.run(()).tensors
    assert again.keys() == case.truth.keys()
    assert all(np.array_equal(again[place], case.truth[place]) for place in again)
    assert case.result.accepted_drafts == (1, 1, 4, 4)


@pytest.mark.parametrize(
    "name",
    sample((one.id for one in offered("p-eagle") if one.id not in ELSEWHERE), kind=lambda name: BY_ID[name].stages[0]),
)
def test_it_changes_first_what_it_claims_and_undoes_itself(name, case):
    hypothesis, before = BY_ID[name], state(case.counterfactuals.loop)
    first = case.first(case.run([(hypothesis, value_of(hypothesis))], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
    assert state(case.counterfactuals.loop) == before


def test_a_mutation_that_is_not_undone_is_seen(case):
    before, loop = state(case.counterfactuals.loop), case.counterfactuals.loop
    with BY_ID["attn-sinks-missing"].apply(loop, 3):
        assert state(loop) != before
    with BY_ID["tap-without-residual"].apply(loop, None):
        assert state(loop) != before


def test_one_layer_alone_shows_in_that_layer(case):
    assert case.first(case.run([(BY_ID["attn-sinks-missing"], 3)], stop=True)) == "target.layers.3.attn_out"
    with pytest.raises(NotApplicable, match="layer 8"):
        case.run([(BY_ID["attn-sinks-missing"], 8)])


def test_what_this_prompt_cannot_show_is_shown_by_another_test():
    assert all(test in globals() for test in ELSEWHERE.values())
    assert ELSEWHERE.keys() <= BY_ID.keys()


def test_another_prompt_is_another_sequence(tiny):
    ids = read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280)[9][1]
    case = Case(tiny, ids=ids, budget=3)
    for value in BY_ID["input-raw-prompt"].values:
        trace = case.run([(BY_ID["input-raw-prompt"], value)])
        assert case.first(trace) == "target.embed"
    raw = case.run([(BY_ID["input-raw-prompt"], "raw")]).tensors[0, "target.embed"]
    text = read_prompts(tiny / "prompts/raw.jsonl", tiny / "target", 1280)[9][1]
    weight = case.counterfactuals.loop.target.model.model.embed_tokens.weight
    assert np.array_equal(raw, weight[text].detach().numpy())


def test_rounded_positions_show_behind_256(case):
    loop = case.counterfactuals.loop
    places = torch.tensor([[200, 257, 511]])
    x = torch.zeros(1, 3, 96)
    for name, tables in (
        ("rope-position-rounded-drafter", lambda: loop.drafter.tables(places)[0]),
        ("rope-position-rounded", lambda: loop.target.model.model.rotary_emb(x, places)[0]),
    ):
        clean = tables()
        with BY_ID[name].apply(loop, BY_ID[name].values[0]):
            apart = (tables() != clean).flatten(2).any(-1)[0]
        assert apart.tolist() == [False, True, True]


def test_every_reading_of_d2t_differs(case):
    loop = case.counterfactuals.loop
    ids = torch.arange(loop.drafter.config.draft_vocab_size)
    found = [loop.drafter.to_target(ids)]
    for hypothesis in (one for one in offered("p-eagle") if one.id.startswith("d2t-")):
        with hypothesis.apply(loop, None):
            found.append(loop.drafter.to_target(ids))
    assert len({tuple(ids.tolist()) for ids in found}) == len(found) == 8


def test_ties_are_decided_another_way(case):
    loop, logits = case.counterfactuals.loop, torch.tensor([[1.0, 3.0, 2.9999, 3.0, 2.0]])
    found = {}
    for value in BY_ID["verify-tie-rule"].values:
        with BY_ID["verify-tie-rule"].apply(loop, value):
            found[value] = int(loop.greedy(logits)), int(loop.greedy(torch.tensor([[1.0, 2.9999, 3.0]])))
    assert found["the last of equal ones"] == (3, 2)
    assert found["the last of equal bfloat16 ones"] == (3, 2)
    assert found["of bfloat16 logits"] == (1, 1)
    assert found["smallest"] == (0, 0)


def test_eos_in_the_middle_of_a_round(tiny):
    case = Case(tiny)
    middle = case.result.emitted[7]
    with replaced(case.counterfactuals.loop, "eos", (middle,)):
        case.retell()
        assert case.result.finish == "eos"
        for name in ("accept-eos-ignored", "accept-eos-dropped"):
            assert case.first(case.run([(BY_ID[name], None)])) == "accept.length"


def test_a_square_weight_is_needed(case):
    with pytest.raises(NotApplicable, match="square"):
        case.run([(BY_ID["load-square-transpose"], "all")])


def test_mxfp4_is_read_wrongly_from_a_quantised_checkpoint(tiny):
    quantised = Case(tiny, target="target-mxfp4", budget=1)
    for name in ("load-mxfp4-nibbles", "load-mxfp4-scale"):
        value = BY_ID[name].values[0]
        assert quantised.first(quantised.run([(BY_ID[name], value)])) == "target.layers.0.ffn_out"


@pytest.mark.parametrize("name", sample(one.id for one in HYPOTHESES if one.fit and one.fit.clean is not None))
def test_the_clean_value_of_a_fit_changes_nothing(name, case):
    with suppress(NotApplicable):
        assert case.first(case.run([(BY_ID[name], BY_ID[name].fit.clean)], stop=True)) is None


@pytest.mark.parametrize("name", sample(one.id for one in HYPOTHESES if one.fit and one.fit.constant))
def test_the_recorded_value_of_a_fit_is_of_its_key_and_changes_nothing(name, case):
    side, _, key = BY_ID[name].fit.constant.partition(".")
    said = constants(case.counterfactuals.loop)[side]
    assert BY_ID[name].fit.clean in (None, said[key])
    with suppress(NotApplicable):
        assert case.first(case.run([(BY_ID[name], said[key])], stop=True)) is None


PAIRS = [
    ("tap-off-by-one", "attn-sinks-missing"),
    ("rollback-noop", "input-position-plus-one"),
    ("rollback-reset", "commit-stale-placeholder"),
    ("rollback-too-far", "rollback-head-axis-drafter"),
    ("input-no-prefill", "rollback-reset"),
    ("input-context-blind", "rope-interleaved-drafter"),
    ("rope-interleaved", "rope-missing-k"),
    ("attn-gqa-tiled", "attn-window-missing"),
    ("load-tied-head", "verify-row"),
    ("accept-all", "commit-last-row-only"),
    ("ffn-top-k", "ffn-softmax-before-topk"),
    ("d2t-absolute", "tp-both-argmax-first-shard"),
]


@pytest.mark.parametrize("mode", ["local", "chained"])
@pytest.mark.parametrize("pair", sample(PAIRS), ids="+".join)
def test_pairs_go_together(pair, mode, case):
    before = state(case.counterfactuals.loop)
    both = case.run([(BY_ID[name], value_of(BY_ID[name])) for name in pair], mode)
    assert case.first(both)
    assert state(case.counterfactuals.loop) == before


def test_a_pair_shows_both(case):
    pair = [(BY_ID["tap-off-by-one"], 1), (BY_ID["attn-sinks-missing"], 3)]
    both = case.run(pair).tensors
    for one in pair:
        alone = case.run([one]).tensors
        changed = [place for place in alone if differ(alone[place], case.truth[place])]
        assert changed and all(np.array_equal(alone[place], both[place]) for place in changed)


@pytest.mark.parametrize("name", sample(one.id for family in DECISIONS for one in family.hypotheses if not one.layered))
def test_a_free_run_comes_to_an_end(name, case):
    ids = case.ids[:20]
    hypothesis, record = BY_ID[name], Trace(case.names)
    result = case.counterfactuals.run([(hypothesis, value_of(hypothesis))], ids, 6, record, rounds=3)
    assert result.emitted and len(result.acceptance_length) <= 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input-wrong-placeholder", 5),
        ("input-position-plus-one", 3),
        ("input-masked-positions", -1),
        ("input-chunk-boundary", 9),
        ("load-layers-exchanged", (2, 5)),
        ("load-layers-exchanged-drafter", (1, 3)),
        ("load-layers-exchanged-mlp", (0, 7)),
        ("fuse-scaled", 0.75),
        ("tap-scaled", 1.5),
    ],
)
def test_a_value_is_read_out_of_the_devices_tensors(name, value, case):
    infer = BY_ID[name].infer
    assert infer(case.run([(BY_ID[name], value)]).tensors, case.truth) == pytest.approx(value, rel=1e-5)
    assert infer(case.truth, case.truth) is None


@pytest.mark.parametrize("part", ["", "-gate-up", "-gate-up-and-bias", "-down", "-down-and-bias"])
@pytest.mark.parametrize("value", [(2, 1, 4), (0, 0, 3), (7, 2, 5)])
def test_exchanged_experts_are_read_out_of_which_rows_are_wrong(part, value, case):
    one = BY_ID[f"load-experts-exchanged{part}"]
    device = case.run([(one, value)]).tensors
    rough = {place: bfloat16(tensor) for place, tensor in device.items()}
    assert one.infer(rough, case.truth) == value
    assert one.infer({place: bfloat16(tensor) for place, tensor in case.truth.items()}, case.truth) is None


def bfloat16(tensor):
    """Rounded, as a device in bfloat16 hands it over."""
    return tensor if tensor.dtype.kind in "iub" else torch.from_numpy(tensor).bfloat16().float().numpy()


@pytest.mark.parametrize(
    ("name", "seen"), [("input-round-positions", [11, 12, 13]), ("input-round-positions-mask", [1, 2, 3])]
)
def test_a_mask_that_is_made_from_positions_sees_the_slots_up_to_them(name, seen, case, monkeypatch):
    loop = case.counterfactuals.loop
    monkeypatch.setattr(loop, "state", SimpleNamespace(draft_length=10), raising=False)
    with BY_ID[name].apply(loop, "restarted"):
        assert loop.positions(2, 1).tolist() == [0, 1, 2]
        mask = loop.mask(torch.tensor([10, 11, 12]), 2)
    assert mask.shape == (3, 13) and mask.sum(1).tolist() == seen and mask[:, 0].all()


def test_isolated_ids_are_read_out_and_shifted_ones_are_not(case):
    one, ids = BY_ID["input-other-ids"], ((5, 7), (71, 9))
    assert one.infer(case.run([(one, ids)]).tensors, case.truth) == ids
    assert one.infer(case.truth, case.truth) is None
    for name in ("input-no-shift", "input-wrong-placeholder"):
        assert one.infer(case.run([(BY_ID[name], value_of(BY_ID[name]))]).tensors, case.truth) is None


def test_a_float8_cache_clips_what_float8_cannot_hold(case):
    loop = case.counterfactuals.loop
    with loop.tap.around(lambda inner, stage, value: value), BY_ID["cache-narrow"].apply(loop, "float8 e4m3"):
        k, v = loop.cached("kv.target.0", torch.tensor([[[1.07, 1e4]]]), torch.tensor([[[0.3, -1e4]]]))
    assert k.flatten().tolist() == [1.125, 448.0]
    assert v.flatten().tolist() == [0.3125, -448.0]


def test_a_tiled_head_keeps_its_own_sink(case):
    """Compared with the equation: query head n on kv head n mod G, with sink n, in place n of the output."""
    loop = case.counterfactuals.loop
    layer = loop.target.model.model.layers[0].self_attn
    N, G, D = loop.target.config.num_attention_heads, loop.target.config.num_key_value_heads, layer.head_dim
    torch.manual_seed(0)
    q, k, v = torch.randn(1, N, 1, D), torch.randn(1, G, 5, D), torch.randn(1, G, 5, D)
    with torch.no_grad():
        each = [n % G for n in range(N)]
        scores = (q @ k[:, each].transpose(2, 3)) * layer.scaling
        weights = torch.cat((scores, layer.sinks.view(1, N, 1, 1)), -1).softmax(-1)[..., :-1]
        expected = (weights @ v[:, each]).transpose(1, 2)
        with BY_ID["attn-gqa-tiled"].apply(loop, 0):
            mask = torch.zeros(1, 1, 1, 5)
            found = layer.parity_attend(layer, q, k, v, mask, scaling=layer.scaling)[0]
    torch.testing.assert_close(found, expected)


def test_metadata_is_complete():
    assert len(BY_ID) == len(HYPOTHESES) >= 70
    names = declared(8, 4)
    for one in HYPOTHESES:
        assert one.fix and one.says and one.cost in (1, 2, 3), one.id
        assert all(any(matches(stage, name) for name in names) for stage in one.stages), one.id
        assert one.values or one.fit or one.infer or one.part, one.id
        assert one.describe(value_of(one)) != one.says or "{" not in one.says, one.id


def test_a_fitted_value_is_told_as_far_as_it_is_known():
    assert "is 1.000046 (" in BY_ID["rope-concentration"].describe(1.000046296679987)


def test_metadata_is_read_without_torch():
    code = "import sys, parity.references.hypotheses; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_documented_table_is_current():
    assert (ROOT / "docs/hypotheses.md").read_text() == page(), (
        "python -m parity.references.hypotheses > docs/hypotheses.md"
    )
