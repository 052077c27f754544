"""What a device is asked of its lives and lanes, by hand: which checks, of which prompts, cuts and neighbours."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.errors import NotOffered
from parity.gates import batch_seating, lifecycle
from parity.gates.batch_seating import Prompts, Seated, Stay
from parity.gates.gate import Check
from parity.gates.lifecycle_cases import Lives
from parity.gates.sampling import lanes as sampling_lanes
from parity.stages import declared

NAMES = declared(1, 1)
LANES = ("prefill_batch", "draft_batch", "verify_batch", "commit_batch")
ONE_LANE, AT_ONCE = NotOffered("one at a time"), NotOffered("at once")
CONTINUES, SAVES = ("prefill_from",), ("save", "restore")
CONTINUES_IN_LANES, SAVES_IN_LANES = ("prefill_from_batch",), ("save_batch", "restore_batch")


def device(*verbs: str, lanes: int = 1, k: int = 3):
    """A device that has these verbs, and is asked for none."""
    says = SimpleNamespace(precision="float32", k=k, lanes=lanes, eos=(), shown=(), samples=True)
    made = type("Toy", (), dict.fromkeys(verbs, lambda self, *of: None) | {"describe": lambda self: says})
    return made()


@pytest.fixture
def lived(monkeypatch):
    """The checks of a device, by name; what was asked of each, and on which lives."""

    def live(named, in_lanes=ONE_LANE, chunks=AT_ONCE, prompts=((1, 2), (3,), (4, 5, 6, 7))):
        asked: dict[str, tuple] = {}
        given: list[dict] = []

        def check(self, name, case, values=(), *more):
            asked[name] = (self, case.__name__, values)
            if name.endswith(", in lanes"):
                self.device.continued, self.device.beside = 2, 1
            return Check(name, "pass", "a line")

        def built(precision, **options):
            given.append(options)
            made = named if not options else in_lanes if "lanes" in options else chunks
            if isinstance(made, Exception):
                raise made
            return made

        monkeypatch.setattr(Lives, "check", check)
        monkeypatch.setattr(lifecycle, "stages_of", lambda says: {})
        model = SimpleNamespace(target=SimpleNamespace(constants={}))
        case = SimpleNamespace(prompts=[SimpleNamespace(ids=ids) for ids in prompts], k=3)
        golden = SimpleNamespace(manifest=SimpleNamespace(case=case, model=model))
        checks = [*lifecycle.checks(SimpleNamespace(device=built, sharpest="float32", golden=golden))]
        return {one.name: one for one in checks}, asked, given

    return live


def test_a_device_that_only_decodes_is_asked_for_the_next_prompt(lived):
    found, asked, given = lived(device())
    assert {name: check.verdict for name, check in found.items()} == {
        "the next prompt": "pass", "prefix hit": "not judged", "off-loaded and restored": "not judged",
        "prefill in chunks": "not judged", "in lanes": "not judged",
    }  # fmt: skip
    assert found["prefix hit"].evidence == "the device has no prefill_from (parity.seam.Continuing)"
    assert found["off-loaded and restored"].evidence == "the device has no save and restore (parity.seam.Saving)"
    assert found["prefill in chunks"].evidence == "the device prefills at once: at once"
    assert found["in lanes"].evidence == "the device runs one sequence at a time: one at a time"
    assert given == [{}, {"prefill_rows": 16}, {}, {"lanes": 3}] and asked["the next prompt"][1] == "after_another"


def test_a_device_that_continues_is_asked_at_every_cut_that_the_longest_prompt_has(lived):
    found, asked, _ = lived(device(*CONTINUES, *SAVES))
    lives, case, cuts = asked["prefix hit"]
    assert (lives.ids, lives.other, case, cuts) == ([4, 5, 6, 7], [3], "hit", [0, 1, 3])
    for what, cut in (("K + 1", 4), ("a chunk", 16)):
        check = found[f"prefix hit at {what}"]
        said = f"not exercised: cut at {what} ({cut}): the prompt has 4 tokens"
        assert (check.verdict, check.evidence) == ("not judged", said)
    assert not {"prefix hit at none", "prefix hit at one"} & {*found}
    assert asked["resumed after a stop"][1:] == ("resumed", ())
    assert asked[lifecycle.SEVERAL][1:] == ("resumed_behind_several", ([[4, 5, 6, 7], [1, 2], [3]],))
    assert asked["after an abort"][1:] == ("aborted", ("draft", "verify"))
    assert asked["off-loaded and restored"][1:] == ("restored", (0, 1))
    assert asked["off-loaded and restored as the second of two"][1:] == ("restored_second", (1,))


def test_of_one_prompt_the_other_is_itself_backwards(lived):
    _, asked, _ = lived(device(), prompts=((4, 5, 6),))
    assert (asked["the next prompt"][0].ids, asked["the next prompt"][0].other) == ([4, 5, 6], [6, 5, 4])


def test_a_prefill_in_chunks_is_played_on_a_device_that_does(lived):
    parts = device()
    _, asked, _ = lived(device(), chunks=parts)
    assert asked["prefill in chunks"][1:] == ("on_another", (parts,))


@pytest.mark.parametrize("where", ["in_lanes", "chunks"])
def test_what_is_no_refusal_is_raised(lived, where):
    with pytest.raises(ZeroDivisionError):
        lived(device(), **{where: ZeroDivisionError("a bug")})
    found, _, _ = lived(device(), **{where: ValueError("too small")})
    check = found["in lanes" if where == "in_lanes" else "prefill in chunks"]
    assert check.verdict == "not judged" and check.evidence.endswith("ValueError: too small")


@pytest.mark.parametrize("lanes", [device(*LANES, lanes=1), device(lanes=3)])
def test_a_device_of_one_lane_has_nobody_beside_it(lived, lanes):
    found, _, _ = lived(device(), in_lanes=lanes)
    assert (found["in lanes"].verdict, found["in lanes"].evidence) == ("not judged", "the device has one lane")


def test_in_lanes_what_is_offered_there_is_asked_beside_the_other_prompts(lived):
    """K + 1 of four and the last row: of a device that has lanes only when it is asked for them."""
    found, asked, _ = lived(device(), in_lanes=device(*LANES, *CONTINUES_IN_LANES, *SAVES_IN_LANES, lanes=3))
    lives, case, cuts = asked["prefix hit, in lanes"]
    assert (case, cuts, lives.ids) == ("hit", [3], [4, 5, 6, 7])
    others = {lane: (other.prompt, other.budget) for lane, other in lives.device._others.items()}
    assert others == {0: ([1, 2], 3 * 15), 2: ([3], 3 * 15)} and lives.budget == 15
    assert asked["resumed after a stop, in lanes"][1] == "resumed"
    assert asked["after an abort, in lanes"][1:] == ("aborted", ("verify",))
    assert asked["off-loaded and restored, in lanes"][1:] == ("restored", (1,))
    assert found["prefix hit, in lanes"].evidence.endswith("1 of 2 continuations beside sequences in mid-generation")


def test_a_device_that_always_has_lanes_is_asked_there_at_every_cut(lived):
    named = device(*LANES, *CONTINUES_IN_LANES, lanes=2)
    found, asked, given = lived(named, prompts=((4, 5, 6, 7),))
    lives, _, cuts = asked["prefix hit, in lanes"]
    assert cuts == [0, 1, 3] and given == [{}, {"prefill_rows": 16}, {}]
    assert {lane: other.prompt for lane, other in lives.device._others.items()} == {0: [7, 6, 5, 4]}
    check = found["off-loaded and restored, in lanes"]
    said = "the device has no save_batch and restore_batch (parity.seam.SavingInLanes)"
    assert (check.verdict, check.evidence) == ("not judged", said)
    check = lived(device(*LANES, *SAVES_IN_LANES, lanes=2))[0]["prefix hit, in lanes"]
    said = "the device has no prefill_from_batch (parity.seam.ContinuingInLanes)"
    assert (check.verdict, check.evidence) == ("not judged", said)


def test_a_sequence_is_alone_in_the_first_lane_or_on_a_device_of_one(monkeypatch):
    asked = []
    monkeypatch.setattr(Prompts, "seat", lambda self, stays, lanes: asked.append((stays, lanes)) or ["first", "second"])
    monkeypatch.setattr(Prompts, "_script", lambda self, stay: (SimpleNamespace(tensors={"a": 1}), "script"))
    monkeypatch.setattr(batch_seating, "perform", lambda device, script: asked.append((device, script)))
    stay, single, batched = Stay(2, 3), device(), device(*LANES, lanes=2)
    assert Prompts(None, batched).alone(stay) == "first" and asked.pop() == ([stay], [0])
    assert Prompts(None, single).alone(stay) == Seated(2, 0, {"a": 1}) and asked == [(single, "script")]


@pytest.mark.parametrize("schedule", [(), (2, 4)])
def test_a_stay_goes_by_the_goldens_choices_and_its_schedule(monkeypatch, schedule):
    asked = []
    monkeypatch.setattr(batch_seating, "View", lambda shown, names: "view")
    monkeypatch.setattr(batch_seating, "with_returned", lambda shown, names, returned: shown)
    monkeypatch.setattr(batch_seating, "truth_of", lambda golden, prompt: ("truth", prompt))
    monkeypatch.setattr(batch_seating, "forced_of", lambda mode, says, view: (mode, view))
    monkeypatch.setattr(batch_seating, "ties_of", lambda golden, says, view: "ties")
    monkeypatch.setattr(batch_seating, "ForcingTrace", lambda *of: SimpleNamespace(of=of))
    monkeypatch.setattr(batch_seating, "forced_rounds", lambda *of: asked.append(of) or iter(()))
    generated = SimpleNamespace(acceptance_length=(2, 1, 3))
    prompts = [SimpleNamespace(ids=(1,), generated=generated), SimpleNamespace(ids=(7, 8), generated=generated)]
    case = SimpleNamespace(prompts=prompts, max_new_tokens=6, schedule=schedule, drafts=lambda round_: 2)
    golden, toy = SimpleNamespace(declared=NAMES, manifest=SimpleNamespace(case=case)), device()
    trace, _ = Prompts(golden, toy)._script(Stay(1, 2))
    drafts = case.drafts if schedule else None
    assert asked.pop() == (toy, (7, 8), 6, trace, 2, drafts) and trace.grids == "ties"
    assert trace.of == (NAMES, ("truth", 1), ("chained", "view"))
    Prompts(golden, toy)._script(Stay(0, 9, budget=4))
    assert asked.pop()[1:5:3] == ((1,), 3)


def test_a_stay_of_fewer_drafts_goes_by_the_devices_own_choices(monkeypatch):
    case = SimpleNamespace(prompts=[SimpleNamespace(ids=(1, 2))], max_new_tokens=6)
    golden = SimpleNamespace(declared=NAMES, manifest=SimpleNamespace(case=case))
    monkeypatch.setattr(batch_seating, "free_trace", lambda names: "trace")
    monkeypatch.setattr(batch_seating, "_own", lambda *of: of)
    stay = Stay(0, 2, drafts=0)
    assert Prompts(golden, device())._script(stay) == ("trace", ("trace", (1, 2), 6, stay, ()))


def test_each_lane_draws_numbers_of_its_own_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(sampling_lanes, "table", lambda seed, budget, k: (seed, budget, k))
    case = SimpleNamespace(k=4)
    context = SimpleNamespace(seed=7, golden=SimpleNamespace(manifest=SimpleNamespace(case=case)))
    assert [sampling_lanes._numbers(context, lane, 9) for lane in (0, 2)] == [((7, 3, 0), 9, 4), ((7, 3, 2), 9, 4)]
    monkeypatch.setattr(sampling_lanes, "decisions", lambda seen, settings, vocabulary: [(seen, settings, vocabulary)])
    plays = [SimpleNamespace(settings="a"), SimpleNamespace(settings="b")]
    made = sampling_lanes._decided(plays, [[1, 2], [3]], "words")
    assert made == [[(1, "a", "words"), (2, "a", "words")], [(3, "b", "words")]]
    with pytest.raises(ValueError, match="zip"):
        sampling_lanes._decided(plays, [[1, 2]], "words")


def test_lanes_of_a_device_are_those_that_it_has_or_is_asked_for():
    named, other = device(*LANES, lanes=2), device(*LANES, lanes=3)
    context = SimpleNamespace(device=lambda **options: other if options == {"lanes": 3} else named)
    assert sampling_lanes._with_lanes(context) is named
    context.device = lambda **options: other if options == {"lanes": 3} else device()
    assert sampling_lanes._with_lanes(context) is other
    assert sampling_lanes.LANES == 3
