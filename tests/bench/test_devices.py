"""Real devices: plain decoding through every wrapper, a tap that nobody watches, the work of a round, small benches."""

from __future__ import annotations

import json
import sys

import pytest

import parity.cli  # noqa: F401
from parity.bench.decoding import ByVerbs, plain
from parity.bench.request import SCENARIOS
from parity.bench.roofline import MACHINES, Peaks, plan_rounds, planned
from parity.errors import NotOffered, UsageError
from parity.factories import Factory, work_of
from parity.isolation import IsolatedFactory, ProcessLimits
from parity.limits import DRAFTS
from parity.seam import UNWATCHED, PlainDecoding, Unwatched, Work
from tests.sample import WHOLE
from tests.shallow import POSITIONS, cut_pair

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    sides = cut_pair(tiny, tmp_path_factory.mktemp("shallow"))
    return sides["target"], sides["drafter"]


@pytest.fixture(scope="module")
def device(pair):
    return Factory("numpy", *pair, 3)("float32", k=3)


def test_plain_decoding_is_the_devices_own_through_guard_and_process(pair, device):
    factory = IsolatedFactory("numpy", *pair, 3, ProcessLimits())
    isolated = factory("float32", k=3)
    assert isinstance(device, PlainDecoding) and isinstance(isolated, PlainDecoding)
    expected = [int(token) for token in device.decode_plain(PROMPT, 6)]
    assert [int(token) for token in isolated.decode_plain(PROMPT, 6)] == expected
    by_verbs = ByVerbs(device, drafts=False)({"one": PROMPT}, 6)
    assert by_verbs.sequences["one"].tokens == plain(device)({"one": PROMPT}, 6).sequences["one"].tokens == expected
    held = factory.process.peak_memory
    factory.process.end()
    assert held > 20 * 2**20  # an interpreter with NumPy is more than that


class Loud(Unwatched):
    """Nobody watches; whoever hands something over all the same is heard."""

    def __call__(self, stage, value):
        raise AssertionError(f"{stage} was handed over")


def test_a_device_hands_nothing_over_where_nobody_watches(device):
    first = device.prefill(PROMPT, 6, Loud())
    drafts = device.draft(Loud())
    emitted = device.commit(drafts, device.verify(drafts, Loud()), Loud())
    assert [first, *emitted] == [int(token) for token in device.decode_plain(PROMPT, 6)][: 1 + len(emitted)]
    assert UNWATCHED("target.embed", emitted) is emitted and UNWATCHED.ranks("target.embed", [emitted], "sum")


def test_the_work_of_a_round_grows_by_its_rows(pair):
    one, four = (work_of("numpy", *pair, k, 30, "bfloat16") for k in (1, 4))
    plain_rows, verify = one["plain"].flops, [works["verify"].flops for works in (one, four)]
    assert verify == pytest.approx([2 * plain_rows, 5 * plain_rows], rel=0.05)  # the caches differ by some rows
    assert four["verify"].bytes < 1.5 * one["verify"].bytes  # weights are read once
    halves = work_of("numpy,tp=2", *pair, 4, 30, "bfloat16")["verify"].flops / verify[1]
    assert 0.5 < halves < 0.65  # the router and the head's gathering stay whole


def test_the_target_step_is_the_product_of_its_matrices(pair):
    """By hand: all experts run on the one row."""
    config = json.loads((pair[0] / "config.json").read_text())
    hidden, heads, kv, size = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    inner, experts = config["intermediate_size"], config["num_local_experts"]
    attention = hidden * size * (heads + 2 * kv) + heads * size * hidden
    layer = attention + hidden * experts + experts * (hidden * 2 * inner + inner * hidden)
    weights = 2 * (2 * layer + hidden * config["vocab_size"])
    rows = 30 + 2 * 4 + 4 + 1  # of the caches, one of them for what is thrown away
    scores = 2 * 2 * 2 * heads * size * rows
    assert work_of("numpy", *pair, 4, 30, "bfloat16")["plain"].flops == pytest.approx(weights + scores, rel=0.01)


def test_a_roofline_is_bound_by_memory_or_by_arithmetic(pair):
    slow_memory, slow_arithmetic = Peaks(1e15, 1e9), Peaks(1e9, 1e15)
    for peaks, bound in ((slow_memory, "memory"), (slow_arithmetic, "arithmetic")):
        found = planned("numpy", pair, 4, [0.8], 30, "bfloat16", peaks)
        assert set(found.bound.values()) - {"memory"} <= {bound} and found.bound["verify"] == bound
        assert found.tokens == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096)
    assert planned("numpy", pair, 4, [0.8], 30, "bfloat16", slow_memory).speed_up > 2
    assert planned("numpy", pair, 4, [0.8], 30, "bfloat16", slow_arithmetic).speed_up < 1


def test_a_device_that_does_not_say_its_work_has_no_roofline(pair, monkeypatch):
    assert planned("parity.device.variants:shown", pair, 4, [0.8], 30, "bfloat16", MACHINES["trainium2"]) is None
    with pytest.raises(NotOffered, match="no function work"):
        plan_rounds("parity.device.variants:shown", "tiny", [4], [0.8], 30, "bfloat16", "trainium1")
    monkeypatch.setattr("parity.device.work", lambda *case: {"plain": Work(1, 1)})
    with pytest.raises(UsageError, match="says nothing of draft"):
        planned("numpy", pair, 4, [0.8], 30, "bfloat16", MACHINES["trainium2"])


def test_a_bench_of_the_numpy_engine(parity, pair, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "one", "ids": PROMPT}) + "\n")
    sides = ("--target", pair[0], "--drafter", pair[1], "--prompts", prompts, "--precision", "float32")
    out = {name: tmp_path / f"made.{name}" for name in ("json", "svg", "md")}
    how = ("--repeats", 2, "--max-new-tokens", 24 if WHOLE else 12, "--at-least", 0, "--clock", "processor")
    asked = ("-k", "1,2", *how, "--controller", "--roofline")
    made = ("--json", out["json"], "--plot", out["svg"], "--markdown", out["md"])
    ended = parity("bench", *sides, *asked, *made)
    assert ended.code == 0, ended.out + ended.err
    assert ended.last == "bench verdict: pass" and "numpy   controlled" in ended.out
    report = json.loads(out["json"].read_text())
    assert [cell["axes"]["decoding"] for cell in report["cells"]] == [
        "plain",
        "plain-by-verbs",
        "speculative",
        "speculative",
        "controlled",
    ]
    assert len(report["predictions"]) == 2 and all(one["roofline"] for one in report["predictions"])
    assert 1e8 < report["peaks"]["flops"] < 1e15 and 1e8 < report["peaks"]["bytes"] < 1e14
    assert out["svg"].read_text().startswith("<svg") and "prompts/short" in out["md"].read_text()
    again = parity("bench", "compare", out["json"], out["json"])
    # Two repeats of one prompt may have limits that hold half the rate.
    assert again.code in (0, 3) and again.out.count("1.00x") == again.out.count("no difference shown") == 8


def test_a_context_longer_than_the_model_is_raised_and_prefilled_in_chunks(parity, pair, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "one", "ids": PROMPT}) + "\n")
    sides = ("--target", pair[0], "--drafter", pair[1], "--prompts", prompts)
    asked = ("--context", 600, "--repeats", 1, "--warm-ups", 0, "--max-new-tokens", 3, "-k", 2, "--at-least", 0)
    # Of several lanes, so that plain decoding goes by verbs: a prefill of 600 rows is no little to subtract.
    ended = parity("bench", *sides, *asked, "--device", "numpy,lanes=2", "--memory", "--json", tmp_path / "long.json")
    assert ended.code == 0, ended.out + ended.err
    assert f"checkpoint: target: max_position_embeddings {POSITIONS} raised to 605" in ended.out
    plain_cell, speculative = json.loads((tmp_path / "long.json").read_text())["cells"]
    assert plain_cell["axes"]["context"] == "600"
    most, before = speculative["memory"]
    assert most > before > 20 * 2**20 and plain_cell["memory"] is None


def test_a_plan_needs_no_weights(parity, tmp_path):
    ended = parity("bench", "plan", "--acceptance", "0.8,0.7", "-k", "1-2", "--json", tmp_path / "plan.json")
    assert ended.code == 0 and "awsdocs-neuron" in ended.out
    rounds = json.loads((tmp_path / "plan.json").read_text())["rounds"]
    assert [one["k"] for one in rounds] == [1, 2] and rounds[1]["tokens"] == pytest.approx(2.36)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-k", "0"), "numbers of drafts"),
        (("-k", "4,4"), "4,4 names 4 twice"),
        (("-k", "1-3,2"), "1-3,2 names 2 twice"),
        (("-k", "3-1"), "3-1 ends before it begins"),
        (("--device", "numpy", "--device", "numpy"), "--device numpy is named twice"),
        (("-k", "2-99999999"), "no list of numbers"),
        (("--context", "long"), "--context long"),
        (("--field", "question"), "name a file"),
        (("--device", "numpi"), "neither one of"),
        (("--prompts", "nowhere.jsonl"), "cannot be read"),
        (("compare", "nowhere.json", "nowhere.json"), "nowhere.json"),
        (("plan", "--acceptance", "1.5"), "no list of probabilities"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_bad_input_is_one_sentence(parity, arguments, said):
    ended = parity("bench", *arguments)
    assert ended.code == 2 and said in ended.err and len(ended.err.strip().splitlines()) == 1, ended


def test_the_commands_choices_are_the_librarys():
    cli = sys.modules["parity.cli.bench"]  # the package has the command by that name
    assert tuple(SCENARIOS) == cli.SCENARIOS and ("this", *MACHINES) == cli.MACHINES and cli.MOST == DRAFTS


def test_a_file_that_is_no_bench_is_refused(parity, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    ended = parity("bench", "compare", tmp_path / "other.json", tmp_path / "other.json")
    assert ended.code == 2 and "is no file of `parity bench --json`" in ended.err


def test_the_clock_of_processors_is_said(parity, pair, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "one", "ids": PROMPT}) + "\n")
    sides = ("--target", pair[0], "--drafter", pair[1], "--prompts", prompts)
    ended = parity("bench", *sides, "--clock", "processor", "--scenario", "baseline", "--max-new-tokens", 24)
    assert ended.code == 0 and "processor time" in ended.out
