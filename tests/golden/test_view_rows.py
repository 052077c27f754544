"""Views by hand: rows that continue earlier rounds, prompts that are cut, and dumps of one prompt each as one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.case import Generation, PromptCase
from parity.golden.keeping import Record
from parity.golden.manifest import TensorRow, key
from parity.golden.views import DumpView, JoinedGoldens, JoinedSlices, PromptSlice
from parity.sampling import as_text
from parity.stages import declared

NAMES = declared(1, 1)
CACHE, EMBED = "kv.target.0.k", "target.embed"


class Part(SimpleNamespace):
    def model_copy(self, update):
        return Part(**vars(self) | update)


class Held(DumpView):
    """Tensors in memory: `{(variant, prompt, round, stage): (start, rows)}`."""

    imagined = False

    def __init__(self, tensors, prompts=(), **case):
        self.tensors = {place: np.asarray(value) for place, (_, value) in tensors.items()}
        rows = {
            place: TensorRow(
                key=key(*place[1:]), variant=place[0], axes=("S",), dtype="int64", shape=np.shape(value), start=start,
                shard=f"of prompt {place[1]}", sha256="",
            )
            for place, (start, value) in tensors.items()
        }  # fmt: skip
        told = {"max_new_tokens": 20, "k": 2, "kept": (), "positions": "", "forced": (), "shown": ()}
        manifest = Part(case=Part(**told | {"prompts": tuple(prompts)} | case), tensors=tuple(rows.values()), stages=())
        super().__init__(Path("/held"), manifest, NAMES, rows, {place: (row,) for place, row in rows.items()})

    def stored(self, *place):
        return self.tensors.get(place)


def cache(*rounds: tuple[int, list[int]], prompt: int = 0) -> dict:
    return {("float32", prompt, number, CACHE): rows for number, rows in enumerate(rounds)}


GROWN = Held(cache((0, [1, 2, 3]), (3, [4, 5]), (2, [30, 40, 50]), (5, [6])))
"""Of the third round the row 2 changed as well; the fourth adds one."""


@pytest.mark.parametrize(
    ("round_", "rows"), [(0, [1, 2, 3]), (1, [1, 2, 3, 4, 5]), (2, [1, 2, 30, 40, 50]), (3, [1, 2, 30, 40, 50, 6])]
)
def test_a_cache_is_the_latest_of_each_row(round_, rows):
    assert GROWN.contents("float32", 0, round_, CACHE).tolist() == rows
    record = GROWN.record_from(("float32", 0, round_, CACHE), 0)
    assert record.rows.tolist() == rows and record.index.tolist() == [*range(len(rows))]


def test_rows_are_read_from_one_on_and_not_further_back_than_that():
    def held(round_: int, start: int) -> list[tuple[int, int]]:
        record = GROWN.record_from(("float32", 0, round_, CACHE), start)
        return [*zip(record.index.tolist(), record.rows.tolist(), strict=True)]

    assert held(3, 5) == [(5, 6)] and held(3, 6) == []
    assert held(3, 4) == [(4, 50), (5, 6)] and held(3, 1) == [(1, 2), (2, 30), (3, 40), (4, 50), (5, 6)]
    less = Held({place: (GROWN.rows[place].start, GROWN.tensors[place]) for place in [*GROWN.rows][2:]})
    assert less.record_from(("float32", 0, 3, CACHE), 2).rows.tolist() == [30, 40, 50, 6]
    for read in (lambda: less.record_from(("float32", 0, 3, CACHE), 1), lambda: less.contents("float32", 0, 3, CACHE)):
        with pytest.raises(UsageError, match=rf"^/held: {CACHE} continues rows of round 1, which are missing$"):
            read()


def test_what_is_not_there_is_nothing():
    place = ("float32", 0, 9, CACHE)
    assert GROWN.contents(*place) is GROWN.record(*place) is GROWN.record_from(place, 0) is None
    assert GROWN.shards(*place) == [] and [rows.tolist() for rows in GROWN.shards("float32", 0, 1, CACHE)] == [[4, 5]]
    assert GROWN.record("float32", 0, 1, CACHE).index.tolist() == [3, 4] and GROWN.variants() == {"float32"}


@pytest.mark.parametrize(("case", "keeps"), [({}, False), ({"kept": ("x",)}, True), ({"positions": "1"}, True)])
def test_a_dump_keeps_less_where_its_case_says_so(case, keeps):
    assert Held({}, **case).keeps is keeps


def test_a_stage_is_followed_that_is_forced_and_shown_or_a_token():
    experts, tokens = "target.layers.0.experts", "target.tokens"
    whole = Held({}, forced=("target.layers.{l}.experts", "kv.target.{l}.k"))
    assert whole.forced == {experts, CACHE}
    assert {experts, CACHE, tokens, "verify.tokens", "accept.length"} <= whole.followed
    assert not {EMBED, "target.logits", "target.layers.0.out"} & whole.followed
    assert whole.follows(0, experts) and whole.follows(1, CACHE) and whole.follows(0, tokens)
    assert not whole.follows(0, EMBED)
    shown = SimpleNamespace(stages="kv.*", when="round", rows="all")
    part = Held({}, forced=("target.layers.{l}.experts", "kv.target.{l}.k"), shown=(shown,))
    assert part.forced == {CACHE} and part.follows(1, CACHE)
    assert not part.follows(0, CACHE) and not part.follows(1, experts) and part.follows(0, tokens)
    assert not Held({}).follows(0, experts) and Held({}).forced == set()


def prompt(name: str, lengths=(2, 1, 3), finish="eos", uniforms="", silent: bool = False) -> PromptCase:
    told = Generation(
        emitted=tuple(range(1 + sum(lengths))), acceptance_length=lengths,
        accepted_drafts=tuple(length - 1 for length in lengths), finish=finish,
    )  # fmt: skip
    return PromptCase(id=name, ids=(7,), generation=None if silent else told, uniforms=uniforms)


def two(**more) -> Held:
    places = [(v, p, r, EMBED) for v in ("float32", "bfloat16") for p in (0, 1) for r in range(4)]
    tensors = {place: (0, [place[1] * 10 + place[2]]) for place in places}
    return Held(tensors, [prompt("a"), prompt("b", **more)])


@pytest.mark.parametrize(
    ("rounds", "emitted", "lengths", "finish", "budget"),
    [
        (0, 1, (), "length", 1), (1, 3, (2,), "length", 3), (2, 4, (2, 1), "length", 4), (3, 7, (2, 1, 3), "eos", 20),
        (9, 7, (2, 1, 3), "eos", 20),
    ],
)  # fmt: skip
def test_a_prompt_is_cut_to_its_first_rounds_and_so_is_its_budget(rounds, emitted, lengths, finish, budget):
    view = PromptSlice(two(), 1, rounds)
    (case,), told = view.manifest.case.prompts, view.manifest.case.prompts[0].generation
    assert (case.id, told.emitted, told.acceptance_length) == ("b", tuple(range(emitted)), lengths)
    assert told.accepted_drafts == tuple(one - 1 for one in lengths) and told.finish == finish
    assert view.manifest.case.max_new_tokens == budget
    assert sorted({place[1:] for place in view.rows}) == [(0, round_, EMBED) for round_ in range(min(rounds, 3) + 1)]
    assert [view.stored("float32", 0, round_, EMBED).tolist() for round_ in range(min(rounds, 3) + 1)] == [
        [10 + round_] for round_ in range(min(rounds, 3) + 1)
    ]
    assert {row.shard for row in view.manifest.tensors} == {"of prompt 1"} == {
        row.shard for parts in view.parts.values() for row in parts
    }  # fmt: skip


def test_a_slice_reads_nothing_beyond_its_rounds():
    view = PromptSlice(two(), 1, 1)
    for place in (("float32", 0, 2, EMBED), ("float32", 1, 0, EMBED)):
        assert view.stored(*place) is view.record(*place) is None and view.shards(*place) == []
    assert view.record("bfloat16", 0, 1, EMBED).rows.tolist() == [11] and not view.settled
    assert view.shards("bfloat16", 0, 1, EMBED)[0].tolist() == [11]


def test_a_budget_that_is_named_is_the_views_and_a_silent_prompt_keeps_its_own():
    assert PromptSlice(two(), 1, 1, 11).manifest.case.max_new_tokens == 11
    view = PromptSlice(two(silent=True), 1, 1)
    assert view.manifest.case.max_new_tokens == 20 and view.manifest.case.prompts[0].generation is None


def test_random_numbers_are_cut_with_the_budget():
    numbers = np.random.default_rng(0).random((20, 4, 3)).astype(np.float32)
    held = two(uniforms=as_text(numbers))
    assert PromptSlice(held, 1, 1).manifest.case.prompts[0].uniforms == as_text(numbers[:3])
    assert PromptSlice(held, 1, 3).manifest.case.prompts[0].uniforms == as_text(numbers)
    assert PromptSlice(held, 1, 1, 20).manifest.case.prompts[0].uniforms == as_text(numbers)


def test_dumps_of_one_prompt_each_are_numbered_in_their_order():
    held = two()
    view = JoinedSlices([PromptSlice(held, 1, 1), PromptSlice(held, 0, 2)])
    assert [case.id for case in view.manifest.case.prompts] == ["b", "a"]
    assert [view.stored("float32", *place).tolist() for place in ((0, 0, EMBED), (0, 1, EMBED), (1, 2, EMBED))] == [
        [10], [11], [2],
    ]  # fmt: skip
    assert view.stored("float32", 0, 2, EMBED) is None and len(view.rows) == 2 * (2 + 3) == len(view.manifest.tensors)
    assert view.rows["bfloat16", 1, 0, EMBED].shard == "of prompt 0" == view.parts["float32", 1, 0, EMBED][0].shard
    assert view.record("float32", 1, 1, EMBED).rows.tolist() == [1] == view.shards("float32", 1, 1, EMBED)[0].tolist()


@pytest.mark.parametrize(
    ("flags", "all_", "any_"), [((0, 0), False, False), ((1, 0), False, True), ((1, 1), True, True)]
)
def test_joined_dumps_are_settled_where_all_are_and_imagined_where_any_is(flags, all_, any_):
    slices = [PromptSlice(two(), 0, 1) for _ in flags]
    for one, flag in zip(slices, flags, strict=True):
        one.imagined = bool(flag)
        one.whole = SimpleNamespace(settled=bool(flag))
    assert JoinedSlices(slices).settled is all_ and JoinedGoldens(slices).imagined is any_
    assert JoinedSlices(slices).sides != () and isinstance(GROWN.record("float32", 0, 0, CACHE), Record)
