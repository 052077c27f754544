"""Evidence by hand: what bounds allow, what is a copy, what lies behind a flip, what no round does, where rows sit."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import evidence, lucky
from parity.compare.basis import Basis
from parity.compare.evidence import Copies, _alike, _due, lack
from parity.compare.exercised import not_exercised
from parity.compare.flips import Flips, differing, hidden_layers
from parity.compare.lucky import _doubtful, with_more_roundings
from parity.compare.passes import ChainPasses
from parity.compare.report import Place, StageResult
from parity.compare.rows import Clock, StageRows
from parity.errors import Inconclusive, UsageError
from parity.families import FAMILIES
from parity.metrics import measure
from parity.policy import Bound, Row, Tolerance
from parity.stages import declared

basis = import_module("parity.compare.basis")  # by module: the package's own `basis` is the function
NAMES = declared(3, 1)
OUT, FFN = "target.layers.0.out", "target.layers.0.ffn_out"
RANDOM = np.random.default_rng(0)
GOLDEN = RANDOM.normal(size=(20, 8)).astype(np.float32)
FLOOR = GOLDEN * np.float32(1.01)


def rows_of(name: str = FFN, golden=GOLDEN, device=None, floor=FLOOR, prompt=None, round_=None) -> StageRows:
    number = np.arange(len(golden))
    labels = (number * 0 if one is None else np.array(one) for one in (prompt, round_))
    return StageRows(NAMES[name], golden, golden if device is None else device, floor, *labels, number)


def policy(judge: str = "noise", copies: bool = False, **bounds: float) -> Row:
    made = {name: Bound(ok=0.0, warn=float(warn)) for name, warn in bounds.items()}
    return Row.model_construct(
        stages="*", judge=judge, bounds=made, copies=copies, reason="as a test has it", ulp=0, tolerances={}, modes=()
    )


def lacking(row: Row, allowed=None, device=None, golden=GOLDEN, floor=FLOOR, ulps: bool = False) -> str:
    rows = rows_of(golden=golden, device=golden * np.float32(1.001) if device is None else device, floor=floor)
    both = (measure(rows.golden, side, row_axes=1, ulps=ulps) for side in (rows.device, rows.floor))
    found = lack(rows, *both, row, allowed or {})
    return found.note if found else ""


NOTHING = "it bounds nothing"


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ({"l2": 0.249, "floor": 0.083}, ""),
        ({"l2": 0.25}, f"l2 lets a stage that is 25% wrong pass: {NOTHING}"),
        ({"median": 0.3}, f"median lets a stage that is 30% wrong pass: {NOTHING}"),
        ({"worst_row": 0.99, "largest": 0.99}, ""),
        ({"worst_row": 1.0}, f"worst row lets rows or elements that are 100% wrong pass: {NOTHING}"),
        ({"largest": 1.5}, f"largest lets rows or elements that are 150% wrong pass: {NOTHING}"),
        ({"floor": 0.084}, f"the noise floor is 8% of the golden: {NOTHING}"),
    ],
)
def test_a_bound_that_lets_a_quarter_or_a_whole_row_pass_bounds_nothing(allowed, said):
    assert lacking(policy(l2=1), allowed) == said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (policy("relative", l2=0.2), ""),
        (policy("relative", l2=0.25), f"l2 lets a stage that is 25% wrong pass: {NOTHING}"),
        (policy("relative", scale=0.3), f"scale lets a stage that is 30% wrong pass: {NOTHING}"),
        (policy("noise", scale=9), ""),
        (policy("relative", largest=1.2), f"largest lets rows or elements that are 120% wrong pass: {NOTHING}"),
        (policy("relative", largest=1.2, l2=0.1), ""),
        (policy("relative", unlike=0.3), f"unlike lets a stage that is 30% wrong pass: {NOTHING}"),
        (policy("relative", unlike=0.3, l2=0.1), ""),
        (policy("noise", r_ratio=24), ""),
        (policy("noise", r_ratio=26), f"r ratio lets a stage that is 26% wrong pass: {NOTHING}"),
        (policy("noise", top5_error=0.26), f"top5 error lets a stage that is 26% wrong pass: {NOTHING}"),
        (policy("noise", cosine_distance=0.029), ""),  # 1 - 1 / sqrt(1 + 0.25^2) is 0.0299
        (policy("noise", cosine_distance=0.031), f"cosine distance lets a stage that is 25% wrong pass: {NOTHING}"),
    ],
)
def test_bounds_that_are_no_multiples_of_a_floor_are_asked_too(row, said):
    assert lacking(row) == said


def test_a_tolerance_is_asked_by_its_absolute_part():
    size = float(np.sqrt((GOLDEN**2).mean()))
    for share, lacks in ((0.49, False), (0.51, True)):
        row = policy("relative", beyond_tolerance=2).model_copy(
            update={"tolerances": {"a": Tolerance(rtol=0.0, atol=share * size), "b": Tolerance(rtol=0.0, atol=9.0)}}
        )
        said = lacking(row)
        assert bool(said) is lacks and (
            not lacks or said.startswith("beyond tolerance lets rows or elements that are ")
        )


def test_a_bound_in_ulp_is_a_factor_of_two_at_the_most():
    device = GOLDEN.astype(np.float16)
    assert lacking(policy("relative", ulp_max=2.0**10 - 1), device=device, ulps=True) == ""
    said = f"its bound in ULP lets every element double in float16: {NOTHING}"
    assert lacking(policy("relative", ulp_max=2.0**10), device=device, ulps=True) == said
    far = policy("relative", ulp_beyond=0.1).model_copy(update={"ulp": 1023})
    assert lacking(far, device=device, ulps=True) == ""
    assert lacking(far.model_copy(update={"ulp": 1024}), device=device, ulps=True) == said


def test_a_golden_that_is_constant_or_not_there_says_nothing():
    assert lacking(policy(l2=1), golden=GOLDEN * 0 + 1).startswith("the golden is constant")
    assert lacking(policy(l2=1), device=GOLDEN * np.nan) == "there is no finite element on both sides"


COPY = "it is the golden bit for bit, which the bfloat16 reference is not: was the answer handed in?"


@pytest.mark.parametrize(
    ("device", "row", "floor", "said"),
    [
        (GOLDEN, policy(l2=1), FLOOR, COPY), (GOLDEN.astype(np.float16), policy(l2=1), FLOOR, COPY),
        (GOLDEN, policy(copies=True, l2=1), FLOOR, ""), (GOLDEN, policy("relative", l2=0.1), FLOOR, ""),
        (GOLDEN, policy(l2=1), GOLDEN, ""),
        (np.concatenate([GOLDEN[:1], GOLDEN[1:] * np.float32(1.001)]), policy(l2=1), FLOOR, ""),
    ],
)  # fmt: skip
def test_the_golden_itself_is_no_answer(device, row, floor, said):
    assert lacking(row, device=device, floor=floor) == said


def test_few_elements_are_alike_by_chance():
    few = GOLDEN[:7]  # 56 of them
    assert lacking(policy(l2=1), device=few, golden=few, floor=few * np.float32(1.01)) == ""
    enough = GOLDEN[:8]
    assert lacking(policy(l2=1), device=enough, golden=enough, floor=enough * np.float32(1.01)) == COPY


def test_only_tensors_of_more_than_one_rounding_are_due():
    floor = GOLDEN.copy()
    floor[:10, 0] += 1  # an eighth of the first tensor
    rows = rows_of(floor=floor, prompt=[0] * 10 + [1] * 10)
    assert _due(rows).tolist() == [True] * 10 + [False] * 10
    assert _due(rows_of(prompt=[0] * 13 + [1] * 7)).tolist() == [True] * 13 + [False] * 7  # 56 elements are few
    assert _due(rows_of(round_=[0] * 13 + [1] * 7)).tolist() == [True] * 13 + [False] * 7


def test_rows_are_alike_in_every_column():
    wide = np.tile(GOLDEN, (1, 2))
    other = wide.copy()
    other[3, 12] += 1
    other[5, 0] += 1
    assert np.flatnonzero(~_alike(wide, other)).tolist() == [3, 5]
    assert _alike(wide[:, :4].astype(np.float16), wide[:, :4].astype(np.float16).astype(np.float64)).all()


def copies_of(device, mode: str = "local", row=None, name: str = FFN, **labels) -> Copies:
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(kv_cache="")), declared=NAMES)
    found = Copies(golden, mode)
    found.look(rows_of(name, device=device, **labels), row or policy(l2=1))
    return found


@pytest.fixture
def no_other(monkeypatch):
    monkeypatch.setattr(evidence, "stage_rows", lambda *of, **more: None)


def result(stage: str = FFN, verdict: str = "pass", note: str = "") -> StageResult:
    return StageResult(stage, stage, 0, "noise", verdict, "", 20, note=note)


def test_a_prompt_of_which_half_the_rows_are_a_copy_is_inconclusive(no_other):
    device = GOLDEN * np.float32(1.001)
    device[10:15] = GOLDEN[10:15]
    labels = dict(prompt=[0] * 10 + [1] * 10)
    (noted,) = copies_of(device, **labels).noted_on([result()])
    said = "prompt 1 is the golden bit for bit in 5 of 10 rows of its prefill: was the answer handed in?"
    assert (noted.verdict, noted.note) == ("inconclusive", said)
    device[10] *= np.float32(1.001)
    assert copies_of(device, **labels).noted_on([result()]) == [result()]
    device[:10] = FLOOR[:10]
    later = copies_of(device, prompt=labels["prompt"], round_=[3] * 20)
    (noted,) = later.noted_on([result(verdict="fail", note="own")])
    assert (noted.verdict, noted.note) == ("fail", "own")
    (noted,) = later.noted_on([result()])
    said = "the golden's noise floor bit for bit in 10 of 10 rows of its verify rounds"
    assert noted.note == f"prompt 0 is {said}: was the answer handed in?"
    assert copies_of(device).noted_on([result("another"), result(verdict="not judged")]) == [
        result("another"), result(verdict="not judged"),
    ]  # fmt: skip


def test_bits_tell_only_where_sums_lie_between(no_other):
    assert copies_of(GOLDEN).copied and not copies_of(GOLDEN, name=OUT).copied
    assert copies_of(GOLDEN, "chained", name=OUT).copied  # all that is computed from a layer's halves
    assert not copies_of(GOLDEN, "chained", name="target.embed").copied
    assert not copies_of(GOLDEN, row=policy(copies=True, l2=1)).copied


EXPERTS = "target.layers.{}.experts"


def expert_rows(layer: int, differ, prompt, position) -> StageRows:
    golden = np.tile([0, 1], (len(differ), 1))
    device = np.where(np.array(differ)[:, None], [0, 2], [1, 0])
    labels = (np.array(prompt), np.array(prompt) * 0, np.array(position))
    return StageRows(NAMES[EXPERTS.format(layer)], golden, device, None, *labels)


def flips_of(monkeypatch, rows: dict[int, StageRows], forced=()) -> Flips:
    monkeypatch.setattr("parity.compare.flips.stage_rows", lambda golden, side, named: rows.get(named.layer))
    manifest = SimpleNamespace(
        model=SimpleNamespace(num_layers=3), case=SimpleNamespace(prompts=[0, 1]), stages=list(NAMES)
    )
    golden = SimpleNamespace(manifest=manifest, declared=NAMES)
    return Flips(golden, SimpleNamespace(sides=[SimpleNamespace(forced={EXPERTS.format(n) for n in forced})]))


def test_rows_lie_behind_a_flip_above_it_and_further_on(monkeypatch):
    rows = {
        0: expert_rows(0, [False, False, True], [0, 0, 0], [3, 4, 5]),
        1: expert_rows(1, [False, True, False], [0, 0, 0], [3, 4, 5]),
    }
    found = flips_of(monkeypatch, rows)
    assert found.places == {(0, 5), (0, 4)} and found.positions == {(0, 3), (0, 4), (0, 5)} and found.prompts == [0]
    assert found.first.tolist() == [[np.inf, 5, 4, 4], [np.inf] * 4]
    reached = {
        "target.embed": [], "target.layers.0.q": [], "target.layers.0.ffn_out": [5, 6], "target.layers.1.q": [5, 6],
        "target.layers.1.out": [4, 5, 6], "target.layers.2.out": [4, 5, 6], "target.logits": [4, 5, 6],
        "drafter.logits": [4, 5, 6],
    }  # fmt: skip
    for name, positions in reached.items():
        number = np.arange(7)
        there = StageRows(NAMES[name], number, number, None, number * 0, number, number)
        assert np.flatnonzero(found.reached(there)).tolist() == positions, name
        assert found.reach([NAMES[name]]) is bool(positions)
        other = replace(there, prompt=number * 0 + 1)
        assert not found.reached(other).any()
    assert flips_of(monkeypatch, rows, forced=(0, 1)).places == set()
    assert flips_of(monkeypatch, rows, forced=(1,)).places == {(0, 5)}


def test_experts_differ_as_sets():
    rows = expert_rows(0, [False, True], [0, 0], [0, 1])
    assert differing(rows).tolist() == [False, True]


def test_a_layer_hides_its_experts_where_the_run_neither_has_nor_shows_them():
    golden = SimpleNamespace(manifest=SimpleNamespace(
        model=SimpleNamespace(num_layers=3), stages=[EXPERTS.format(0), EXPERTS.format(1)]))  # fmt: skip
    for stages, shows, hidden in (([], False, [0, 1]), ([EXPERTS.format(0)], False, [1]), ([], True, [])):
        run = SimpleNamespace(
            manifest=SimpleNamespace(stages=stages), view=SimpleNamespace(shows=lambda name, shows=shows: shows)
        )
        assert hidden_layers(golden, run) == hidden


def test_choices_of_the_runs_own_are_counted_against_the_references_own_flips(monkeypatch):
    mine = {n: expert_rows(n, [True, False, True], [0] * 3, [0, 1, 2]) for n in range(2)}
    noise = {0: expert_rows(0, [True, False, False], [0] * 3, [0, 1, 2])}
    monkeypatch.setattr(
        basis, "stage_rows", lambda again, run, named, device=None: (noise if device else mine).get(named.layer)
    )
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(mode="chained")))
    differ, choices, explained = basis._counted(SimpleNamespace(declared=NAMES), run)
    assert (differ, choices) == (4, 6) and explained == pytest.approx(1.5 + 3 * (1.5 * 2.5) ** 0.5)
    noise.clear()
    assert basis._counted(SimpleNamespace(declared=NAMES), run)[2] == pytest.approx(3 * (1.5 * 2.5) ** 0.5)


def test_a_reference_that_cannot_be_asked_again_is_told():
    one, two = SimpleNamespace(sides=[1]), SimpleNamespace(sides=[1, 2])
    with pytest.raises(Inconclusive, match=r"^two runs are compared, of which each would need a reference of its own"):
        basis._once_more(None, two, [0], lambda *of: of)
    with pytest.raises(Inconclusive, match=r"^the reference was not run again with them, as"):
        basis._once_more(None, one, [0], None)
    assert basis._once_more("g", one, [0], lambda *of: of) == ("g", one, [0], True)


def test_rows_lack_evidence_behind_flips_or_where_nothing_is_known():
    rows = rows_of()
    assert not Basis(None, None).excluded(rows).any() and Basis(None, None, lack="why").excluded(rows).all()
    tokens = StageRows(NAMES["verify.tokens"], *[np.arange(3)] * 2, None, *[np.arange(3)] * 3)
    assert not Basis(None, None, lack="why").excluded(tokens).any()
    flips = SimpleNamespace(reached=lambda rows_: rows_.position > 1)
    assert Basis(None, None, flips).excluded(tokens).tolist() == [False, False, True]
    assert Basis(None, None, flips, lack="why").excluded(tokens).tolist() == [False, False, True]


BOUNDS = {"l2": (1.5, 3.0), "worst_row": (2.0, 3.0), "largest": (2.0, 3.0)}


def doubtful(verdict: str = "fail", bad_rows: int = 2, **x: float) -> StageResult:
    places = dict(first=Place(FFN, 0, 1, 0, 3), worst=Place(FFN, 0, 3, 0, 3))
    return replace(result(verdict=verdict), x=x, bounds=BOUNDS, bad_rows=bad_rows, **places)


@pytest.mark.parametrize(
    ("one", "is_doubtful"),
    [
        (doubtful(l2=1, worst_row=3.1), True), (doubtful(l2=1, worst_row=6.0, largest=5), True),
        (doubtful(l2=1, worst_row=6.1), False), (doubtful(l2=3.1, worst_row=3.1), False),
        (doubtful(l2=1, worst_row=3.1, bad_rows=3), False), (doubtful("warn", worst_row=3.1), False),
        (doubtful(l2=1, worst_row=3.0), False), (doubtful(worst_row=float("nan")), False),
        (doubtful(worst_row=3.1, unbounded=99), True),
    ],
)  # fmt: skip
def test_a_stage_is_in_doubt_that_fails_by_a_few_rows_alone_and_by_little(one, is_doubtful):
    assert _doubtful(one) is is_doubtful


def test_prompts_in_doubt_are_judged_by_more_roundings_where_a_reference_can_run(monkeypatch):
    monkeypatch.setattr(lucky, "RebasedGolden", lambda golden, again, prompts: (golden, again, prompts))

    def run(mode="chained", precision="bfloat16", sides=1, keeps=False, settled=False):
        case = SimpleNamespace(mode=mode, precision=precision)
        return SimpleNamespace(manifest=SimpleNamespace(case=case), sides=[1] * sides, keeps=keeps, settled=settled)

    def golden(roundings=1, keeps=False):
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(roundings=roundings)), keeps=keeps)

    on, bad = Basis("golden", "seen"), [doubtful(worst_row=3.1)]
    asked = []
    rerun = lambda *of: asked.append(of[1:]) or "again"  # noqa: E731
    found, prompts = with_more_roundings(golden(), run(), bad, on, rerun)
    assert (found.golden, prompts) == (("golden", "again", (1, 3)), (1, 3)) and asked == [("seen", (1, 3), True, 5)]
    same = (on, ())
    for one in (run("local"), run(precision="float32"), run(sides=2), run(keeps=True), run(settled=True)):
        assert with_more_roundings(golden(), one, bad, on, rerun) == same
    for one in (golden(5), golden(keeps=True)):
        assert with_more_roundings(one, run(), bad, on, rerun) == same
    assert with_more_roundings(golden(4), run(), bad, on, rerun)[1] == (1, 3)
    assert with_more_roundings(golden(), run(), [doubtful(worst_row=9)], on, rerun) == same
    assert with_more_roundings(golden(), run(), bad, on, None) == same

    def refused(*of):
        raise Inconclusive("no")

    assert with_more_roundings(golden(), run(), bad, on, refused) == same


def lived(accepted=((0, 1, 2, 0),), finish="eos", lengths=None, k=2, constants=None, partial=None, ids=10) -> list[str]:
    prompts = [
        SimpleNamespace(
            generation=1, ids=(1,) * ids,
            generated=SimpleNamespace(accepted_drafts=counts, emitted=(1,) * 6, finish=finish),
        )
        for counts in accepted
    ]  # fmt: skip
    case = SimpleNamespace(prompts=prompts, k=k, partial_kv=partial)
    model = SimpleNamespace(target=SimpleNamespace(constants=constants or {}))
    return list(not_exercised(SimpleNamespace(manifest=SimpleNamespace(case=case, model=model)), lengths or 1))


TWO = ((0, 1), (2, 0))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (dict(accepted=TWO), []),
        (dict(), ["a second sequence on the same device"]),
        (dict(accepted=TWO, lengths=2), ["a sequence that joins others"]),
        (dict(accepted=TWO, lengths=5), ["the last 3 of 5 lanes"]),
        (dict(accepted=((1,), (2,))), ["a round that rejects its first draft"]),
        (dict(accepted=((0,), (2,))), ["a round that accepts some of its drafts"]),
        (dict(accepted=((0,), (1,)), k=1), []),
        (dict(accepted=((0,), (1,))), ["a round that accepts all its drafts"]),
        (dict(accepted=TWO, finish="length"), ["a generation that an end token ends"]),
        (dict(accepted=TWO, constants={"sliding_window": 16}), ["a row behind the sliding window of 16"]),
        (dict(accepted=TWO, constants={"sliding_window": 15}), []),
        (dict(accepted=TWO, constants={"rope_parameters.original_max_position_embeddings": 64}),
         ["a position beyond the original context of 64"]),
        (dict(accepted=TWO, constants={"sliding_window": "16"}), []),
    ],
)  # fmt: skip
def test_what_no_round_of_a_golden_does_is_said(told, said):
    assert lived(**told) == said


def clock(family: str = "p-eagle", lengths=(2, 1), accepted=(1, 0)) -> Clock:
    generation = SimpleNamespace(acceptance_length=lengths, accepted_drafts=accepted)
    case = SimpleNamespace(id="p", ids=(1, 2, 3, 4), generation=generation)
    golden = SimpleNamespace(model=SimpleNamespace(family=family), case=SimpleNamespace(drafts=lambda round_: 3))
    return Clock.of(case, golden)


def test_rows_sit_behind_what_was_emitted_before():
    one = clock()
    assert (one.rounds, [one.length(n) for n in range(3)]) == (3, [4, 6, 7])
    assert [one.committed(n) for n in range(3)] == [3, 1, 2] and one.drafted == (3, 4, 6)
    assert [one.first("verify.logits", n, 0) for n in range(3)] == [0, 4, 6]
    assert [one.first("drafter.input_ids", n, 0) for n in range(3)] == [0, 3, 4]
    assert [one.first("drafter.logits", n, 0) for n in range(3)] == [0, 3, 5]
    assert one.first("kv.target.0.k", 2, 5) == 5 and one.first("drafter.layers.0.q", 2, 0) == 4
    block = clock("dflash")
    firsts = [block.first(f"drafter.{stage}", 1, 0) for stage in ("logits", "input_ids", "layers.0.q")]
    assert firsts == [5, 4, 4]
    assert block.first("drafter.taps", 1, 0) == block.drafted[0]
    bare = Clock.of(SimpleNamespace(id="p", ids=(1, 2), generation=SimpleNamespace(acceptance_length=(3,))))
    assert (bare.emitted, bare.length(1)) == ((1, 3), 5)
    with pytest.raises(UsageError, match=r"^the golden's prompt p has no generation: nothing says where its rows sit$"):
        Clock.of(SimpleNamespace(id="p", ids=(1, 2), generation=None))


def test_a_chain_is_computed_row_by_row_and_what_follows_its_drafts_comes_last():
    passes = ChainPasses((clock("eagle-3"),))
    drafting = lambda position, round_=1: Place("drafter.logits", None, 0, round_, position)  # noqa: E731
    assert [passes.number(drafting(position)) for position in (2, 3, 4, 5, None)] == [0, 0, 1, 2, 0]
    assert passes.number(drafting(5, 0)) == 0 and ChainPasses().number(drafting(5)) == 0
    assert passes.number(Place("verify.logits", None, 0, 1, 4)) == 6
    assert passes.later(drafting(4), drafting(3)) and not passes.later(drafting(3), drafting(2))
    assert not passes.later(drafting(4), drafting(5)) and not passes.later(drafting(4), drafting(4))
    assert passes.later(drafting(6, 2), drafting(4))
    verify = Place("verify.logits", None, 0, 1, 0)
    assert not passes.later(drafting(4), verify) and not passes.later(verify, drafting(3))
    golden = SimpleNamespace(manifest=SimpleNamespace(model=SimpleNamespace(family="p-eagle")))
    assert ChainPasses.of(golden).clocks == () and not FAMILIES["p-eagle"].chain
