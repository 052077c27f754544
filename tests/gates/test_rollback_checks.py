"""The checks of the rollback gate by hand: what an exploration covered, lacked or broke, in exact words."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from parity.errors import DeviceEnded, DeviceFailed, Inconclusive
from parity.gates.rollback import gate, repeat
from parity.gates.rollback.history import (
    SENTINEL,
)
from parity.gates.rollback.sameness import BitExact, WithinNoise
from parity.gates.rollback.shown_caches import as_far_as_shown
from parity.stages import declared
from tests.gates.test_rollback_histories import PLACE, Player, explore


class Context(SimpleNamespace):
    histories, precision, seed = 18, "float32", 0


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setattr(gate, "window", lambda golden: 16)
    return Context(golden=None)


def exploration(played: int = 18, accepted=(0, 1, 2, 3), poisons: bool = True, failures=(), same=None, **player):
    player = Player(**player)
    player.same = same or BitExact()
    told = explore.Exploration(player, set(range(played)), {}, poisons, True)
    coverage = player.coverage
    coverage.rounds, coverage.longest, coverage.rows, coverage.worst = 44, 5, 321, (0.25, "verify.logits")
    coverage.accepted = Counter({(right, 3): 2 for right in accepted} | {(0, 1): 4, (2, 2): 0})
    coverage.errors = Counter(prefill=1, draft=2, verify=3, commit=4)
    coverage.poisoned = Counter({float("nan"): 2, SENTINEL: 3})
    for aspect in failures:
        told.failures[aspect] = explore.Failure(aspect, "a history", "a message", PLACE, 4)
    return told


COVERED = "18 histories, up to 5 rounds, 44 in all; accepted 0, 1, 2, 3 of 3; lengths right, 321 committed rows "
COVERED += "bit-equal after the round, sliding windows of 16 too"


def test_rows_that_were_covered_are_counted(context):
    found = gate._rows(context, exploration())
    assert (found.name, found.verdict, found.evidence) == ("accept and reject, float32", "pass", COVERED)
    assert found.figures == {
        "histories": 18, "rounds": 44, "longest": 5,
        "accepted": {"0 of 1": 4, "0 of 3": 2, "1 of 3": 2, "2 of 2": 0, "2 of 3": 2, "3 of 3": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        (dict(played=17), "; only 17 of 18 histories are distinct"),
        (dict(accepted=(0, 2)), "; no round accepted 1, 3 of 3"),
        (dict(played=17, accepted=(0, 1, 2)), "; only 17 of 18 histories are distinct; no round accepted 3 of 3"),
    ],
)
def test_what_was_not_reached_is_inconclusive(told, lacks, context):
    found = gate._rows(context, exploration(**told))
    assert found.verdict == "inconclusive" and found.evidence.endswith(f", sliding windows of 16 too{lacks}")


def test_a_window_that_no_history_crosses_is_inconclusive_and_none_is_not_said(context, monkeypatch):
    for edge, lacks in ((25, ""), (26, "; no history is longer than the sliding window of 26")):
        monkeypatch.setattr(gate, "window", lambda golden, edge=edge: edge)
        assert gate._rows(context, exploration()).evidence.endswith(f", sliding windows of {edge} too{lacks}")
    monkeypatch.setattr(gate, "window", lambda golden: None)
    assert gate._rows(context, exploration()).evidence.endswith("bit-equal after the round")


FAILED = "history 4: a history → a message"


@pytest.mark.parametrize(
    ("check", "aspect"),
    [(gate._rows, "rows"), (gate._poison, "poison"), (gate._errors, "errors"), (gate._state, "state")],
)
def test_a_failure_is_its_checks_own(check, aspect, context):
    found = check(context, exploration(failures=[aspect]))
    assert (found.verdict, found.evidence, found.place) == ("fail", FAILED, PLACE)
    assert found.figures == {"history": "a history", "broken": "a message"}
    wrong = "state" if aspect == "rows" else "rows"
    found = check(context, exploration(played=3, accepted=(0,), failures=[wrong]))
    assert (found.verdict, found.evidence) == ("not judged", "undisturbed histories break already")


def test_a_whole_exploration_judges_rows_though_the_state_breaks(context):
    assert gate._rows(context, exploration(failures=["state"])).verdict == "pass"


def test_the_worst_row_is_said_with_its_bound(context):
    found = gate._state(context, exploration())
    assert found.verdict == "pass" and found.figures == {"worst": 0.25, "stage": "verify.logits", "bound": 0.5}
    assert found.evidence.endswith("in one batch; worst row 0.25 of its RMS at verify.logits, bound 0.5")


WITHIN = WithinNoise(declared(2, 1), "float32", None)


@pytest.mark.parametrize(
    ("told", "verdict", "said"),
    [
        ({}, "pass", "rejected and padded slots held NaN in 2 rounds, 10000 in 3 rounds; draft and verify gave the "
         "same as before, bit for bit"),
        (dict(same=WITHIN), "pass", "rejected and padded slots held NaN in 2 rounds, 10000 in 3 rounds; draft and "
         "verify gave the same as before, within noise"),
        (dict(poisons=False), "not judged", "verbs cannot be called again after an error, so there is nothing to "
         "compare with"),
        (dict(transactional=False), "not judged", gate.NOT_TRANSACTIONAL),
    ],
)  # fmt: skip
def test_poison_is_counted_by_what_it_was(told, verdict, said, context):
    poisons, transactional = told.get("poisons", True), told.get("transactional", True)
    made = exploration(same=told.get("same"), transactional=transactional)
    made.poisons = poisons
    found = gate._poison(context, made)
    assert (found.verdict, found.evidence) == (verdict, said)


def test_poison_that_was_never_met_or_cannot_be_asked_for_is_inconclusive(context):
    made = exploration()
    del made.player.coverage.poisoned[SENTINEL]
    assert gate._poison(context, made).verdict == "inconclusive"
    made = exploration()
    made.player.coverage.poisoned = Counter({SENTINEL: 1})
    assert gate._poison(context, made).figures == {"rounds": {"NaN": 0, "10000": 1}}
    del made.player.device.poison
    found = gate._poison(context, made)
    assert (found.verdict, found.evidence) == (
        "inconclusive", "the device has no `poison(value)`: add it (parity.seam.Poisonable)",
    )  # fmt: skip


def test_errors_are_counted_by_verb(context):
    line = "raised by the tap in prefill 1, draft 2, verify 3, commit 4 times; the verb, or the round, once more gave "
    found = gate._errors(context, exploration())
    assert (found.verdict, found.evidence) == ("pass", f"{line}the same")
    assert gate._errors(context, exploration(same=WITHIN)).evidence == f"{line}the same within noise"
    made = exploration()
    made.player.coverage.errors["verify"] = 0
    assert gate._errors(context, made).verdict == "inconclusive"
    found = gate._errors(context, exploration(failures=["errors"], transactional=False))
    assert (found.verdict, found.evidence) == ("not judged", gate.NOT_TRANSACTIONAL)


@pytest.mark.parametrize(
    ("asked", "played", "verdict"), [(17, 3, "pass"), (16, 2, "pass"), (17, 2, "inconclusive"), (1, 1, "pass")]
)
def test_the_contexts_precision_plays_an_eighth(asked, played, verdict, context, monkeypatch):
    context.histories, context.precision, context.device = asked, "bfloat16", lambda: None
    counts = []
    monkeypatch.setattr(gate, "explored", lambda *of: counts.append(of[4]) or (exploration(played=played), "the line"))
    line, found = gate._exact(context, [])
    assert (line, found.name, found.verdict) == ("the line", "bit for bit, bfloat16", verdict)
    assert counts == [-(-asked // 8)] and found.figures == {"histories": played}
    assert found.evidence.endswith("lengths, kept and new rows, poison, errors: as in float32")
    monkeypatch.setattr(gate, "explored", lambda *of: (exploration(failures=["poison", "errors"]), "the line"))
    assert [*gate._exact(context, [])][1].evidence == FAILED


def result(differing: int = 0) -> repeat.RepeatResult:
    return repeat.RepeatResult(2, 40, differing, "", (0.0, ""), None)


@pytest.fixture
def asked(context, monkeypatch):
    """`explored` over made-up repetitions and explorations; how each was compared."""
    made: list = []

    def ask(rounds, more, failures):
        failing = iter(failures)
        monkeypatch.setattr(gate, "stages_of", lambda says: declared(2, 1))
        monkeypatch.setattr(
            gate, "NoiseFloors", lambda golden: SimpleNamespace(flips=False, flip_bound=lambda stage: 0.0)
        )
        monkeypatch.setattr(gate, "repeat_round", lambda *of: rounds)
        monkeypatch.setattr(gate, "repeat_more", lambda *of: more)
        monkeypatch.setattr(gate, "unless_device_fails", lambda ask_, *of: (ask_(*of), None))
        monkeypatch.setattr(gate, "HistoryPlayer", lambda *of, same, kept: SimpleNamespace(same=same, exact=of[2]))
        monkeypatch.setattr(
            gate, "explore",
            lambda player, count, seed, *of: made.append((player.same, player.exact, count, seed))
            or exploration(failures=next(failing)),
        )  # fmt: skip
        context.progress = None
        device = SimpleNamespace(describe=lambda: None)
        return gate.explored(context, device, [SimpleNamespace(ids=(1,))], "float32", 7)

    return ask, made


def test_a_device_that_repeats_itself_is_compared_by_bits_and_one_that_does_not_within_noise(asked):
    ask, made = asked
    assert ask(result(), result(1), [()])[1].verdict == "pass"
    assert isinstance(made[0][0], BitExact) and made[0][1:] == (False, 7, 0) and len(made) == 1
    ask(result(1), result(), [("errors",)])
    assert isinstance(made[1][0], WithinNoise) and len(made) == 2


@pytest.mark.parametrize(("failures", "more", "plays"), [
    (("rows",), 1, 1), (("poison",), 1, 2), (("errors",), 1, 2), (("errors",), 0, 1),
])  # fmt: skip
def test_a_device_is_asked_more_often_before_its_recovery_is_blamed(failures, more, plays, asked):
    ask, made = asked
    found, line = ask(result(), result(more), [failures, ()])
    assert len(made) == plays and bool(found.failures) == (plays == 1)
    assert ("it does not" in line.evidence) == (more == 1 and failures != ("rows",))


def test_too_few_positions_for_a_history_are_said(monkeypatch):
    device = SimpleNamespace(describe=lambda: SimpleNamespace(k=3, max_positions=22))
    monkeypatch.setattr(gate, "starts", lambda golden, most: [] if most < 2 else [(0, [1] * most)])
    monkeypatch.setattr(gate, "NoiseFloors", lambda golden: SimpleNamespace(flip_bound=lambda stage: 0.5))
    with pytest.raises(Inconclusive, match=r"^22 positions are too few for a history of 17 tokens$"):
        gate.baselines_of(SimpleNamespace(golden=None), device)
    device = SimpleNamespace(describe=lambda: SimpleNamespace(k=3, max_positions=23))
    (baseline,) = gate.baselines_of(SimpleNamespace(golden=None), device)
    assert (len(baseline.ids), baseline.asked, baseline.tied) == (2, 17, 0.5)


def test_a_device_that_fails_when_it_is_asked_again_is_told_and_one_that_ended_is_raised():
    error = DeviceFailed("toy", "draft", "no")

    def failing(wrong):
        raise wrong

    assert repeat.unless_device_fails(failing, error) == (None, error)
    assert repeat.unless_device_fails(lambda one: one, "fine") == ("fine", None)
    with pytest.raises(DeviceEnded):
        repeat.unless_device_fails(failing, DeviceEnded("toy", "draft", "gone"))


def test_a_device_is_asked_until_it_differs_or_often_enough(monkeypatch):
    told = iter([result(), result(), result(3), result()])
    monkeypatch.setattr(repeat, "repeat_round", lambda *of: next(told))
    assert repeat.repeat_more(None, None, None).differing == 3
    counted = []
    monkeypatch.setattr(repeat, "repeat_round", lambda *of: counted.append(1) or result())
    assert repeat.repeat_more(None, None, None).exact and len(counted) == 12


def test_checks_of_hidden_caches_are_not_judged_unless_they_fail(monkeypatch):
    module = "parity.gates.rollback.shown_caches.hidden_caches"
    checks = [gate.Check("one", verdict, "a line", {"n": 1}, PLACE) for verdict in ("pass", "fail", "inconclusive")]
    device = SimpleNamespace(describe=lambda: SimpleNamespace(name="toy"))
    monkeypatch.setattr(module, lambda device: [])
    assert list(as_far_as_shown(checks, device)) == checks
    monkeypatch.setattr(module, lambda device: ["kv.target.0.k", "kv.target.0.v"])
    found = list(as_far_as_shown(checks, device))
    why = "toy does not declare kv.target.0.k as shown (2 cache stages are missing): what is in its caches is unknown"
    assert [one.verdict for one in found] == ["not judged", "fail", "not judged"] and found[1] is checks[1]
    assert [one.evidence for one in found] == [f"{why}; in what it shows nothing breaks", "a line", why]
    assert [one.undeclared for one in found] == [True, False, True] and found[0].figures == {"n": 1}
