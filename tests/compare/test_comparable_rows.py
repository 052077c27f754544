"""What a run has to have in common with its golden, by hand: each thing that may differ, alone, and its sentence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare import preconditions
from parity.compare.preconditions import comparable, refuse_unmatched
from parity.errors import UsageError

CASE = {"k": 4, "max_new_tokens": 12, "ids": ((1, 2), (3,)), "uniforms": ("a", "b"), "sampling": "", "partial_kv": ""}
CASE |= {"kv_cache": "", "target": ("tc", "tw"), "drafter": ("dc", "dw"), "layers": (8, 1), "kind": "run"}


def dump(folder: str, **changes) -> SimpleNamespace:
    """A dump of two prompts; `sides` are its devices, `keeps` whether it keeps less than whole tensors."""
    made = CASE | changes
    prompts = [SimpleNamespace(ids=ids, uniforms=own) for ids, own in zip(made["ids"], made["uniforms"], strict=True)]
    names = ("k", "max_new_tokens", "sampling", "partial_kv", "kv_cache")
    case = SimpleNamespace(prompts=prompts, **{name: made[name] for name in names})
    pair = {
        part: SimpleNamespace(config_digest=made[part][0], weights_digest=made[part][1])
        for part in ("target", "drafter")
    }
    model = SimpleNamespace(num_layers=made["layers"][0], num_drafter_layers=made["layers"][1], **pair)
    manifest = SimpleNamespace(case=case, model=model, kind=made["kind"], producer=f"{folder}'s")
    side = SimpleNamespace(folder=folder, manifest=manifest, keeps=made.get("keeps", False))
    side.sides = made.get("sides", (side,))
    return side


@pytest.fixture
def refused(monkeypatch):
    """What is said of a run beside a golden; '' where they are compared. Who made them is asked last."""
    asked: list = []
    monkeypatch.setattr(preconditions, "refuse_shared", lambda *of: asked.append(of))
    monkeypatch.setattr(preconditions, "refuse_synthetic", lambda *of: asked.append(of))

    def said(golden=(), **run) -> str:
        asked.clear()
        try:
            comparable(dump("G", **dict(golden)), dump("R", **run))
        except UsageError as error:
            return str(error)
        assert asked[0] == ("G's", "R's") and len(asked) == 1 + len(run.get("sides", (0,)))
        return ""

    return said


OTHER = "R was made over other prompts, K or token budget than G"
DRAWN = "R was sampled in another way, or by other random numbers, than G"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, ""),
        ({"kind": "golden"}, "R is a golden; the device's side of a comparison is a run folder"),
        ({"k": 3}, OTHER), ({"k": 5}, OTHER), ({"max_new_tokens": 13}, OTHER), ({"ids": ((1, 2), (4,))}, OTHER),
        ({"ids": ((1, 2),), "uniforms": ("a",)}, OTHER), ({"ids": ((3,), (1, 2))}, OTHER),
        ({"sampling": "temperature=1"}, DRAWN), ({"uniforms": ("a", "c")}, DRAWN),
        ({"partial_kv": "1+2+1x8"}, "R has partial KV 1+2+1x8, G has none"),
        ({"kv_cache": "fp8_e4m3"}, "R keeps its caches in fp8_e4m3, G in the dtype of its passes"),
        ({"target": ("tc", "x")}, "R ran another target checkpoint than G was dumped from"),
        ({"target": ("x", "tw")}, "R ran another target checkpoint than G was dumped from"),
        ({"drafter": ("dc", "x")}, "R ran another drafter checkpoint than G was dumped from"),
        ({"layers": (7, 1)}, "R says that the pair has (7, 1) layers, G that it has (8, 1)"),
        ({"layers": (8, 2)}, "R says that the pair has (8, 2) layers, G that it has (8, 1)"),
    ],
)  # fmt: skip
def test_each_difference_is_refused_in_its_own_words(refused, change, sentence):
    assert refused(**change) == sentence
    if "kind" not in change and change:
        assert refused(golden=change) != "" and refused(golden=change, **change) == ""


def test_caches_of_the_golden_alone_are_told_as_well(refused):
    assert refused({"partial_kv": "1+2+1x8"}) == "R has partial KV none, G has 1+2+1x8"
    assert refused({"kv_cache": "fp8_e4m3"}) == "R keeps its caches in the dtype of its passes, G in fp8_e4m3"


def test_two_devices_are_compared_on_whole_greedy_tensors_alone(refused):
    two = (dump("one"), dump("two"))
    less = "two devices are compared on whole tensors: golden or runs keep less"
    assert refused(sides=two) == "" and refused(golden={"keeps": True}, sides=two) == less
    assert refused(sides=(dump("one"), dump("two", keeps=True))) == less
    assert refused(golden={"keeps": True}, keeps=True) == ""
    drawn = {"sampling": "temperature=1"}
    words = "G samples: compare each device with it, two are not compared with each other"
    assert refused(golden=drawn, sides=two, **drawn) == words and refused(golden=drawn, **drawn) == ""


def test_a_policys_row_has_to_match_a_stage_of_some_family():
    """Stages that only a drafter with pages or quantised caches has are known of any pair."""
    asked = []

    def policy(unmatched=None, dead=""):
        def known(stages):
            asked.append(stages)
            return unmatched

        return SimpleNamespace(name="mine", unmatched=known, dead=lambda declared: dead)

    golden = dump("G", layers=(2, 0))
    golden.declared = {"own.stage": None}
    refuse_unmatched(policy(), golden)
    stages = asked[0]
    assert stages[-1] == "own.stage" and "target.layers.1.out" in stages and "target.layers.2.out" not in stages
    for part in ("drafter.layers.0.pages", "drafter.layers.0.k"):
        assert part in stages, part
    with pytest.raises(UsageError, match=r"^policy mine: row 'x\.y' matches no stage$"):
        refuse_unmatched(policy("x.y"), golden)
    with pytest.raises(UsageError, match=r"^policy mine: a row is dead$"):
        refuse_unmatched(policy(dead="a row is dead"), golden)
