"""Partial KV: which pages a drafter's row attends to, by references and device, and what a golden of it asks."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from parity import device
from parity.builders import builder
from parity.compare import compare
from parity.compare.exercised import not_exercised
from parity.device.engines import numpy_engine as engine
from parity.device.faults import CATALOGUE
from parity.device.kernels import pages
from parity.device.kernels.tap import untapped
from parity.drive import run_device
from parity.errors import NotOffered, UsageError
from parity.factories import Factory
from parity.fault_choice import choose_faults
from parity.faults import FaultRunRequest, compare_planted
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.partial_kv import PartialKV
from parity.policy import read_policy
from parity.references.seam import load as load_references
from parity.rounds import generate
from parity.run_request import RunRequest
from tests.sample import by_night

SIZES = "1+2+1x8"
WEIGHTED = ("drafter", "eagle3", "draft-model")


@pytest.fixture(scope="module")
def golden(paged_golden):
    return trusted(paged_golden)


class Recording:
    """Keeps what it is shown, pass by pass."""

    def __init__(self):
        self.shown = {}

    def __call__(self, stage, value):
        self.shown[stage] = np.array(value)
        return value


@pytest.mark.parametrize(
    "text", ["1+4+2", "1+4x16", "1+0+2x16", "1+4+0x16", "1+4+2x0", "-1+4+2x16", "1+4+2x16 ", "\u0661+4+2x16"]
)
def test_sizes_are_words_of_one_form(text):
    with pytest.raises(UsageError, match="partial KV"):
        PartialKV.parse(text)


def test_sizes_are_read_as_they_are_written():
    read = PartialKV.parse("0+3+2x16")
    assert (read.sink, read.retrieved, read.window, read.page, read.rows) == (0, 3, 2, 16, 80)
    assert str(read) == "0+3+2x16" and PartialKV.parse("") is None


@pytest.mark.parametrize("load", [device.load, load_references])
@pytest.mark.parametrize(
    ("drafter", "sizes", "why"),
    [
        ("dflash", SIZES, "a dflash drafter has no rows"),
        ("n-gram", SIZES, "a n-gram drafter has no rows"),
        ("eagle3", "1+60+3x8", "512 rows are all of a cache of 512"),
    ],
)
def test_what_cannot_be_partial_is_refused_by_both_sides(load, drafter, sizes, why, tiny):
    with pytest.raises(UsageError, match=why):
        load(tiny / "target", tiny / drafter, 4, partial_kv=sizes)


def pages_by_loops(q, keys, positions, sizes):
    """Each row's pages in float64: sink, the best retrieved, window."""
    group, found = q.shape[1] // keys.shape[1], []
    for row, at in enumerate(positions):
        own = at // sizes.page
        scores = {}
        for page in range(sizes.sink, own - sizes.window + 1):
            rows = keys[page * sizes.page : (page + 1) * sizes.page].astype(float)
            products = [
                max(q[row, n] @ rows[:, n // group].min(0), q[row, n] @ rows[:, n // group].max(0))
                for n in range(q.shape[1])
            ]
            scores[page] = np.mean(products)
        best = sorted(scores, key=scores.__getitem__, reverse=True)[: sizes.retrieved]
        found.append({*range(min(sizes.sink, own + 1)), *best, *range(max(0, own - sizes.window + 1), own + 1)})
    return found


@pytest.mark.parametrize("sizes", ["1+2+1x4", "0+1+2x4", "2+3+1x3"])
def test_a_row_attends_to_its_pages_as_loops_say(sizes):
    sizes, random = PartialKV.parse(sizes), np.random.default_rng(3)
    heads, groups, dim, rows = 6, 3, 8, 41
    keys, values = random.standard_normal((2, 1, rows + 1, groups, dim)).astype(np.float32)
    keys[:, rows], values[:, rows] = np.nan, np.nan  # the trash row
    positions = np.array([0, 5, 11, 23, 24, 40])
    q = random.standard_normal((1, len(positions), heads, dim)).astype(np.float32)
    count = sizes.pages(rows)
    low, high = (engine.zeros((1, count + 1, groups, dim), np.float32) for _ in range(2))
    caches = *map(engine.array, (keys, values)), low, high
    pages.summarise(caches[0], low, high, engine.array(np.arange(count, dtype=np.int32)[None]), sizes.page)
    step = pages.PageStep(*map(engine.array, (positions[None], positions[None] // sizes.page, positions[None])))
    out = engine.host(pages.attend_to_pages(engine.array(q), caches, step, sizes, heads, untapped))
    for row, chosen in enumerate(pages_by_loops(q[0], keys[0], positions, sizes)):
        seen = [slot for slot in range(positions[row] + 1) if slot // sizes.page in chosen]
        for n in range(heads):
            scores = q[0, row, n].astype(float) @ keys[0, seen, n // 2].T / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            mixed = weights @ values[0, seen, n // 2] / weights.sum()
            np.testing.assert_allclose(out[0, row, n * dim : (n + 1) * dim], mixed, rtol=1e-5, atol=1e-5)


def test_a_golden_says_its_pages_and_emits_what_the_whole_cache_emits(golden, shallow_golden):
    case = golden.manifest.case
    assert case.partial_kv == SIZES and "drafter.layers.1.pages" in golden.manifest.stages
    assert "drafter.layers.0.pages" not in shallow_golden.manifest.stages
    emitted = [[prompt.generated.emitted for prompt in dump.manifest.case.prompts] for dump in (golden, shallow_golden)]
    assert emitted[0] == emitted[1]


def test_another_attention_than_the_golden_s_changes_what_the_drafter_makes(golden, shallow_golden):
    one, other = (dump.stored("float32", 0, 1, "drafter.logits") for dump in (golden, shallow_golden))
    assert np.abs(one - other).max() > 0.01


@pytest.mark.parametrize(
    ("precision", "mode"), [("float32", "chained"), ("bfloat16", "local"), ("bfloat16", "chained")]
)
def test_a_clean_device_passes(precision, mode, golden, tmp_path):
    made = builder("numpy", golden)(precision=precision)
    run = Dump(run_device(RunRequest(made, golden, mode, (), tmp_path / "run", free=False)))
    report = compare(golden, run, read_policy(None, precision))
    assert report.verdict == "pass", report.first_summary
    judged = {stage.stage: stage for stage in report.stages}
    assert judged["drafter.layers.1.pages"].judge == "experts" and run.manifest.case.partial_kv == SIZES


@by_night
def test_a_compiled_device_emits_and_accepts_the_same(shallow_golden):
    model, ids = shallow_golden.manifest.model, shallow_golden.manifest.case.prompts[0].ids
    numpy, xla = (
        generate(device.load(model.target.path, model.drafter.path, 4, "float32", machine, partial_kv=SIZES), ids, 8)
        for machine in ("numpy", "xla")
    )
    assert numpy == xla


def test_a_device_with_another_cache_is_refused(golden, tmp_path):
    model = golden.manifest.model
    whole = device.load(model.target.path, model.drafter.path, 4)
    with pytest.raises(UsageError, match=rf"has none as its partial KV, the golden .* has {re.escape(SIZES)}"):
        run_device(RunRequest(whole, golden, "chained", (), tmp_path / "run"))


def test_a_factory_that_takes_no_partial_kv_is_refused(tiny):
    factory = Factory("numpy", tiny / "target", tiny / "drafter", 4, SIZES)
    factory._make = lambda target, drafter, k, precision: None
    with pytest.raises(NotOffered, match="takes no partial_kv"):
        factory(precision="float32")


def test_a_device_that_forgets_it_is_refused(tiny):
    factory = Factory("numpy", tiny / "target", tiny / "drafter", 4, SIZES)
    factory._make = lambda partial_kv, **case: device.load(**case)
    with pytest.raises(UsageError, match="asked for partial_kv 1"):
        factory(precision="float32")


def test_sizes_are_no_option_behind_a_device_s_name(tiny):
    with pytest.raises(UsageError, match="is no option"):
        Factory(f"numpy,partial_kv={SIZES}", tiny / "target", tiny / "drafter", 4)


@pytest.mark.parametrize("drafter", WEIGHTED)
def test_a_prefill_in_passes_is_a_whole_one(drafter, tiny, golden):
    ids, seen = golden.manifest.case.prompts[0].ids, []
    for rows in (None, 13):
        made = device.load(tiny / "target", tiny / drafter, 4, "float32", partial_kv=SIZES)
        made.prefill_rows, tap = rows, Recording()
        made.prefill(ids, 8, tap)
        seen.append((tap.shown, made.draft().tolist(), generate(made, ids, 8)))
    (whole, *drafted), (parts, *again) = seen
    assert drafted == again
    for stage in whole:
        if stage.endswith((".pages", ".slots")):
            np.testing.assert_array_equal(whole[stage], parts[stage], stage)
        else:
            np.testing.assert_allclose(whole[stage], parts[stage], atol=2e-4, err_msg=stage)


def test_no_page_that_is_not_full_is_read(tiny, golden):
    drafts = []
    for value in (0.0, np.nan):
        made = device.load(tiny / "target", tiny / "drafter", 4, "float32", partial_kv=SIZES)
        made.prefill(golden.manifest.case.prompts[0].ids, 8)
        made.poison(value)
        drafts.append(made.draft().tolist())
    assert drafts[0] == drafts[1]


def test_ranks_choose_the_same_pages(tiny, golden):
    ids = golden.manifest.case.prompts[0].ids
    whole, ranks = (
        generate(device.load(tiny / "target", tiny / "drafter", 4, "float32", tp=tp, partial_kv=SIZES), ids, 8)
        for tp in (1, 2)
    )
    assert whole == ranks


@pytest.mark.parametrize(
    "name", ["pages-window-late", "pages-summary-stale", "pages-runner-up", "pages-of-first-layer"]
)
def test_a_fault_is_killed_and_placed(name, golden):
    request = FaultRunRequest(golden, "numpy", builder("numpy", golden), rounds=1)
    seen = compare_planted(request, CATALOGUE[name], "local")
    assert seen.placed, seen


def test_faults_of_partial_kv_go_with_a_golden_of_it():
    chosen = choose_faults(CATALOGUE, (), "p-eagle", SIZES)
    assert len(chosen) == 12 and all(fault.partial_kv for fault in chosen)
    assert not any(fault.partial_kv for fault in choose_faults(CATALOGUE, (), "p-eagle"))
    with pytest.raises(UsageError, match="the golden has none"):
        choose_faults(CATALOGUE, ("pages-window-late",), "p-eagle")


def test_runs_of_other_pages_are_not_compared(golden, tmp_path):
    made = builder("numpy", golden)(precision="float32")
    run = Dump(run_device(RunRequest(made, golden, "chained", ("accept.*",), tmp_path / "run", free=False)))
    case = run.manifest.case.model_copy(update={"partial_kv": "1+3+1x8"})
    other = replace_manifest(run, case)
    with pytest.raises(UsageError, match=r"has partial KV 1\+3\+1x8"):
        compare(golden, other, read_policy(None, "float32"))


def test_a_golden_of_which_no_row_leaves_a_page_out_says_so(paged_golden):
    said = []
    for sizes in (SIZES, "1+40+2x8"):
        case = paged_golden.manifest.case.model_copy(update={"partial_kv": sizes})
        golden = SimpleNamespace(manifest=paged_golden.manifest.model_copy(update={"case": case}))
        said.append([line for line in not_exercised(golden) if "leaves a page out" in line])
    assert said == [[], ["a row of the drafter that leaves a page out: 1+40+2x8 is 344 rows"]]


def replace_manifest(run, case):
    """The same run, its manifest with another case."""
    run.manifest = run.manifest.model_copy(update={"case": case})
    return run
