"""Caches filled to their end, and calibrations of gates over clean devices, value by value."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import DeviceEnded, DeviceFailed, NotOffered, UsageError
from parity.gates import boundary, clean
from parity.gates.boundary import BoundaryOutcomes
from parity.gates.clean import CleanGates, GateCalibration, GateRun
from parity.gates.rollback.invariants import InvariantBroken
from tests.gates.results import OUT, PLACE, result


def refused(said: str, touches: int = 0):
    def prefill(ids, budget, tap):
        for _ in range(touches):
            tap("a", np.zeros(1))
        if said:
            raise UsageError(said)

    return SimpleNamespace(prefill=prefill, describe=lambda: SimpleNamespace(k=4))


class Room:
    """A context of two prompts whose devices have as many positions as they are asked for, or their own."""

    def __init__(self, most: int, k: int = 4):
        self.k = k
        case = SimpleNamespace(k=k, prompts=[SimpleNamespace(ids=(1, 2, 3)), SimpleNamespace(ids=(9,))])
        self.golden, self.most, self.built = SimpleNamespace(manifest=SimpleNamespace(case=case)), most, []

    def device(self, precision):
        return SimpleNamespace(describe=lambda: SimpleNamespace(max_positions=self.most, k=self.k))

    def build(self, precision, k, max_positions):
        self.built.append((precision, k, max_positions))
        return max_positions


@pytest.fixture
def tries(monkeypatch):
    """What is tried, and behind which texts."""
    made: list = []
    texts: list = []

    def baseline(device, prompt, ids, more, tied):
        texts.append((prompt, list(ids), more, tied))
        return SimpleNamespace(compute=lambda: None, more=more, ids=ids)

    monkeypatch.setattr(boundary, "NoiseFloors", lambda golden: SimpleNamespace(flip_bound=lambda stage: 0.25))
    monkeypatch.setattr(boundary, "kept_rows", lambda noise: None)
    monkeypatch.setattr(boundary, "Baseline", baseline)
    monkeypatch.setattr(boundary, "GivenText", lambda baseline_, more: ("given", list(more)))
    monkeypatch.setattr(boundary, "as_far_as_shown", lambda made_, device: made_)
    monkeypatch.setattr(
        boundary,
        "_try",
        lambda ends, device, text, budget, spare, exact, kept: made.append((text, budget, spare, exact)),
    )
    return made, texts


def test_caches_are_made_so_small_that_a_sequence_just_fits_or_does_not(tries):
    made, texts = tries
    context = Room(0)
    boundary._small(context, BoundaryOutcomes())
    assert texts == [(0, [1, 2, 3] * 8, 11 + 5, 0.25)]
    assert context.built == [("float32", 4, 24 + 11 + 4 + spare) for spare in (1, 0, -1, -2, -4)]
    assert [one[1:] for one in made] == [(11, spare, False) for spare in (1, 0, -1, -2, -4)]


def test_a_devices_own_caches_are_filled_to_their_end_and_one_beyond(tries):
    made, texts = tries
    ends, contents = boundary._own(Room(1024), True)
    (prompt, ids, more, tied), *_ = texts
    assert (prompt, len(ids), ids[-3:], more, tied) == (0, 1024 - 7 - 4, [1, 2, 3], 6, 0.25)
    assert [one[1:] for one in made] == [(6, 1, False), (7, 0, True), (8, -1, True)]
    assert made[1][0] == made[2][0] == ("given", ids[:6])
    assert (ends.name, contents.name) == ("own maximum, 1024 positions", "contents at its end")
    list(boundary._own(Room(1024, k=2), True))
    assert made[-1] == (("given", [1, 2, 3, 1]), 6, -1, True)
    for judged, verdict in ((True, "not judged"), (False, "inconclusive")):
        (check,) = boundary._own(Room(1025), judged)
        said = "1025 positions are too many to fill: give the factory `max_positions`"
        assert (check.name, check.verdict, check.evidence) == ("own maximum", verdict, said)


@pytest.mark.parametrize(
    ("error", "said"),
    [(UsageError("24 are too many"), "refused though it fits: "), (DeviceFailed("toy", "draft", "no"), "fails though")],
)
def test_a_device_that_cannot_fill_its_own_caches_fails(error, said, tries, monkeypatch):
    def compute():
        raise error

    monkeypatch.setattr(boundary, "Baseline", lambda *of: SimpleNamespace(compute=compute))
    (check,) = boundary._own(Room(100), True)
    assert (check.name, check.verdict) == ("own maximum, 100 positions", "fail") and check.evidence.startswith(said)
    error = DeviceEnded("toy", "draft", "gone")
    with pytest.raises(DeviceEnded):
        list(boundary._own(Room(100), True))


@pytest.mark.parametrize("size", [24, 11, 15])
def test_a_refusal_names_a_size_before_anything_is_computed(size):
    said = f"{size} positions are too many"
    assert (
        said in boundary.refusal(refused(said), [1] * 8, 3, 24) and boundary.refusal(refused(""), [1] * 8, 3, 24) == ""
    )
    with pytest.raises(InvariantBroken, match=r"^prefill raised after 2 stages: "):
        boundary.refusal(refused(said, 2), [1] * 8, 3, 24)
    with pytest.raises(InvariantBroken, match=r"^prefill raised without naming the size: "):
        boundary.refusal(refused("12 positions are too many"), [1] * 8, 3, 24)


def test_sizes_around_the_end_are_tried_and_told():
    assert boundary.spares(4) == (1, 0, -1, -2, -4) and boundary.spares(2) == (1, 0, -1, -2)
    assert [boundary._size(spare) for spare in (0, 2, -1)] == ["exactly at", "2 below", "1 above"]
    ends = BoundaryOutcomes({1: "runs", 0: "runs", -1: "refused"})
    line = "prompt + budget + K against the maximum: 1 below runs, exactly at runs, 1 above refused"
    check = boundary._admission("admission", ends)
    assert (check.verdict, check.evidence, check.figures) == ("pass", line, {"outcomes": ends.outcomes})
    ends.admission = InvariantBroken("admission", "broken")
    check = boundary._admission("admission", ends)
    assert (check.verdict, check.evidence) == ("fail", f"broken; {line}")


def test_contents_at_the_end_are_counted():
    ends = BoundaryOutcomes(rounds=7, rows=90, worst=1e-6)
    line = "7 rounds, accepting all, none and some: 90 committed rows untouched"
    check = boundary._contents("contents", ends)
    assert (check.verdict, check.evidence) == ("pass", f"{line}, worst row 1e-06 off a roomy device")
    assert boundary._contents("contents", BoundaryOutcomes(rounds=7, rows=90)).evidence == line
    check = boundary._contents("contents", BoundaryOutcomes())
    assert (check.verdict, check.evidence) == ("inconclusive", "no size was admitted: nothing reached the end")
    ends.contents = InvariantBroken("rows", "broken", PLACE)
    check = boundary._contents("contents", ends)
    assert (check.verdict, check.evidence, check.place) == ("fail", "broken", PLACE)


class Ended:
    """Plays rounds of a device up to one that breaks."""

    def __init__(self, device, baselines, exact, fewer, kept):
        assert fewer and len(baselines) == 1
        self.k, self.varies, self.coverage, self.sequence = (
            2,
            device.varies,
            SimpleNamespace(),
            SimpleNamespace(round=3),
        )
        self.coverage.rounds, self.coverage.rows, self.coverage.worst, self.device = 4, 10, (device.worst, OUT), device

    def play(self, history):
        self.device.played.append([(one.right, one.offered, one.asked) for one in history[0].rounds])
        if len(self.device.played) == self.device.breaks:
            raise InvariantBroken("rows", "broken", PLACE)


def tried(ends, spare: int, said: str = "", breaks: int = 0, varies: bool = False, worst: float = 0.5):
    device = refused(said)
    device.describe = lambda: SimpleNamespace(k=2, max_positions=24)
    device.played, device.breaks, device.varies, device.worst = [], breaks, varies, worst
    boundary._try(ends, device, SimpleNamespace(ids=[1] * 8), 3, spare, exact=False, kept=None)
    return device.played


def test_what_fits_is_played_under_every_pattern_and_counted(monkeypatch):
    monkeypatch.setattr(boundary, "HistoryPlayer", Ended)
    ends = BoundaryOutcomes()
    both, none = (2, 2, None), (0, 2, None)
    assert tried(ends, 0) == [[both] * 3, [none] * 3, [both, none, both], [none, none, both]]
    assert tried(ends, 1, varies=True, worst=0.25)[-1] == [both, (0, 0, 0), both]
    assert ends == BoundaryOutcomes({0: "runs", 1: "runs"}, rounds=8, rows=20, worst=0.5)
    assert tried(ends, -1, "24 positions") == [] and ends.outcomes[-1] == "refused" and ends.admission is None


def test_what_fits_and_is_refused_or_breaks_is_placed(monkeypatch):
    monkeypatch.setattr(boundary, "HistoryPlayer", Ended)
    ends = BoundaryOutcomes()
    assert tried(ends, 0, "24 positions") == [] and ends.outcomes == {0: "wrong"}
    assert ends.admission.message.startswith("exactly at: refused though it fits (") and ends.contents is None
    ends = BoundaryOutcomes()
    assert len(tried(ends, 1, breaks=2)) == 2 and ends.outcomes == {1: "admitted"} and ends.admission is None
    line = "1 below, 24 positions, accept 0 of 2, … → round 3: broken"
    assert (ends.contents.message, ends.contents.place, ends.rounds) == (line, PLACE, 0)
    one = BoundaryOutcomes()
    tried(one, -1, breaks=1)
    said = "admitted though it breaks: 1 above, 24 positions, accept 2 of 2, … → round 3: broken"
    assert one.admission.message == said and one.outcomes == {-1: "admitted"}
    none = BoundaryOutcomes()
    tried(none, 0, breaks=1)
    assert none.admission is None and none.contents.message.startswith("exactly at, 24 positions")
    tried(ends, -2, breaks=3)
    above = "2 above, 24 positions, accept 2 of 2, accept 0 of 2, … → round 3: broken"
    assert ends.contents.message == line and ends.admission.message == f"admitted though it breaks: {above}"


def ran_clean(verdict: str, judged: int = 1) -> GateRun:
    return GateRun("verify", "numpy", ("p",), 2, judged, verdict)


def test_a_clean_run_that_fails_or_says_nothing_is_an_alarm_and_one_without_a_verdict_none():
    runs = [ran_clean(verdict) for verdict in ("pass", "warn", "fail", "inconclusive")]
    found = GateCalibration("golden", [*runs, ran_clean("not judged", 0)])
    assert (len(found.judged), found.alarms, found.warned, found.exit_code()) == (4, runs[2:], runs[1:2], 1)
    warned = GateCalibration("golden", runs[:2])
    assert (warned.exit_code(), warned.exit_code(strict=True)) == (0, 1)
    assert GateCalibration("golden", [ran_clean("not judged", 0)]).exit_code() == 3
    told = found.to_dict()
    assert (told["judged"], told["alarms"], told["warned"]) == (4, 2, 1)


def test_clean_gates_go_over_prompts_in_turn_devices_and_gates(monkeypatch, tmp_path):
    generated = SimpleNamespace(acceptance_length=(1, 2))
    prompts = [SimpleNamespace(id=f"p{n}", generated=generated) for n in range(4)]
    golden = SimpleNamespace(
        folder="golden", manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts, max_new_tokens=9))
    )
    part = lambda golden_, number, rounds, budget: (prompts[number], rounds, budget)  # noqa: E731
    monkeypatch.setattr(clean, "GoldenSlice", part)

    def join(parts):
        assert {one[1:] for one in parts} == {(2, 9)}
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=[one[0] for one in parts])))

    monkeypatch.setattr(clean, "JoinedGoldens", join)
    checks = {"verify": ("pass", "not judged"), "taps": ("not judged",), "batch": ("pass", "warn", "fail")}
    monkeypatch.setattr(clean, "run_gate", lambda context, name: result(*checks[name], name=name))
    told: list = []
    request = CleanGates(
        golden, lambda case, name, folder: name, ("a", "b"), ("verify", "taps", "batch"), 7, lambda *of: told.append(of)
    )
    found = clean.clean_gates(request)
    assert [(run.device, run.gate, "".join(run.prompts)) for run in found.runs] == [
        *((name, gate_, "p0p1p2") for name in "ab" for gate_ in ("verify", "taps", "batch")), ("a", "verify", "p1p2p3"),
    ]  # fmt: skip
    assert [(run.verdict, run.checks, run.judged, run.said) for run in found.runs[:3]] == [
        ("pass", 2, 1, ""), ("not judged", 1, 0, ""), ("fail", 3, 3, "n1: "),
    ]  # fmt: skip
    assert told[0] == (0, 7, "verify a p0, p1, p2") and told[-1] == (7, 7, "") and len(told) == 8


def test_a_device_that_offers_no_small_caches_is_filled_instead(monkeypatch):
    def small(context, ends):
        raise NotOffered("no max_positions")

    monkeypatch.setattr(boundary, "_small", small)
    monkeypatch.setattr(boundary, "_own", lambda context, judged: [("own", judged)])
    monkeypatch.setattr(boundary, "Looping", list)
    first, own = boundary.checks(SimpleNamespace(device=dict))
    assert (first.verdict, own) == ("not judged", ("own", False))
    assert first.evidence == "no max_positions: the device's own maximum is filled instead"
