"""Histories played on a scripted device, and each invariant by hand: what is covered, what breaks, in which words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.errors import DeviceEnded, DeviceFailed
from parity.gates.rollback import invariants, play
from parity.gates.rollback.history import NAN, RoundPlan, SequencePlan, TapError
from parity.gates.rollback.invariants import InvariantBroken, Invariants, SequenceState
from parity.gates.rollback.play import HistoryPlayer
from parity.gates.rollback.sameness import WithinNoise
from parity.stages import declared
from tests.gates.scripted import EXPERTS, Scripted

IDS, TEXT, K = (1, 2, 3), (5, 7, 8, 9, 3, 2, 6, 4, 7, 5, 8, 9), 3
NAMES = declared(2, 1)


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    for module in (invariants, play):
        monkeypatch.setattr(module, "stages_of", lambda says: NAMES, raising=False)
    monkeypatch.setattr(invariants, "require_caches", lambda device, tensors: None)


def device_of(family: str = "n-gram", drafts=None, eos=(), varies: bool = False, **more) -> Scripted:
    device = Scripted(TEXT, [[0] * K] * 20 if drafts is None else drafts, eos=eos, **more)
    says = SimpleNamespace(eos=eos, name="scripted", k=K, varies_k=varies, family=family)
    device.describe = lambda: says
    return device


def baseline(ids=IDS, more: int = len(TEXT)) -> SimpleNamespace:
    return SimpleNamespace(ids=ids, text=[*ids, *TEXT], more=more, prompt=4, drafts={}, state={}, asked=more)


def player_of(device: Scripted, same=None, others=(), **more) -> HistoryPlayer:
    return HistoryPlayer(device, [baseline(), *others], True, same=same, **more)


def one(*rounds: RoundPlan, budget: int = len(TEXT), error=None):
    return (SequencePlan(0, budget, rounds, error),)


def test_rounds_are_played_along_the_text_and_counted():
    device = device_of("p-eagle")
    player, given, commit = player_of(device), [], device.commit
    device.commit = lambda drafts, tokens, tap: (
        given.append((drafts.tolist(), tokens.tolist())) or commit(drafts, tokens, tap)
    )
    player.play(one(RoundPlan(2, 3), RoundPlan(0, 3), RoundPlan(3, 3), RoundPlan(1, 1, plain=True)))
    assert [drafts for drafts, _ in given] == [[7, 8, 1], [1, 2, 6], [2, 6, 4], []]
    assert [tokens for _, tokens in given] == [[7, 8, 9, 7], [3, 2, 6, 3], [2, 6, 4, 7], [5]]
    coverage = player.coverage
    assert (coverage.rounds, coverage.longest) == (4, 4)
    assert coverage.accepted == {(2, 3): 1, (0, 3): 1, (3, 3): 1, (0, 0): 1}
    assert player.sequence.emitted == list(TEXT[:10]) and player.sequence.round == 4 and not player.sequence.drafting
    player.play(one(RoundPlan(3, 3)))
    assert (coverage.rounds, coverage.longest, coverage.accepted[3, 3]) == (5, 4, 2)


def test_a_sequence_ends_at_its_budget_or_an_end_token():
    player = player_of(device_of("p-eagle"))
    player.play(one(*[RoundPlan(3, 3)] * 5, budget=7))
    assert player.sequence.emitted == list(TEXT[:7]) and player.coverage.rounds == 2
    assert player.coverage.accepted == {(3, 3): 1, (1, 3): 0}  # cut by the budget
    player = player_of(device_of("p-eagle", eos=(10,)))
    player.play(one(RoundPlan(1, 3, end=True), RoundPlan(3, 3)))
    assert player.sequence.emitted == [5, 7, 10] and player.coverage.rounds == 1


def broken(device: Scripted, *rounds: RoundPlan, player=None, **more) -> InvariantBroken:
    with pytest.raises(InvariantBroken) as caught:
        (player or player_of(device)).play(one(*(rounds or (RoundPlan(2, 3), RoundPlan(1, 3))), **more))
    return caught.value


@pytest.mark.parametrize("emits", [[7, 8], [7, 8, 9, 3], [7, 8, 10], [7, 8, 1], []])
def test_what_commit_emits_has_to_be_what_was_accepted(emits):
    device = device_of("p-eagle")
    commit = device.commit
    device.commit = lambda drafts, tokens, tap: commit(drafts, tokens, tap) and emits
    found = broken(device)
    assert (found.aspect, found.message) == ("rows", f"commit emitted {emits}, not [7, 8, 9]")
    assert found.place == Place("accept.emitted", None, 4, 1)


def test_verify_has_to_say_something_of_every_row():
    device = device_of("p-eagle")
    verify = device.verify
    device.verify = lambda drafts, tap: verify(drafts, tap)[:-1]
    found = broken(device)
    assert found.message == "verify gave shape (3,) for 4 rows" and found.place == Place("verify.tokens", None, 4, 1)


@pytest.mark.parametrize(("count", "family", "fewer", "wrong"), [
    (2, "p-eagle", False, True), (2, "p-eagle", True, False), (2, "n-gram", False, False), (4, "n-gram", True, True),
    (4, "p-eagle", True, True),
])  # fmt: skip
def test_draft_has_to_give_k_drafts_or_fewer_where_that_is_allowed(count, family, fewer, wrong):
    device = device_of(family, [[0] * count] * 9)
    player = player_of(device, **({"fewer": True} if fewer else {}))
    if wrong:
        found = broken(device, player=player)
        assert found.message == f"draft gave {count} drafts, not 3"
        assert found.place == Place("drafter.draft_tokens", None, 4, 1)
        return
    player.play(one(RoundPlan(2, 3), RoundPlan(3, 3)))
    took = 3 if family == "n-gram" else 2  # such a family takes any number of them
    assert player.sequence.emitted == list(TEXT[: 1 + 3 + took + 1])


def test_a_verb_that_raises_is_told_and_a_process_that_ended_is_not_caught():
    for verb, round_ in (("prefill", 0), ("draft", 1), ("verify", 1), ("commit", 1)):
        device = device_of("p-eagle")
        setattr(device, verb, lambda *of: [][0])
        found = broken(device)
        assert found.aspect == "rows" and found.message.startswith(f"{verb} raised IndexError")
        assert found.place == Place(verb, None, 4, round_)
        setattr(device, verb, lambda *of, verb=verb: (_ for _ in ()).throw(DeviceEnded("toy", verb, "gone")))
        with pytest.raises(DeviceEnded):
            player_of(device).play(one(RoundPlan(1, 3)))


@pytest.mark.parametrize(("where", "stage"), [(0, 0), (500, 3), (999, 5)])
def test_an_error_is_raised_so_far_through_a_verb_and_the_verb_is_called_again(where, stage):
    device = device_of("p-eagle")
    player = player_of(device)
    player.play(one(RoundPlan(1, 3)))
    raised, told = [], device._tap

    def tap(given, name, value):
        try:
            return told(given, name, value)
        except Exception:
            raised.append(name)
            raise

    device._tap = tap
    player.play(one(RoundPlan(1, 3, error=TapError("verify", where)), RoundPlan(1, 3)))
    stages = ["target.layers.0.router_logits", EXPERTS[0], "target.layers.1.router_logits", EXPERTS[1], "verify.logits",
              "verify.tokens"]  # fmt: skip
    assert raised == [stages[stage]] and player.coverage.errors == {"verify": 1}
    player.play(one(RoundPlan(1, 3, error=TapError("draft", where))))  # it shows nothing: nothing to raise at
    assert player.coverage.errors == {"verify": 1, "draft": 0}


def test_a_prefill_of_another_prompt_that_fails_harms_nobody():
    other, device, given = baseline((4, 4)), device_of("p-eagle"), []
    prefill = device.prefill
    device.prefill = lambda ids, budget, tap: given.append((ids, budget)) or prefill(ids, budget, tap)
    player = player_of(device, others=[other])
    player.play(one(RoundPlan(1, 3, error=TapError("prefill", 0)), RoundPlan(2, 3)))
    assert given == [(IDS, len(TEXT)), ((4, 4), 2)]
    assert player.coverage.errors["prefill"] == 1 and player.sequence.emitted == list(TEXT[:6])
    player = player_of(device_of("p-eagle"))
    player.play(one(RoundPlan(1, 3), error=TapError("draft", 0)))  # of a sequence it is the prefill's
    assert player.coverage.errors["prefill"] == 1


def test_a_round_anew_drafts_again():
    device = device_of("p-eagle")
    calls, draft = [], device.draft
    device.draft = lambda tap: calls.append(1) or draft(tap)
    player = player_of(device)
    for verb, drafts in (("commit", 1), ("verify", 2), ("draft", 1)):
        calls.clear()
        player.play(one(RoundPlan(1, 3, error=TapError(verb, 0, restart=True))))
        assert len(calls) == drafts  # commit shows nothing to raise at


def test_a_verb_that_goes_on_after_its_tap_raised_is_told():
    device = device_of("p-eagle")
    told = device._tap

    def swallow(given, name, value):
        try:
            return told(given, name, value)
        except Exception:
            return value

    player = player_of(device)
    player.play(one(RoundPlan(1, 3)))
    device._tap = swallow
    found = broken(device, RoundPlan(1, 3, error=TapError("verify", 500)), player=player)
    assert (found.aspect, found.message) == ("again", "verify continues after its tap raised")
    assert found.place == Place("verify.tokens", None, 4, 1)


def changing(device: Scripted, row: int, by: float = 1.0) -> None:
    """Verify's logits are others in this row when it is called again in a round."""
    logits, seen = device._logits, []

    def changed(steps):
        found = logits(steps)
        found[min(row, len(found) - 1)] += by * seen.count(list(steps))
        seen.append(list(steps))
        return found

    device._logits = changed


def test_a_verb_that_gives_something_else_when_it_is_called_again_is_placed():
    device = device_of("p-eagle")
    player = player_of(device)
    player.play(one(RoundPlan(1, 3)))
    changing(device, 2)
    found = broken(device, RoundPlan(1, 3, error=TapError("verify", 999)), player=player)
    assert (found.aspect, found.message) == ("again", "verify.logits row 2 differs when verify is called again")
    assert found.place == Place("verify.logits", None, 4, 1, 3 + 2)


def test_within_noise_a_verb_may_give_it_again_and_its_choices_are_kept():
    noise = SimpleNamespace(flips=False, flip_bound=lambda stage: 0.0)
    device = device_of("p-eagle", routes={(0, 2): [2, 3], (0, 4): [2, 1]})
    player = player_of(device, WithinNoise(NAMES, "float32", noise))
    player.play(one(RoundPlan(1, 3)))
    changing(device, 2, 1e-7)
    forced, told = [], device._tap
    device._tap = lambda tap, name, value: forced.append((name, told(tap, name, value))) or forced[-1][1]
    player.play(one(RoundPlan(1, 3, error=TapError("verify", 999))))
    assert player.coverage.errors["verify"] == 1
    first, again = (value.tolist() for name, value in forced if name == EXPERTS[0])
    assert first == again == [[0, 1], [2, 3], [3, 3], [3, 3]]


def test_a_rehearsed_round_with_poison_is_played_to_its_last_stage_first():
    device, poison = device_of("p-eagle"), []
    device.poison = poison.append
    player = player_of(device)
    player.play(one(RoundPlan(1, 3)))
    calls, verify = [], device.verify
    device.verify = lambda drafts, tap: calls.append(drafts.tolist()) or verify(drafts, tap)
    player.play(one(RoundPlan(1, 3, rehearsed=True, poison=NAN), RoundPlan(1, 3, rehearsed=True)))
    assert len(poison) == 1 and sum(player.coverage.poisoned.values()) == 1 and len(calls) == 4
    assert calls[0] == calls[1] and player.coverage.errors == {}
    changing(device, 0)
    found = broken(device, RoundPlan(1, 3, rehearsed=True), player=player)
    assert found.message == "verify.logits row 0 differs when verify is called again"


def test_a_device_is_told_its_k_where_it_changes():
    device, told = device_of("p-eagle", varies=True), []
    device.draft = lambda tap, *k: told.append(k) or np.zeros(k[0] if k else K, np.int64)
    player = player_of(device)
    player.play(one(RoundPlan(1, 1, asked=1), RoundPlan(2, 3), RoundPlan(0, 0, asked=0)))
    assert told == [(1,), (), (0,)] and player.coverage.accepted == {(1, 1): 1, (2, 3): 1, (0, 0): 1}


def test_what_was_never_speculated_is_computed_first_and_told_where_it_fails():
    def failing(error):
        def compute():
            raise error

        player = HistoryPlayer(device_of("p-eagle"), [baseline()], False)
        player.baselines[0].compute = compute
        return player

    with pytest.raises(InvariantBroken) as caught:
        failing(DeviceFailed("toy", "draft", "no")).play(one(RoundPlan(1, 3)))
    assert caught.value.aspect == "rows" and caught.value.message.startswith("without speculation, draft raised ")
    assert caught.value.place == Place("draft", None, 4, 0)
    with pytest.raises(DeviceEnded):
        failing(DeviceEnded("toy", "draft", "gone")).play(one(RoundPlan(1, 3)))


def test_true_rows_continue_with_the_routes_of_the_never_speculated_ones():
    player, asked = HistoryPlayer(device_of("p-eagle"), [baseline()], False), []
    told = player.baselines[0]
    told.compute, told.tie = (lambda: None), (lambda row, token: False)
    told.routes = lambda start, end: asked.append((start, end)) or {}
    player.play(one(RoundPlan(2, 3), RoundPlan(0, 3)))
    assert asked == [(0, 3), (3, 6), (6, 7)]


@pytest.mark.parametrize(
    ("family", "drafts", "cached"),
    [
        ("draft-model", [7, 8, 9], 6),  # the last draft is never run over
        ("draft-model", [7, 1, 9], 5),
        ("draft-model", [1, 8, 9], 4),
        ("p-eagle", [7, 8, 9], 3),  # it runs over all of them once more
    ],
)
def test_a_drafters_cache_keeps_what_it_ran_over_and_was_emitted(family, drafts, cached):
    player = player_of(device_of(family, [drafts] * 3))
    player.play(one(RoundPlan(3, 3)))
    assert player.sequence.cached == cached and player.sequence.length == 7


def invariants_of(family: str = "p-eagle", exact: bool = False, state=None, drafts=None) -> Invariants:
    """A sequence of three prompt tokens that has emitted 5, 7, 8; its drafter holds two rows."""
    found = Invariants(device_of(family), exact)
    told = baseline()
    told.state, told.drafts = state or {}, drafts or {}
    told.tie, told.routes = (lambda row, token: token == 11), (lambda start, end: {"routes": (start, end)})
    found.sequence = SequenceState(told, 9, [5, 7, 8], 2, round=2)
    return found


def raised(call, *of) -> InvariantBroken:
    with pytest.raises(InvariantBroken) as caught:
        call(*of)
    return caught.value


def test_a_sequence_has_all_rows_but_the_last_tokens():
    found = invariants_of()
    assert (found.sequence.length, found.committed) == (5, 3)
    assert found.sequence.known(2, 3) == [3, 5, 7] and found.sequence.known(5, 9) == [8]
    assert found.routes(1, 2) == {"routes": (1, 2)} and invariants_of(exact=True).routes(1, 2) == {}


@pytest.mark.parametrize(
    ("stage", "due"),
    [("drafter.input_ids", [5, 7, 8]), ("drafter.positions", [2, 3, 4]), ("drafter.slots", [2, 3, 4])],
)
def test_committed_rows_are_the_tokens_that_are_not_cached(stage, due):
    invariants_of().drafter_rows({stage: np.array([*due, 99, 99])}, K)
    wrong = np.array(due) + np.array([0, 0, 1])
    found = raised(invariants_of().drafter_rows, {stage: wrong}, K)
    assert found.message == f"{stage} of the committed rows is {wrong.tolist()}, not {due}" and found.aspect == "rows"
    assert found.place == Place(stage, None, 4, 2, 2)


def test_of_a_block_the_ids_are_the_last_tokens_alone():
    invariants_of("dflash").drafter_rows({"drafter.input_ids": np.array([8, 99])}, K)
    assert raised(invariants_of("dflash").drafter_rows, {"drafter.input_ids": np.array([7, 99])}, K).message.endswith(
        "is [7], not [8]"
    )


TRUE = np.float32([[1, 2], [3, 4], [5, 6], [7, 8], [2, 1]])


def test_drafts_are_those_of_a_prefill_of_as_much_text():
    drafts = {5: TRUE}
    invariants_of(drafts=drafts).drafter_rows({"drafter.logits": TRUE}, K)
    found = raised(invariants_of(drafts=drafts).drafter_rows, {"drafter.logits": TRUE * 2}, K)
    assert found.aspect == "state" and found.message.startswith("drafter.logits row 2 is ")
    invariants_of(drafts=drafts, exact=True).drafter_rows({"drafter.logits": TRUE * 2}, K)
    invariants_of(drafts={4: TRUE}).drafter_rows({"drafter.logits": TRUE * 2}, K)
    invariants_of(drafts=drafts).drafter_rows({"drafter.logits": TRUE * 2}, 0)
    raised(invariants_of(drafts=drafts).drafter_rows, {"drafter.logits": TRUE * 2}, 2)
    invariants_of("dflash", drafts=drafts).drafter_rows({"drafter.logits": TRUE * 2}, 2)  # a block of two is another


def test_tokens_are_the_texts_or_tie_with_them():
    invariants_of().tokens([7, 11], 3, "verify.tokens")
    found = raised(invariants_of().tokens, [7, 10], 3, "verify.tokens")
    assert found.message == "verify.tokens row 4 is 10; never having speculated the device says 8"
    assert (found.aspect, found.place) == ("state", Place("verify.tokens", None, 4, 2, 4))
    invariants_of(exact=True).tokens([7, 10], 3, "verify.tokens")


STAGE = "kv.target.0.k"


def caches(rows: np.ndarray = TRUE, length: int = 5) -> dict[str, np.ndarray]:
    return {STAGE: rows, "kv.target.length": np.array([length])}


def test_caches_have_their_length_and_their_kept_and_new_rows():
    found = invariants_of(state={STAGE: TRUE})
    found.sequence.caches = {STAGE: TRUE[:3]}
    found.caches(caches(), {"target.layers.0.k": TRUE[3:]})
    assert found.coverage.rows == 3 and found.coverage.worst[0] == 0
    assert list(found.sequence.caches) == [STAGE, "kv.target.length"]


@pytest.mark.parametrize(
    ("tensors", "message", "position", "aspect"),
    [
        (caches(length=4), "kv.target.length is 4, not 5", None, "rows"),
        (caches() | {"kv.target.length": np.array([], int)}, "kv.target.length is empty, not 5", None, "rows"),
        (caches(TRUE[:4]), f"{STAGE} has 4 rows, not 5", 4, "rows"),
        (caches(np.concatenate([TRUE, TRUE])), f"{STAGE} has 10 rows, not 5", 5, "rows"),
        (caches(TRUE + np.float32([[0], [1], [1], [0], [0]])), f"{STAGE} row 1 changed", 1, "rows"),
        (caches(TRUE + np.float32([[0], [0], [0], [0], [1]])), f"{STAGE} row 4 is not what verify computed", 4, "rows"),
        (caches() | {"kv.drafter.length": np.array([3])}, "kv.drafter.length is 3, not 2", None, "rows"),
        (caches() | {"kv.drafter.0.k": TRUE[:3]}, "kv.drafter.0.k has 3 rows, not 2", 2, "rows"),
    ],
)
def test_what_a_cache_holds_otherwise_is_told_and_placed(tensors, message, position, aspect):
    found = invariants_of(state={STAGE: TRUE, "kv.drafter.0.k": TRUE})
    found.sequence.caches = {STAGE: TRUE[:3]}
    wrong = raised(found.caches, tensors, {"target.layers.0.k": TRUE[3:]})
    assert (wrong.message, wrong.aspect) == (message, aspect)
    stage = message.split()[0]
    assert wrong.place == Place(stage, None if "length" in stage else 0, 4, 2, position)


def test_a_drafters_cache_is_left_alone_once_it_no_longer_drafts_or_has_none():
    for found in (invariants_of(state={STAGE: TRUE}), invariants_of("n-gram", state={STAGE: TRUE})):
        found.sequence.drafting = found.family.name == "n-gram"
        found.caches(caches() | {"kv.drafter.length": np.array([9])})


def test_new_rows_are_the_never_speculated_ones_within_their_bound():
    bound = 256 * 2.0**-23 * float(np.sqrt((TRUE**2).sum(axis=1).mean()))
    for factor, breaks in ((0.9, False), (1.1, True)):
        found = invariants_of(state={STAGE: TRUE})
        found.sequence.caches = {STAGE: TRUE[:3]}
        off = TRUE + np.float32([[0, 0]] * 3 + [[0, 0], [factor * bound, 0]])
        if breaks:
            wrong = raised(found.caches, caches(off))
            assert (wrong.aspect, wrong.place) == ("state", Place(STAGE, 0, 4, 2, 4))
            assert wrong.message.startswith(f"{STAGE} row 4 is 3.4e-05 off the never-speculated one")
        else:
            found.caches(caches(off))
            assert found.coverage.worst[0] == pytest.approx(0.9 * 256 * 2.0**-23, rel=1e-2)
    found = invariants_of(state={STAGE: TRUE}, exact=True)
    found.caches(caches(TRUE * 2))


def test_a_verbs_rows_are_compared_from_where_they_stand():
    found = invariants_of(state={"target.logits": TRUE})
    found.against("verify.logits", {"verify.logits": TRUE[2:] + 0}, "target.logits", 2, 2)
    found.against("verify.logits", {}, "target.logits", 2, 2)
    found.against("verify.logits", {"verify.logits": TRUE[:1]}, "another", 2, 1)
    invariants_of(state={"target.logits": TRUE}, exact=True).against("x", {"x": TRUE}, "target.logits", 2, 2)
    wrong = raised(found.against, "verify.logits", {"verify.logits": TRUE[:3]}, "target.logits", 2, 2)
    assert wrong.place == Place("verify.logits", None, 4, 2, 2) and wrong.aspect == "state"
    found.against("verify.logits", {"verify.logits": np.concatenate([TRUE[2:4], TRUE[:1]])}, "target.logits", 2, 2)
