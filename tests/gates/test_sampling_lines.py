"""What checks of the sampling gate come to, over made-up rounds: greedy rows, the rule alone, a distribution, lanes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.vocabulary import DraftVocabulary
from parity.errors import NotOffered
from parity.gates.gate import Check
from parity.gates.sampling import drawn, gate, lanes
from parity.gates.sampling.counts import CountLine
from parity.gates.sampling.drawn import Often
from parity.gates.sampling.rule import Off
from parity.seam import Sampling


def context_of(prompts: int = 2, **more) -> SimpleNamespace:
    case = SimpleNamespace(k=2, prompts=[SimpleNamespace(ids=(n,)) for n in range(prompts)])
    manifest = SimpleNamespace(case=case, model=SimpleNamespace(family="p-eagle"))
    return SimpleNamespace(
        golden=SimpleNamespace(manifest=manifest), seed=7, device=lambda **options: SimpleNamespace(**more)
    )


NAMED = DraftVocabulary(np.array([10, 11, 12]), "")


def greedy(number: int, tokens, drafts=(), decided=None) -> SimpleNamespace:
    """Rows whose largest logits are of 2, 0, 1, and drafts whose are of columns 0 and 1: 10 and 11."""
    return SimpleNamespace(
        round=number, tokens=np.array(tokens), drafts=np.array(drafts), logits=np.eye(3)[[2, 0, 1]][: len(tokens)],
        decided=len(tokens) if decided is None else decided, draft_logits=np.eye(3)[: len(drafts)] if drafts else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "verdict", "line"),
    [
        ([greedy(0, [2]), greedy(1, [2, 0, 1], [10, 11])], "pass", "2 rounds, 6 choices, each the largest logit's"),
        ([greedy(0, [2]), greedy(1, [2, 0, -1], [10, 11], 2)], "pass", "2 rounds, 5 choices, each the largest logit's"),
        ([greedy(0, [2]), greedy(1, [2, 1, 0], [10, 11])], "fail",
         "round 1, row 1: token 1, 0 is the largest; 2 wrong; 2 rounds, 6 choices"),
        ([greedy(0, [2]), greedy(1, [2, 0, 1], [10, 12]), greedy(2, [1])], "fail",
         "round 1, row 1: draft 12, 11 is the largest; 2 wrong; 3 rounds, 7 choices"),
    ],
)  # fmt: skip
def test_at_temperature_zero_every_choice_is_the_largest_logits(rounds, verdict, line, monkeypatch):
    asked = []
    monkeypatch.setattr(gate, "_play", lambda context, settings, prompt, uniforms: asked.append(
        (settings.temperature, prompt, uniforms.shape)) or rounds)  # fmt: skip
    found = gate._at_zero(context_of(), NAMED)
    assert (found.name, found.verdict, found.evidence) == ("temperature 0", verdict, line)
    assert asked == [(0, 0, (25, 4, 3))] and found.figures["choices"] == int(line.rpartition("rounds, ")[2].split()[0])


def off(by: float) -> Off:
    return Off(f"off by {by}", by, 0.0)


def test_the_rule_alone_is_judged_by_either_bound(monkeypatch):
    shares = iter([(8, off(1e-5)), (9, off(2e-4)), (10, off(0.0))] * 3)
    monkeypatch.setattr(gate, "fine_shares", lambda device, settings, seed: next(shares))
    for worst, verdict in ((off(1e-9), "pass"), (off(2e-9), "fail")):
        monkeypatch.setattr(gate, "whole_rounds", lambda device, settings, worst=worst: (100, worst))
        found = gate._rule_alone(context_of(), "match")
        assert (found.name, found.verdict) == ("rule alone, match", verdict)
        line = f"100 rounds, off by {worst.by:.1g} (bound 1e-09); 27 shares, off by 0.0002 (bound 0.00025), seed 7"
        assert found.evidence == (f"{worst}; {line}" if verdict == "fail" else line)
        assert found.figures["shares"] == 27 and found.figures["worst_share"] == 2e-4
    shares = iter([(8, off(1e-5)), (9, off(3e-4)), (10, off(float("nan")))])
    monkeypatch.setattr(gate, "whole_rounds", lambda device, settings: (100, off(0.0)))
    assert gate._rule_alone(context_of(), "match").verdict == "fail"

    def refused(device, settings):
        raise NotOffered("no such rule")

    monkeypatch.setattr(gate, "whole_rounds", refused)
    found = gate._rule_alone(context_of(), "match")
    assert (found.verdict, found.evidence) == ("not judged", "no such rule")


class Counting:
    """Counts that grow by the rounds, with these lines."""

    def __init__(self, ranks: int, *lines: CountLine):
        self.ranks, self.told, self.added = {0: [0] * ranks}, lines, []

    def add(self, seen, settings, vocabulary, random):
        self.added.append(seen)

    def lines(self):
        return iter(self.told)


def test_a_distribution_has_so_many_rounds_and_names_what_is_off_first(monkeypatch):
    monkeypatch.setattr(gate, "ROUNDS", 10)
    asked = []
    monkeypatch.setattr(gate, "_play", lambda context, settings, prompt, uniforms: asked.append(
        (prompt, float(uniforms[0, 0, 0]))) or ["round"] * 3)  # fmt: skip
    fine, wrong = CountLine("tokens", 9, 0.1, 0.1), CountLine("drafts", 9, 0.2, 0.1)
    counts = Counting(2, fine, wrong)
    found = gate._distribution(context_of(), Sampling(rule="match"), NAMED, counts, None)
    assert (found.name, found.verdict) == ("distribution, match", "fail")
    assert found.evidence.startswith("drafts, 9 samples: off by 0.200, bound 0.100; tokens, 9 samples: off by 0.100,")
    assert found.evidence.endswith("; error rate 1e-06 each, a bias of the bound's size shows every other time, seed 7")
    assert len(counts.added) == 9 and [prompt for prompt, _ in asked] == [0, 1, 0]
    assert len({number for _, number in asked}) == 3
    asked.clear()
    counts = Counting(10, fine)
    assert gate._distribution(context_of(), Sampling(), NAMED, counts, None).verdict == "pass" and asked == []
    assert found.figures["tokens"] == {"samples": 9, "off": 0.1, "bound": 0.1}


def test_rounds_are_replayed_under_both_settings_and_what_is_refused_is_not_judged(monkeypatch):
    asked = []

    def replayed(context, name, settings, vocabulary, number):
        asked.append((name, settings.top_k, number))
        if settings.top_k and asked[0][0] == "replay, match, plain" and context.seed == 8:
            raise NotOffered("no top-k")
        return Check(name, "pass", ""), [name], [lambda: {"bonus": [], "replacement": []}]

    monkeypatch.setattr(gate, "_replayed", replayed)
    monkeypatch.setattr(gate.steered, "check_of", lambda name, met, seed: (name, len(met)))
    monkeypatch.setattr(gate, "_distribution", lambda context, last, vocabulary, counts, random: last)
    monkeypatch.setattr(gate, "Counts", lambda: Counting(0))
    plain, processed, steered, last = gate._in_rounds(context_of(), "residual", NAMED)
    assert (plain.name, processed.name, steered) == (
        "replay, residual, plain", "replay, residual, processed", ("steered, residual", 2),
    )  # fmt: skip
    assert last == Sampling(rule="residual", **gate.PROCESSED)
    assert asked == [("replay, residual, plain", 0, 0), ("replay, residual, processed", 20, 1)]
    asked.clear()
    context = context_of()
    context.seed = 8
    plain, processed, steered, last = gate._in_rounds(context, "match", NAMED)
    assert (processed.verdict, processed.evidence, steered) == ("not judged", "no top-k", ("steered, match", 1))
    assert last == Sampling(rule="match", **gate.PLAIN)

    def refused(*of):
        raise NotOffered("nothing")

    monkeypatch.setattr(gate, "_replayed", refused)
    monkeypatch.setattr(gate, "_distribution", refused)
    assert [one.verdict for one in gate._in_rounds(context, "match", NAMED)] == ["not judged"] * 3


def test_prompts_are_replayed_by_numbers_of_their_own_and_again_by_tightened_ones(monkeypatch):
    asked = []

    def play(context, settings, prompt, uniforms, budget=None):
        asked.append((prompt, float(np.ravel(uniforms)[0])))
        return [f"round of {prompt}"]

    monkeypatch.setattr(gate, "_play", play)
    monkeypatch.setattr(gate, "refuse_own_numbers", lambda device: None)
    monkeypatch.setattr(gate, "decisions", lambda seen, settings, vocabulary: [f"decision in {seen}"])
    monkeypatch.setattr(gate, "tightened", lambda own, uniforms: uniforms + 1)
    monkeypatch.setattr(gate.steered, "made", lambda played, settings, vocabulary, uniforms, play_: played)
    monkeypatch.setattr(gate, "judged", lambda *of: of)
    check, rounds, steering = gate._replayed(context_of(3), "a name", Sampling(), NAMED, 1)
    own = [f"decision in round of {n}" for n in range(2)]
    assert check == ("a name", ["round of 0", "round of 1"], own, own, 7)
    assert rounds == ["round of 0", "round of 1"] and [made() for made in steering] == [["round of 0"], ["round of 1"]]
    assert [prompt for prompt, _ in asked] == [0, 0, 1, 1]
    assert asked[1][1] == pytest.approx(asked[0][1] + 1) and asked[0][1] != asked[2][1]
    assert len(gate._replayed(context_of(1), "a name", Sampling(), NAMED, 1)[1]) == 1


@pytest.mark.parametrize(
    ("shares", "verdict", "said"),
    [
        ([0.5001, 0.5], "pass", "; seed 7"), ([0.52, 0.5], "fail", "; seed 7"),
        ([None, 0.5], "pass", "; seed 7; not asked: no such rule"), ([None, None], "not judged", "no such rule"),
    ],
)  # fmt: skip
def test_outcomes_of_a_rule_of_its_own_numbers_are_judged_by_the_most_surprising(shares, verdict, said, monkeypatch):
    def asked(share):
        def often(device, settings, seed):
            if share is None:
                raise NotOffered("no such rule")
            return Often((1, 2), share, 0.5, 50_000)

        return often

    monkeypatch.setattr(drawn, "known_rounds", asked(shares[0]))
    monkeypatch.setattr(drawn, "random_rounds", asked(shares[1]))
    found = drawn.rule_drawn(context_of(), "match", {})
    assert (found.name, found.verdict) == ("rule alone, match", verdict) and found.evidence.endswith(said)
    if verdict != "not judged":
        share = shares[0] or 0.5
        assert found.evidence.startswith(
            f"1 accepted ([1]), then token 2: {share:.4f} of 50000 rounds instead of 0.5000"
        )
        assert found.figures["share"] == share


def test_two_coins_part_by_kullback_and_leibler():
    due = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert drawn._divergence(0.25, 0.5) == pytest.approx(due)
    assert Often((1,), 0.25, 0.5, 100).surprise == pytest.approx(100 * due / np.log(2e6))
    assert drawn._divergence(0.0, 0.5) == pytest.approx(np.log(2)) == drawn._divergence(1.0, 0.5)
    assert drawn._divergence(0.3, -1e-12) == drawn._divergence(0.3, 1 + 1e-12) == np.inf


class Alike:
    """A rule that always emits the same tokens."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def decide(self, settings, target, draft, drafts, uniforms):
        return np.tile(self.tokens, (len(drafts), 1))


def test_the_least_likely_share_of_a_rule_that_always_says_the_same_is_told(monkeypatch):
    monkeypatch.setattr(drawn, "DRAWN", 400)
    found = drawn.known_rounds(Alike(3, 3, 3), Sampling(rule="match"), 7)
    assert found.emitted[0] == 3 and found.rounds == 400 and found.surprise > 10
    due = {(3,): 0.5 * 7 / 8, (3, 3): 0.5 / 8 * 1 / 8 * 3 / 4}
    assert found.share == pytest.approx(7 / 8, abs=0.08) and found.due == pytest.approx(due[3,])


def boxed(named: int = 1, lanes: int = 3, samples: bool = True, refuses=None, own: bool = False):
    """A context whose device has lanes as an option, and what was asked."""
    says = SimpleNamespace(lanes=lanes, samples=samples, own_numbers=own)
    context = context_of(2)

    def device(**options):
        if options and refuses:
            raise refuses
        return SimpleNamespace(describe=lambda: says)

    context.device = device
    return context


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (boxed(refuses=NotOffered("no lanes")), "no lanes"), (boxed(lanes=1), "the device has one lane"),
        (boxed(samples=False), "the device does not sample in lanes (`SamplesInLanes`)"),
        (boxed(own=True), "own_numbers"),
    ],
)  # fmt: skip
def test_a_device_that_does_not_sample_in_lanes_is_not_judged(context, said):
    found = lanes.in_lanes(context, [Sampling()], NAMED, 6)
    assert (found.name, found.verdict) == ("replay, in lanes", "not judged") and said in found.evidence


def test_every_lane_samples_under_settings_of_its_own_and_again_in_reverse(monkeypatch):
    played = []

    def together(device, plays, lanes_):
        played.append(([(play.settings.temperature, play.prompt, play.ids) for play in plays], list(lanes_)))
        return [[f"round of {play.prompt}"] for play in plays]

    monkeypatch.setattr(lanes, "sampled_together", together)
    monkeypatch.setattr(lanes, "decisions", lambda seen, settings, vocabulary: [(seen, settings.temperature)])
    monkeypatch.setattr(lanes, "tightened", lambda made, uniforms: uniforms)
    monkeypatch.setattr(lanes, "judged", lambda *of: of)
    settings = [Sampling(temperature=1.0), Sampling(temperature=2.0)]
    _, rounds, made, again, seed = lanes.in_lanes(boxed(), settings, NAMED, 6)
    told = [(1.0, 0, (0,)), (2.0, 1, (1,)), (1.0, 0, (0,))]
    assert played == [(told, [0, 1, 2]), (told, [2, 1, 0])] and seed == 7
    assert rounds == ["round of 0", "round of 1", "round of 0"]
    assert made == again == [("round of 0", 1.0), ("round of 1", 2.0), ("round of 0", 1.0)]
