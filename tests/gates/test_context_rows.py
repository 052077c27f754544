"""Floors, devices and runs of a gate's context, and what acceptance comes to, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.rows import HALF_ULP, StageRows
from parity.errors import Inconclusive, NotOffered, UsageError
from parity.gates import acceptance, context
from parity.gates.acceptance_counts import ForcedRounds
from parity.gates.acceptance_interval import Interval
from parity.gates.context import GateContext, NoiseFloors, _not_offered
from parity.golden.case import Generation
from parity.stages import declared

NAMES = declared(2, 1)
OUT = "target.layers.0.out"
RELATIVE = [0.01, 0.02, 0.03, 0.04, 0.05]


def floors(monkeypatch, errors=RELATIVE, kv_cache="", golden=None, nan: bool = False) -> NoiseFloors:
    """Rows of four ones; the floor of each is off in its first element, by twice this share."""
    rows = np.ones((len(errors), 4), np.float32)
    floor = rows.copy()
    floor[:, 0] += 2 * np.float32(errors)
    if nan:
        floor[0, 3] = np.nan
    number = np.arange(len(errors))
    made = StageRows(NAMES[OUT], rows, rows, floor, number * 0, number * 0, number)
    asked: list = []

    def stage_rows(golden_, run, named, device, mode):
        asked.append((named.name, device, mode))
        return made if golden is None else golden

    monkeypatch.setattr(context, "stage_rows", stage_rows)
    manifest = SimpleNamespace(case=SimpleNamespace(kv_cache=kv_cache))
    found = NoiseFloors(SimpleNamespace(declared=NAMES, folder="golden", manifest=manifest))
    found.asked = asked
    return found


def test_a_stages_noise_is_that_of_all_rows_of_the_noisy_tenth_and_its_crest(monkeypatch):
    found = floors(monkeypatch)
    assert found.pooled(OUT) == pytest.approx(np.sqrt(np.mean(np.square(RELATIVE))), rel=1e-5)
    assert found.noisy(OUT) == pytest.approx(0.046, rel=1e-5)  # 0.9 of the way through five rows
    assert found.crest(OUT) == pytest.approx(2, rel=1e-5)  # twice the RMS error of its row, in one of four elements
    assert found.asked == [(OUT, "float32", "chained")]  # once
    scores = np.float32([[3, 4], [0, 0]])
    assert found.rms(OUT, scores) == pytest.approx([0.046 * np.sqrt(12.5), 0], rel=1e-5)


def test_a_lucky_floor_is_half_a_ulp_and_one_that_is_too_wide_or_broken_bounds_nothing(monkeypatch):
    lucky = floors(monkeypatch, [0.0, 0.0])
    assert (lucky.pooled(OUT), lucky.noisy(OUT)) == (HALF_ULP, HALF_ULP)
    assert floors(monkeypatch, [0.08, 0.08]).pooled(OUT) == pytest.approx(0.08, rel=1e-5)
    with pytest.raises(Inconclusive, match=rf"^the noise floor of {OUT} is 9% of the golden: it bounds nothing$"):
        floors(monkeypatch, [0.09, 0.09]).pooled(OUT)
    with pytest.raises(
        Inconclusive, match=rf"^golden has NaN or Inf in {OUT} or its noise floor: its noise is unknown$"
    ):
        floors(monkeypatch, nan=True).noisy(OUT)
    without = SimpleNamespace(floor=None)
    with pytest.raises(Inconclusive, match=rf"^golden holds no float32 and bfloat16 {OUT}: its noise is unknown$"):
        floors(monkeypatch, golden=without).noisy(OUT)


def test_a_floor_of_many_rows_is_whole(monkeypatch):
    assert floors(monkeypatch, [0.01] * 300).noisy(OUT) == pytest.approx(0.01, rel=1e-5)


def test_a_gate_explores_500_histories_and_allows_a_twentieth_of_acceptance():
    plain = context.GateContext(None, "toy", None, "float32", None)
    assert (plain.histories, plain.seed, plain.bound) == (500, 0, 0.05)
    assert plain.rotate is plain.configs is plain.bounds is plain.rerun is None


def test_only_a_quantised_cache_lets_float32_rows_part(monkeypatch):
    plain, quantised = floors(monkeypatch), floors(monkeypatch, kv_cache="fp8_e4m3")
    assert not plain.flips and plain.flip_bound(OUT) == 0 and plain.asked == []
    assert quantised.flips and quantised.flip_bound(OUT) == pytest.approx(context._worst_rows(OUT) * 0.046, rel=1e-5)
    assert context._worst_rows(OUT) >= 3


class Built:
    """A factory whose devices say what they were built as; what it is asked for."""

    def __init__(self, refuses=None, computes=None):
        self.asked, self.refuses, self.computes = [], refuses or {}, computes

    def __call__(self, precision, **options):
        self.asked.append((precision, options))
        for wanted, error in self.refuses.items():
            if wanted == precision or wanted in options:
                raise error
        says = SimpleNamespace(precision=self.computes or precision, name="toy", modules=())
        return SimpleNamespace(describe=lambda: says)


def context_of(build, precision: str = "bfloat16", **more) -> GateContext:
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(k=4), producer=None), folder="golden")
    return GateContext(golden, "toy", build, precision, Path("runs"), **more)


def test_a_device_is_built_once_for_its_options_and_fresh_for_whoever_asks():
    build = Built()
    made = context_of(build)
    first = made.device()
    assert made.device() is first is made.device("bfloat16") is made.device(k=4)
    assert made.device("float32") is not first and made.device(k=5) is not first
    assert build.asked == [("bfloat16", {"k": 4}), ("float32", {"k": 4}), ("bfloat16", {"k": 5})]
    assert made.fresh("bfloat16") is not first and made.fresh("bfloat16", lanes=3) is not first
    assert build.asked[-1] == ("bfloat16", {"k": 4, "lanes": 3})
    first.process_ended = True
    assert made.device() is not first


def test_a_refused_precision_that_only_a_check_asks_for_is_not_offered():
    made = context_of(Built({"float32": UsageError("no float32"), "lanes": UsageError("no lanes")}))
    with pytest.raises(NotOffered, match=r"^toy does not offer float32: no float32$"):
        made.device("float32")
    with pytest.raises(UsageError, match=r"^no lanes$"):
        made.device(lanes=2)
    with pytest.raises(UsageError, match=r"^no lanes$"):
        made.device("float16", lanes=2)
    with pytest.raises(UsageError, match=r"^no bfloat16$"):
        context_of(Built({"bfloat16": UsageError("no bfloat16")})).device()


def test_a_precision_is_offered_where_the_device_says_that_it_computes_in_it():
    assert context_of(Built()).offers("float32") == "" and context_of(Built()).sharpest == "float32"
    other = context_of(Built(computes="bfloat16"))
    assert other.offers("float32") == "asked for it, the device says that it computes in bfloat16"
    assert other.sharpest == "bfloat16"
    refused = context_of(Built({"float32": NotOffered("no")}))
    assert refused.offers("float32").startswith("the device does not offer it (") and refused.sharpest == "bfloat16"
    with pytest.raises(ZeroDivisionError):
        context_of(Built({"float32": ZeroDivisionError("oh")})).offers("float32")
    with pytest.raises(UsageError):
        context_of(Built({"bfloat16": UsageError("no")})).offers("bfloat16")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotOffered("x"), True), (NotImplementedError(), True), (ValueError("no float32"), True),
        (ValueError("another PRECISION"), True), (ValueError("that dtype"), True), (ValueError("no"), False),
        (IndexError("float32"), False),
    ],
)  # fmt: skip
def test_a_device_says_that_it_lacks_a_precision_in_so_many_words(error, said):
    assert _not_offered(error, "float32") is said


def test_a_run_of_another_precision_or_device_is_refused(monkeypatch):
    monkeypatch.setattr(context, "refuse_less", lambda run: None)
    monkeypatch.setattr(context, "device_modules", lambda *of: ())
    monkeypatch.setattr(context, "digests", lambda modules: {"a.py": 1, "b.py": 2})

    def run(name="toy", sources=None, precision="bfloat16"):
        manifest = SimpleNamespace(
            producer=SimpleNamespace(name=name, sources=sources or {}),
            case=SimpleNamespace(precision=precision, mode="local"),
        )
        return SimpleNamespace(folder="run", command="--run run", manifest=manifest)

    made = context_of(Built())
    with pytest.raises(UsageError, match=r"^run is a run in float32, not in bfloat16$"):
        made.give(run(precision="float32"))
    mine = run(sources={"a.py": 1, "c.py": 3})
    made.give(mine)
    assert made.run("local") is mine and made.device() is not None
    other = context_of(Built())
    other.give(run("another"))
    with pytest.raises(UsageError, match=r"^run was made by another, --device toy is toy: "):
        other.device()
    changed = context_of(Built())
    changed.give(run(sources={"a.py": 0, "b.py": 0}))
    with pytest.raises(UsageError, match=r"^run was made before a.py, b.py changed: "):
        changed.device()


def told(lengths, drafts, finish="length", emitted=None) -> Generation:
    tokens = tuple(range(1 + sum(lengths))) if emitted is None else emitted
    return Generation(emitted=tokens, acceptance_length=lengths, accepted_drafts=drafts, finish=finish)


RIGHT, WRONG = told((3, 1), (2, 0)), told((3, 2), (2, 0))


def accepting(monkeypatch, recount=(), shown=()) -> SimpleNamespace:
    monkeypatch.setattr(acceptance, "_recount", lambda context: list(recount))
    monkeypatch.setattr(acceptance, "_shown", lambda context: list(shown))
    case = SimpleNamespace(ks=(3,), max_new_tokens=5, prompts=[SimpleNamespace(id="p0"), SimpleNamespace(id="p1")])
    return SimpleNamespace(golden=SimpleNamespace(manifest=SimpleNamespace(case=case)), bound=0.05, seed=0)


def test_counts_that_agree_add_up_on_both_sides(monkeypatch):
    found = acceptance.add_up(accepting(monkeypatch), [RIGHT] * 2, [RIGHT] * 2)
    one = "AL 2.000 = 1 + 0.500 + 0.500 + 0.000"
    assert (found.verdict, found.evidence) == ("pass", f"device {one}; reference {one}")
    assert found.figures["contradictions"] == [] and found.figures["device"]["rounds"] == 4


@pytest.mark.parametrize(
    ("device", "reference", "more", "first", "count"),
    [
        (
            [RIGHT, WRONG],
            [RIGHT, RIGHT],
            {},
            "device p1: round 2: length 2 with 0 accepted drafts; no cut explains it",
            2,
        ),
        (
            [RIGHT, RIGHT],
            [WRONG, RIGHT],
            {},
            "reference p0: round 2: length 2 with 0 accepted drafts; no cut explains",
            2,
        ),
        ([RIGHT, RIGHT], [RIGHT, RIGHT], {"recount": ["a"], "shown": ["b"]}, "a", 2),
        ([RIGHT, RIGHT], [RIGHT, RIGHT], {"shown": ["b"]}, "b", 1),
    ],
)
def test_the_first_contradiction_is_told(device, reference, more, first, count, monkeypatch):
    found = acceptance.add_up(accepting(monkeypatch, **more), device, reference)
    assert found.verdict == "fail" and f"; {count} contradictions, first {first}" in found.evidence


def test_ends_are_learnt_from_either_side_and_asked_of_the_device(monkeypatch):
    eos = told((3,), (2,), "eos", (0, 1, 2, 77))
    late = told((3, 1), (2, 0), emitted=(0, 1, 77, 3, 4))
    found = acceptance.add_up(accepting(monkeypatch), [RIGHT, late], [eos, RIGHT])
    assert found.figures["contradictions"] == ["device p1: it continues behind an end token"]
    found = acceptance.add_up(accepting(monkeypatch), [eos, RIGHT], [RIGHT, late])
    assert found.figures["contradictions"] == []  # the reference's ends are its own matter


def test_an_acceptance_that_does_not_add_up_is_no_verdict_and_rates_are_told(monkeypatch):
    context_ = accepting(monkeypatch)
    monkeypatch.setattr(acceptance, "paired_bootstrap", lambda device, reference, seed: Interval(-0.1, -0.2, 0.02))
    found, rates = acceptance.free(context_, [RIGHT] * 2, [told((4, 1), (3, 0))] * 2, True)
    line = (
        "device 2.000, reference 2.500: accepted drafts 1.000, 1.500; rounds of two tokens or more 50%, 50%; -10.0%, "
        "95 % limits [-20.0%, +2.0%]; 4 rounds, 2 prompts; too few: 354 rounds and 20 prompts are needed"
    )
    assert (found.verdict, found.evidence) == ("inconclusive", line)
    assert found.figures == {"relative": -0.1, "low": -0.2, "high": 0.02, "bound": 0.05, "rounds": 4, "prompts": 2}
    assert rates.verdict == "not judged" and rates.evidence.endswith(
        "1: 0.500 / 0.500, 2: 1.000 / 1.000, 3: 0.000 / 1.000"
    )
    found, _ = acceptance.free(context_, [RIGHT] * 2, [RIGHT] * 2, False)
    assert found.verdict == "inconclusive" and found.evidence.startswith("the counts do not add up; device 2.000, ")


def test_forced_rounds_are_paired_and_weighed(monkeypatch):
    context_ = accepting(monkeypatch)
    mine = [ForcedRounds(np.array([2, 1]), np.array([1, 0]), np.array([1.5, 1.25])), ForcedRounds(*[np.array([3])] * 3)]
    true = [ForcedRounds(np.array([2, 2]), np.array([1, 1]), np.array([1.5, 1.5])), ForcedRounds(*[np.array([3])] * 3)]
    monkeypatch.setattr(acceptance, "_all_forced", lambda context: (mine, true))
    seen = []

    def bootstrap(device, reference, seed):
        seen.append([part.tolist() for part in (device.tokens, device.rounds, reference.tokens, reference.rounds)])
        return Interval(-0.1, -0.2, -0.06)

    monkeypatch.setattr(acceptance, "paired_bootstrap", bootstrap)
    found = acceptance.teacher_forced(context_)
    assert seen == [[[3, 3], [2, 1], [4, 3], [2, 1]], [[2.75, 3], [2, 1], [3, 3], [2, 1]]]
    assert found.verdict == "inconclusive" and found.figures["rounds"] == 3
    assert found.evidence.startswith("device 2.000, reference 2.333; -10.0%, ")
    assert found.evidence.endswith(
        "; expected by the golden's logits 1.917, 2.000: -10.0%, 95 % limits [-20.0%, -6.0%]"
    )
    assert found.figures["expected"]["device"] == pytest.approx(5.75 / 3)

    def lacking(context):
        raise Inconclusive("no drafts")

    monkeypatch.setattr(acceptance, "_all_forced", lacking)
    assert acceptance.teacher_forced(context_).evidence == "no drafts"


def test_what_a_device_shows_of_each_round_has_the_length_it_says():
    tensors = {(1, "length"): np.array([2]), (1, "emitted"): np.array([5, 6]), (2, "length"): np.array([1]),
               (2, "emitted"): np.array([7, 8]), (3, "length"): np.array([9])}  # fmt: skip
    rows = {("bfloat16", 1, round_, "accept.length"): 1 for round_ in (1, 2, 3)}
    run = SimpleNamespace(
        rows=rows, folder="run", manifest=SimpleNamespace(case=SimpleNamespace(precision="bfloat16")),
        stored=lambda variant, prompt, round_, name: tensors.get((round_, name.removeprefix("accept."))),
    )  # fmt: skip
    prompts = [SimpleNamespace(id="p0"), SimpleNamespace(id="p1")]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    context_ = SimpleNamespace(golden=golden, run=lambda mode: run)
    assert acceptance._shown(context_) == ["device p1, round 2: shows length 1, emits 2"]
    del tensors[2, "length"]
    with pytest.raises(Inconclusive, match=r"^run lists accept.length in another precision than its own bfloat16$"):
        acceptance._shown(context_)
