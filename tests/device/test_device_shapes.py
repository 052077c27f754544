"""The shape engine says what the real one does, and the published configs give the shapes that are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import pytest

from parity import device
from parity.bundled import published_configs
from parity.device.assembly import assemble
from parity.device.engines.reordered import Order, engine
from parity.device.engines.shape_engine import ShapeEngine
from parity.device.inventory import Inventory, Run, take_inventory
from parity.errors import UsageError
from tests.sample import by_night, first

CONFIGS = published_configs()
SHORT = Run(4, 40, 4)


@dataclass(frozen=True)
class Noting(Order):
    """An order of sums that notes what it multiplies: (batch, M, K, N)."""

    seen: Counter = field(default_factory=Counter, compare=False)

    def contract(self, left, right):
        self.seen[
            (prod(np.broadcast_shapes(left.shape[:-2], right.shape[:-2])), *left.shape[-2:], right.shape[-1])
        ] += 1
        return super().contract(left, right)


def multiplied_by_numpy(pair, run: Run) -> Counter:
    """What the numpy engine multiplies where every round rejects all drafts."""
    order = Noting()
    pipeline = assemble(*pair, run.k, run.precision, engine("numpy", order), None, run.tp, run.moe)
    pipeline.prefill(np.arange(1, run.prompt + 1), run.tokens)
    while not pipeline.finished:
        drafts = pipeline.draft()
        verified = pipeline.verify(drafts)
        verified[0] = (drafts[0] + 1) % pipeline.target.config.vocab
        pipeline.commit(drafts, verified)
    return order.seen


def listed(found: Inventory) -> Counter:
    """Calls by (batch, M, K, N)."""
    calls = Counter()
    for gemm, places in found.tally.gemms.items():
        calls[(gemm.batch, gemm.m, gemm.k, gemm.n)] += places.total()
    return calls


@pytest.fixture(scope="module")
def large():
    """Inventories of the published pairs, by name."""
    return {
        name: take_inventory(CONFIGS / f"gpt-oss-{name}", CONFIGS / f"p-eagle-{name}", Run(4, 128, 3))
        for name in first(["20b", "120b"])
    }


@pytest.mark.parametrize(
    ("precision", "moe"), [("bfloat16", "masked"), ("float32", "masked"), ("bfloat16", "gathered")]
)
def test_it_multiplies_what_the_numpy_engine_multiplies(pair, precision, moe):
    run = replace(SHORT, precision=precision, moe=moe)
    found = take_inventory(*pair, run)
    assert listed(found) == multiplied_by_numpy(pair, run) and found.rounds == run.tokens - 1


def test_weights_need_not_be_there(pair, tmp_path):
    for folder in pair:
        copy = tmp_path / folder.name
        copy.mkdir()
        (copy / "config.json").write_text((folder / "config.json").read_text())
    found = take_inventory(tmp_path / "target", tmp_path / "drafter", SHORT)
    assert found.to_dict() == take_inventory(*pair, SHORT).to_dict()


@pytest.mark.parametrize(("name", "experts"), first([("20b", 32), ("120b", 128)]))
def test_the_published_pairs_have_the_shapes_of_their_papers(large, name, experts):
    shapes = {str(gemm): gemm for gemm in large[name].gemms()}
    known = {
        "128x8640x2880": "the drafter's fusion, three taps wide, in prefill",
        "8x8640x2880": "and in a draft of 2K rows",
        "8x5760x4096": "the midlayer's q over embedding and hidden",
        "5x2880x4096": "the target's q in a verify of K + 1 rows",
        "5x2880x201088": "the head",
        f"{experts}x5x2880x2880": "experts",
        f"5x2880x{experts}": "router",
        "8x2880x14336": "the drafter's MLP",
    }
    assert set(known) <= set(shapes)
    gate = next(gemm for gemm in large[name].gemms(["verify"]) if gemm.batch == experts and gemm.shared)
    assert (gemm := shapes["5x2880x4096"]).dtype == gate.dtype == "float32" and gemm.values == "bfloat16"
    assert shapes["8x8640x2880"].dtype == "bfloat16"


def test_where_and_how_often(large):
    rows = {(row["m"], row["k"], row["n"], row["shared"]): row for row in large["20b"].to_dict()["gemms"]}
    gate = rows[5, 2880, 2880, True]
    kinds = {place["kind"]: place["calls"] for place in gate["places"]}
    assert kinds == {"sliding": 2 * 12 * 2, "full": 2 * 12 * 2}, "gate and up of 12 layers of each kind in 2 rounds"
    assert {(place["phase"], place["side"], place["weight"]) for place in gate["places"]} == {
        ("verify", "target", "mlp.experts.gate_up_proj")
    }
    (fusion,) = rows[8, 8640, 2880, False]["places"]
    assert fusion == {"phase": "draft", "side": "drafter", "weight": "fc", "kind": "", "calls": 2}


def test_a_longer_acceptance_needs_fewer_rounds(pair):
    assert take_inventory(*pair, replace(SHORT, tokens=9, emitted=4)).rounds == 2


@by_night
def test_no_round_compiles_anew(pair):
    """Beyond the first two rounds (the first draft's taps are the prompt's) programs follow the span alone."""
    few, many = (take_inventory(*pair, replace(SHORT, prompt=64, tokens=tokens)) for tokens in (4, 24))
    assert set(few.tally.programs) == set(many.tally.programs)
    mixed = take_inventory(*pair, replace(SHORT, prompt=64, tokens=24, emitted=3))
    assert set(mixed.tally.programs) == set(many.tally.programs), "whatever is accepted"


def test_a_watched_pass_multiplies_the_same_in_smaller_programs(pair):
    plain, watched = (take_inventory(*pair, replace(SHORT, watched=watched)) for watched in (False, True))
    assert plain.tally.gemms == watched.tally.gemms
    kernels = [{program.kernel for program in found.tally.programs} for found in (plain, watched)]
    assert (
        "parity.device.kernels.target_layer.target_layer" in kernels[0] - kernels[1]
        and "parity.device.kernels.attention.attend" in kernels[1] - kernels[0]
    )


def test_a_program_is_listed_with_all_it_is_compiled_for(pair):
    found = take_inventory(*pair, replace(SHORT, watched=True)).to_dict(["verify"])
    attend = next(one for one in found["programs"] if one["kernel"].endswith("attend"))
    assert attend["arrays"][0] == "bfloat16[1, 5, 6, 20]" and attend["arrays"][3] == "bool[1, 5, 64]"
    assert all(set(one["calls"]) == {"verify"} for one in found["programs"])


@pytest.mark.parametrize("run", [replace(SHORT, emitted=6), replace(SHORT, prompt=90), replace(SHORT, k=9)])
def test_a_run_that_cannot_be_is_refused(pair, run):
    with pytest.raises(UsageError):
        take_inventory(*pair, run)


@pytest.fixture
def shape():
    """Makes a float32 array of a shape."""
    made = ShapeEngine(lambda gemm, name: None, lambda kernel, arguments: None)
    return lambda *axes: made.array(np.zeros(axes, np.float32))


def test_shapes_that_do_not_fit_are_errors(shape):
    with pytest.raises(ValueError, match="matmul"):
        np.matmul(shape(2, 3), shape(4, 5))
    with pytest.raises(ValueError, match="concatenate"):
        np.concatenate([shape(2, 3), shape(2, 4)], axis=0)
    with pytest.raises(ValueError, match="broadcast"):
        shape(2, 3) + shape(4)
    cache = shape(1, 9, 2)
    with pytest.raises(ValueError, match=r"remapped|broadcast"):
        cache[0, :4] = shape(5, 2)


def test_what_is_outside_the_dialect_is_an_error(shape):
    for call in (lambda: np.linalg.norm(shape(3)), lambda: np.add.reduce(shape(3)), lambda: np.sort(shape(3))):
        with pytest.raises(NotImplementedError):
            call()


def test_multiply_is_the_linear_layers_own():
    random = np.random.default_rng(0)
    left, right = random.standard_normal((2, 3, 5), np.float32), random.standard_normal((2, 5, 4), np.float32)
    assert device.multiply(left, right, "float32") == pytest.approx(left @ right, rel=1e-5)
    assert device.multiply(left[0], right[0], "float32").shape == (3, 4)
    with pytest.raises(UsageError, match="engine"):
        device.multiply(left, right, "float32", engine="abacus")


def test_a_rank_multiplies_its_share(large):
    """TP = 4 of the published pair: heads, intermediate columns and vocabulary in four, the rest whole."""
    pair = CONFIGS / "gpt-oss-20b", CONFIGS / "p-eagle-20b"
    ranked = {str(gemm) for gemm in take_inventory(*pair, Run(4, 128, 3, tp=4)).gemms(["draft", "verify"])}
    assert {"5x2880x1024", "5x1024x2880", "5x2880x128", "32x5x2880x720", "32x5x720x2880", "5x2880x50272"} <= ranked
    assert {"2x40x64x192", "8x2880x3584", "8x8640x2880", "5x2880x32"} <= ranked
    with pytest.raises(UsageError, match="ranks"):
        take_inventory(*pair, Run(4, 128, 3, tp=7))


@by_night
@pytest.mark.parametrize("watched", [False, True])
def test_a_rank_multiplies_what_the_ranks_of_the_numpy_engine_multiply(tiny, watched):
    pair, run = (tiny / "target", tiny / "drafter"), replace(SHORT, tokens=3, tp=2, watched=watched)
    assert set(listed(take_inventory(*pair, run))) == set(multiplied_by_numpy(pair, run))


def test_gathered_experts_multiply_a_matrix_for_each_choice(pair):
    found = take_inventory(*pair, replace(SHORT, moe="gathered"))
    verify = {place.weight: gemm for gemm in found.gemms(["verify"]) for place in found.tally.gemms[gemm]}
    gate = verify["mlp.experts.gate_up_proj"]
    assert (gate.batch, gate.m, gate.k, gate.n) == (5 * 2, 1, 64, 32), "two of 5 experts for each of 5 rows"


@by_night
@pytest.mark.skipif("xla" not in device.ENGINES, reason="the xla engine is not part of this device")
def test_programs_are_those_that_the_xla_engine_compiles(pair):
    pytest.importorskip("jax")
    pipeline, tap = device.load(*pair, 4, engine="xla"), lambda stage, value: value
    pipeline.prefill(np.arange(1, 41), 4, tap)
    while not pipeline.finished:
        drafts = pipeline.draft(tap)
        verified = pipeline.verify(drafts, tap)
        verified[0] = (drafts[0] + 1) % pipeline.target.config.vocab
        pipeline.commit(drafts, verified, tap)
    used = type(pipeline._engine.array(np.zeros(1, np.float32))).programs.used
    listed = take_inventory(*pair, replace(SHORT, tokens=4, watched=True)).tally.programs
    assert Counter(one.kernel.rpartition(".")[2] for one in used.values()) == Counter(
        one.kernel.rpartition(".")[2] for one in listed
    )


@by_night
def test_another_run_multiplies_something_else(pair):
    """The comparison with the numpy engine can fail."""
    seen = multiplied_by_numpy(pair, SHORT)
    for change in ({"emitted": 2}, {"k": 3}, {"prompt": 72}, {"moe": "gathered"}):
        assert listed(take_inventory(*pair, replace(SHORT, **change))) != seen
