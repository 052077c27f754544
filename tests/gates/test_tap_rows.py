"""Taps by hand: which chunk is which stream, of which row, and which token sits at which position; and repetitions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.errors import Inconclusive, NotShown
from parity.gates import taps
from parity.gates.rollback import repeat
from parity.gates.rollback.sameness import WithinNoise
from parity.gates.taps import CommittedTaps, stream_numbers, tapped_streams
from parity.stages import declared
from tests.gates.scripted import EXPERTS, Scripted

NAMES = declared(3, 1)
H = 4
STREAMS = ["target.embed", "target.layers.0.out", "target.layers.1.out", "target.layers.2.out"]
TAPPED = ["target.layers.0.out", "target.layers.2.out"]
OTHER = "target.layers.0.ffn_out"


def stream(name: str, first: int, rows: int, prompt: int = 0) -> np.ndarray:
    """Each row says its stage, its position and its prompt."""
    number = [*STREAMS, OTHER].index(name)
    return np.float32([[number, position, 10 * prompt, position * number] for position in range(first, first + rows)])


class Taken:
    """Two prompts of four tokens, two rounds each that emit two tokens and one: K = 2, p-eagle.

    The drafter's rows follow the target's: a round feeds the rows that its last pass left uncommitted.
    """

    folder = "golden"
    declared = NAMES

    def __init__(self, change=lambda prompt, round_, name, value: value, shown=lambda stage: True, forced=()):
        generated = SimpleNamespace(emitted=(21, 22, 23, 24), acceptance_length=(2, 1), accepted_drafts=(1, 0))
        prompts = [
            SimpleNamespace(id=f"p{n}", ids=(11, 12, 13, 14), generated=generated, generation=generated)
            for n in range(2)
        ]
        case = SimpleNamespace(prompts=prompts, precision="float32", drafts=lambda round_: 2, forced=forced)
        model = SimpleNamespace(family="p-eagle", num_layers=3)
        self.manifest = SimpleNamespace(
            case=case, model=model, stages=[*STREAMS, OTHER, "drafter.taps", "drafter.input_ids", "drafter.positions"]
        )
        self.view, self.change = SimpleNamespace(shows=shown), change

    def __hash__(self):
        return id(self)

    def stored(self, variant, prompt, round_, name):
        assert variant == "float32"
        start, count = [(0, 4), (4, 3), (6, 3)][round_]  # of the target's pass
        fed = [(0, 3), (3, 1), (4, 2)][round_]  # of the drafter's: positions and how many are committed
        if name in (*STREAMS, OTHER):
            value = stream(name, start, count, prompt)
        elif name == "drafter.taps":
            value = np.concatenate([stream(one, *fed, prompt) for one in TAPPED], axis=1)
        elif name == "drafter.input_ids":
            tokens = np.array([11, 12, 13, 14, 21, 22, 23, 24])
            value = np.r_[tokens[fed[0] + 1 : fed[0] + 1 + fed[1]], [7] * (round_ > 0)]
        elif name == "drafter.positions":
            value = np.arange(fed[0], fed[0] + fed[1] + (round_ > 0))
        else:
            return None
        return self.change(prompt, round_, name, value)


GOLDEN = Taken()


def test_the_streams_of_a_golden_are_found_by_their_rows():
    assert tapped_streams(GOLDEN) == TAPPED and stream_numbers(STREAMS) == [0, 1, 2, 3]


def changed(*places, to):
    return lambda prompt, round_, name, value: to(value.copy()) if (prompt, round_, name) in places else value


def shift(value):
    value[-1] += 1
    return value


@pytest.mark.parametrize(
    ("golden", "said"),
    [
        (Taken(changed((1, 2, "drafter.taps"), to=lambda x: x + 1)), "chunk 0 of the golden's drafter.taps is none of "
         "the golden's streams: drafter.taps is wrong; no tap can be judged by it"),
        (Taken(lambda prompt, round_, name, value: value * 0 if name in ("drafter.taps", *STREAMS) else value),
         "chunk 0 of the golden's drafter.taps could be target.embed or target.layers.0.out or target.layers.1.out or "
         "target.layers.2.out; no tap can be judged by it"),
        (Taken(changed((0, 0, "drafter.taps"), to=lambda x: x[:, :7])),
         "drafter.taps is 7 wide, which is no multiple of the hidden size 4"),
        (Taken(changed((0, 1, "drafter.taps"), to=lambda x: np.concatenate([x, x]))),
         "golden has 2 rows of drafter.taps in round 1 of prompt 0, not 1"),
        (Taken(changed((1, 2, "drafter.taps"), to=lambda x: None)),
         "golden has no rows of drafter.taps in round 2 of prompt 1, not 2"),
        (Taken(changed((0, 1, "target.embed"), to=lambda x: x[:1])),
         "golden lacks rows of target.embed in round 1 of prompt 0"),
    ],
)  # fmt: skip
def test_a_golden_whose_taps_are_no_stream_of_its_own_judges_nothing(golden, said):
    with pytest.raises(Inconclusive) as caught:
        tapped_streams(golden)
    assert str(caught.value) == said


def test_a_golden_without_every_stream_is_dumped_anew():
    for lacks in ("target.layers.1.out", "drafter.taps"):
        golden = Taken()
        golden.manifest.stages.remove(lacks)
        with pytest.raises(
            Inconclusive, match=r"^golden lacks drafter.taps or residual streams; dump it without --stage"
        ):
            tapped_streams(golden)


def test_taps_are_the_runs_own_streams_in_every_row():
    found = taps.tap_contents(GOLDEN, GOLDEN, TAPPED)
    assert (found.name, found.verdict, found.place) == ("2 taps, in_of [1, 3] = out_of [0, 2]", "pass", None)
    assert found.evidence == "bit for bit the run's own stream in all 12 rows of 6 rounds"
    assert found.figures == {"in_of": [1, 3], "rows": 12, "chunks": 24, "wrong": 0, "rounds": 6}


def taps_of(name: str, start: int, rows: int, prompt: int) -> np.ndarray:
    """Taps of which the first stream is another one, or begins elsewhere."""
    second = stream(TAPPED[1], *((3, 1) if rows == 1 else (4, 2)), prompt)
    return np.concatenate([stream(name, start, rows, prompt), second], axis=1)


@pytest.mark.parametrize(
    ("change", "bad", "place", "said"),
    [
        (changed((1, 2, "drafter.taps"), to=lambda x: taps_of(STREAMS[2], 4, 2, 1)), 2, (1, 2, 4),
         "chunk 0 should be target.layers.0.out, it is target.layers.1.out"),
        (changed((1, 2, "drafter.taps"), to=lambda x: taps_of(OTHER, 4, 2, 1)), 2, (1, 2, 4),
         "chunk 0 should be target.layers.0.out, it is target.layers.0.ffn_out"),
        (changed((0, 2, "drafter.taps"), to=lambda x: taps_of(STREAMS[1], 5, 2, 0)), 2, (0, 2, 4),
         "chunk 0 should be target.layers.0.out, it is target.layers.0.out of the position after"),
        (changed((0, 1, "drafter.taps"), to=lambda x: taps_of(STREAMS[1], 2, 1, 0)), 1, (0, 1, 3),
         "chunk 0 should be target.layers.0.out, it is target.layers.0.out of the position before"),
        (changed((0, 2, "drafter.taps"), (1, 1, "drafter.taps"), to=shift), 4, (1, 1, 3),
         "chunk 0 should be target.layers.0.out, it is no tensor of the target's"),
        (changed((0, 2, "drafter.taps"), to=lambda x: np.c_[x[:, :4], x[:, 4:] + [[0], [1]]].astype(np.float32)), 1,
         (0, 2, 5), "chunk 1 should be target.layers.2.out, it is no tensor of the target's"),
    ],
)  # fmt: skip
def test_a_chunk_that_is_another_tensor_is_placed_and_told(change, bad, place, said):
    found = taps.tap_contents(GOLDEN, Taken(change), TAPPED)
    assert found.verdict == "fail" and found.figures["wrong"] == bad
    assert found.place == Place("drafter.taps", None, *place)
    assert found.evidence == f"{bad} of 24 chunks are another tensor; {said}"


def test_a_run_that_is_too_narrow_or_hides_its_streams_is_not_judged():
    narrow = Taken(lambda prompt, round_, name, value: value[:, :4] if name == "drafter.taps" else value)
    with pytest.raises(Inconclusive, match=r"^drafter.taps is 4 wide, which is 1 streams and not 2$"):
        taps.tap_contents(GOLDEN, narrow, TAPPED)
    hidden = Taken(lambda prompt, round_, name, value: None if name == TAPPED[0] else value, lambda stage: False)
    with pytest.raises(NotShown, match=r"^the device does not show target.layers.0.out, of which its taps are made$"):
        taps.tap_contents(GOLDEN, hidden, TAPPED)


def test_rows_agree_bit_for_bit_in_the_taps_dtype():
    one = np.float32([[1, 2], [0.0, 3]])
    assert taps._equal(one, one).tolist() == [True, True] and taps._equal(one, -one * -1).tolist() == [True, True]
    assert taps._equal(one, np.float32([[1, 2], [-0.0, 3]])).tolist() == [True, False]
    assert taps._equal(one.astype(np.float16), one + np.float32(1e-5)).tolist() == [True, False]
    assert taps._equal(one, one[:, :1]).tolist() == [False, False]
    feed = CommittedTaps(0, 1, 0, 0, 7, one, np.array([[True, True], [True, False], [False, False]]))
    assert (feed.wrong, feed.position) == (3, 8)


PAIRS = "pairs (next token, hidden of the position before it)"


def test_each_row_carries_the_token_behind_its_position():
    found = taps.token_pairs(GOLDEN, GOLDEN, TAPPED)
    assert (found.name, found.verdict) == (PAIRS, "pass")
    assert found.evidence == (
        "row 0 of 2 prompts is (prompt token 1, hidden of position 0) at position 0; "
        "16 rows carry the token behind their position"
    )
    assert found.figures == {"rows": 16, "rounds": 6, "wrong_rounds": 0, "first_rows": 2}


def put(row: int, value: int):
    def to(given):
        given[row] = value
        return given

    return to


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (changed((1, 1, "drafter.input_ids"), to=put(0, 99)), ("drafter.input_ids", 1, 1, 3),
         "1 of 6 rounds: row 0 carries token 99, the one behind position 3 is 21"),
        (changed((0, 2, "drafter.input_ids"), (1, 1, "drafter.input_ids"), to=put(0, 99)),
         ("drafter.input_ids", 1, 1, 3), "2 of 6 rounds: row 0 carries token 99, the one behind position 3 is 21"),
        (changed((0, 2, "drafter.input_ids"), to=put(1, 99)), ("drafter.input_ids", 0, 2, 5),
         "1 of 6 rounds: row 1 carries token 99, the one behind position 5 is 23"),
        (changed((0, 0, "drafter.positions"), to=put(2, 9)), ("drafter.input_ids", 0, 0, 2),
         "1 of 6 rounds: row 2 sits at position 9, not 2"),
        (changed((0, 1, "drafter.positions"), to=put(1, 9)), ("drafter.input_ids", 0, 1, 4),
         "1 of 6 rounds: row 1 sits at position 9, not 4"),
        (changed((0, 1, "drafter.positions"), to=lambda x: x[:1]), ("drafter.input_ids", 0, 1, 3),
         "1 of 6 rounds: drafter.positions has not the 2 rows that are due"),
        (changed((0, 2, "drafter.input_ids"), to=lambda x: x[:2]), ("drafter.input_ids", 0, 2, 4),
         "1 of 6 rounds: drafter.input_ids has not the 3 rows that are due"),
        (changed((1, 0, "drafter.taps"), to=put(0, 0)), ("drafter.taps", 1, 0, 0),
         "1 of 6 rounds: row 0 is not paired with its hidden: chunk 0 should be target.layers.0.out, it is no tensor "
         "of the target's"),
    ],
)  # fmt: skip
def test_a_row_with_another_token_position_or_hidden_is_placed(change, place, said):
    found = taps.token_pairs(GOLDEN, Taken(change), TAPPED)
    stage, *where = place
    assert (found.verdict, found.evidence, found.place) == ("fail", said, Place(stage, None, *where))


def test_placeholders_are_one_and_the_same_id():
    ids = np.array([5, 6, 7, 7])
    assert taps._wrong_ids(ids, np.array([5, 6]), 2, 3, 1) == ("", 0)
    assert taps._wrong_ids(np.array([5, 6, 7, 8]), np.array([5, 6]), 2, 3, 1) == (
        "masked rows carry several placeholder ids", 2,
    )  # fmt: skip
    assert taps._wrong_ids(None, np.array([5]), 0, 3, 1)[0] == "drafter.input_ids has not the 1 rows that are due"
    assert taps._wrong_ids(ids, np.array([5, 9, 7, 7]), 0, 3, 0) == (
        "row 1 carries token 6, the one at position 4 is 9", 1,
    )  # fmt: skip
    assert taps._wrong_positions(None, 3, 2)[0] == "drafter.positions has not the 2 rows that are due"
    assert taps._wrong_positions(np.array([3, 4]), 3, 2) == ("", 0)


def test_what_a_device_hides_is_no_pass_and_a_golden_that_is_wrong_judges_nothing():
    hidden = Taken(shown=lambda stage: stage != "drafter.positions")
    found = taps.token_pairs(GOLDEN, hidden, TAPPED)
    assert found.verdict == "inconclusive" and found.evidence == (
        "the device does not show drafter.positions: with which token a hidden is paired is seen in what follows alone"
    )
    wrong = Taken(changed((1, 1, "drafter.input_ids"), to=put(0, 99)))
    with pytest.raises(Inconclusive) as caught:
        taps.token_pairs(wrong, GOLDEN, TAPPED)
    said = "the golden's own row 0 carries token 99, the one behind position 3 is 21 (prompt 1, round 1)"
    assert str(caught.value) == said
    found = taps.token_pairs(GOLDEN, GOLDEN, [])
    assert (found.name, found.verdict) == ("tokens at their own positions", "pass")
    assert found.evidence == "16 rows of 6 rounds carry the token at their position"


NOISE = SimpleNamespace(flips=False, flip_bound=lambda stage: 0.0)
WITHIN = WithinNoise(declared(2, 1), "float32", NOISE)
BASE = SimpleNamespace(ids=(1, 2, 3), prompt=4)


def repeating(change=lambda play, stage, value: value, eos=()) -> Scripted:
    """A device that plays the same, but for what is changed in one of its plays."""
    device = Scripted((5, 7, 8, 9), [[7, 8]], eos=eos)
    says = SimpleNamespace(eos=eos, k=2, family="p-eagle")
    device.describe = lambda: says
    plays, told, prefill = [0], device._tap, device.prefill

    def began(*of):
        plays[0] += 1
        return prefill(*of)

    device.prefill = began
    device._tap = lambda tap, stage, value: told(tap, stage, change(plays[0], stage, value))
    return device


def test_a_device_that_repeats_itself_is_compared_with_its_second_play():
    found = repeat.repeat_round(repeating(), BASE, WITHIN)
    assert (found.plays, found.differing, found.first, found.worst, found.place) == (2, 0, "", (0.0, ""), None)
    assert found.tensors == 2 * (2 + 6) and found.rounds == 1 and found.exact
    ended = repeat.repeat_round(repeating(eos=(5,)), BASE, WITHIN)
    assert (ended.tensors, ended.rounds) == (2 * 2, 0)
    first = repeat.repeat_round(repeating(lambda play, stage, x: x + (play == 1)), BASE, WITHIN)
    assert first.exact  # the first play is what every other one's choices are from


def test_the_first_stage_of_other_bits_and_the_worst_row_are_told():
    def change(play, stage, value):
        if play == 3 and stage == "verify.logits":
            value = value.copy()
            value[1, 0] += np.float32(1e-6)
        if play == 4 and stage == "target.layers.1.router_logits":
            value = value + np.float32(1e-7)
        return value

    found = repeat.repeat_round(repeating(change), BASE, WITHIN)
    assert (found.differing, found.first, found.place) == (2, "target.layers.1.router_logits", None)
    assert found.worst[1] == "verify.logits" and 0 < found.worst[0] < 1


def test_a_row_beyond_its_bound_is_placed_by_its_position():
    def change(play, stage, value):
        if play == 4 and stage == "verify.logits":
            value = value.copy()
            value[1, 0] += 1
        return value

    found = repeat.repeat_round(repeating(change), BASE, WITHIN)
    assert found.place == Place("verify.logits", None, 4, 1, 3 + 1) and found.worst[0] > 1
    found = repeat.repeat_round(
        repeating(lambda play, stage, x: x + (play > 2 and stage == "target.logits")), BASE, WITHIN
    )
    assert (found.differing, found.place) == (
        2,
        Place("target.logits", None, 4, 0, 0),
    ) and found.first == "target.logits"


def test_every_play_goes_on_with_the_first_ones_choices_drafts_and_tokens():
    device = repeating(lambda play, stage, x: x[:, ::-1] if play > 1 and stage == EXPERTS[0] else x)
    given, verify, commit = [], device.verify, device.commit
    device.drafts = [[7, 8]]
    device.verify = lambda drafts, tap: given.append(drafts.tolist()) or verify(drafts, tap)
    device.commit = lambda drafts, tokens, tap: given.append(tokens.tolist()) or commit(drafts, tokens, tap)
    forced, told = [], device._tap
    device._tap = lambda tap, stage, x: forced.append((stage, told(tap, stage, x))) or forced[-1][1]
    assert repeat.repeat_round(device, BASE, WITHIN).exact
    assert given == [[7, 8], [7, 8, 9]] * 4
    assert [x.tolist() for stage, x in forced if stage == EXPERTS[0]] == [[[0, 1]] * 3] * 4
