"""Structure before values: what is missing from either side fails, whatever the values."""

from __future__ import annotations

from copy import copy as shallow_copy
from types import SimpleNamespace

import numpy as np
import pytest

from parity.api import compare_dumps, run_device
from parity.compare import compare
from parity.compare.generation import check_generation
from parity.compare.structure import check_structure
from parity.errors import UsageError
from parity.golden.store import Dump
from parity.policy import read_policy
from parity.stages import PAGES, QUANTISED, TABLE
from tests.meta.dumps import clean, write
from tests.meta.worlds import SHORT
from tests.sample import WHOLE

MISSING = ("target.layers.{l}.v", "accept.length", "kv.drafter.{l}.k")

FAMILIES = [stage.template for stage in TABLE if stage.needs not in (PAGES, QUANTISED)]


@pytest.fixture(scope="module")
def small_run(shallow_golden, tmp_path_factory) -> Dump:
    return run_device(shallow_golden, "numpy", "local", out=tmp_path_factory.mktemp("run") / "local")


def edited(dump: Dump, change) -> Dump:
    """The same dump with another manifest; the shards stay."""
    copy = shallow_copy(dump)
    copy.manifest = change(copy.manifest)
    copy.index()
    return copy


def without(dump: Dump, family: str, declared: bool = False, variant: str | None = None) -> Dump:
    """Without a family's tensors, and without its declaration too where asked."""

    def change(manifest):
        gone = {name for name, named in dump.declared.items() if named.stage.template == family}
        rows = tuple(r for r in manifest.tensors if r.place[2] not in gone or variant not in (None, r.variant))
        stages = tuple(name for name in manifest.stages if not (declared and name in gone))
        return manifest.model_copy(update={"tensors": rows, "stages": stages})

    return edited(dump, change)


def kinds(golden: Dump, run: Dump, family: str) -> set[str]:
    """Kinds of findings about this family."""
    found = check_structure(golden, run, golden.manifest.stages)
    return {
        one.kind
        for one in found
        if one.stage not in golden.declared or golden.declared[one.stage].stage.template == family
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stage_missing_from_the_run_is_found(family, shallow_golden, small_run):
    assert kinds(shallow_golden, without(small_run, family), family) == {"missing"}
    assert kinds(shallow_golden, without(small_run, family, declared=True), family) == {"missing"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stage_missing_from_the_golden_is_found(family, shallow_golden, small_run):
    assert "missing" in kinds(without(shallow_golden, family), small_run, family)
    assert kinds(without(shallow_golden, family, declared=True), small_run, family) == {"surplus"}


def test_a_floor_missing_from_the_golden_is_found(shallow_golden, small_run):
    spoilt = without(shallow_golden, "target.logits", variant="bfloat16.local")
    assert kinds(spoilt, small_run, "target.logits") == {"missing"}


@pytest.mark.parametrize(
    ("family", "declared"),
    [(family, declared) for family in MISSING for declared in (False, True)]
    if WHOLE
    else [*zip(MISSING, (False, True, False), strict=True)],
)
def test_a_missing_stage_fails_the_whole_comparison_from_either_side(family, declared, shallow_golden, small_run):
    assert compare_dumps(shallow_golden, without(small_run, family, declared)).exit_code == 1
    assert compare_dumps(without(shallow_golden, family, declared), small_run).exit_code == 1


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (dict(dtype="int64"), "dtype"),
        (dict(axes=("H", "S")), "axes"),
        (dict(shape=(3, 96)), "shape"),
        (dict(shape=(0, 96)), "empty"),
    ],
)
def test_a_misshapen_tensor_is_found(change, kind, shallow_golden, small_run):
    def spoil(manifest):
        rows = [r.model_copy(update=change) if r.key == "p000/r0000/target.embed" else r for r in manifest.tensors]
        return manifest.model_copy(update={"tensors": tuple(rows)})

    assert kinds(shallow_golden, edited(small_run, spoil), "target.embed") == {kind}


def test_a_golden_that_shares_source_with_the_device_is_refused(shallow_golden, small_run):
    def share(manifest):
        producer = manifest.producer.model_copy(update={"modules": small_run.manifest.producer.modules})
        return manifest.model_copy(update={"producer": producer})

    with pytest.raises(UsageError, match="share source"):
        compare_dumps(edited(shallow_golden, share), small_run)


def test_a_run_over_another_checkpoint_is_refused(shallow_golden, small_run):
    def other(manifest):
        target = manifest.model.target.model_copy(update={"weights_digest": "0" * 64})
        return manifest.model_copy(update={"model": manifest.model.model_copy(update={"target": target})})

    with pytest.raises(UsageError, match="another target checkpoint"):
        compare_dumps(shallow_golden, edited(small_run, other))


def test_a_golden_is_no_run_and_a_run_no_golden(parity, shallow_golden, small_run):
    assert "is a golden" in parity("diff", shallow_golden.folder, "--golden", shallow_golden.folder).err
    assert "not a golden" in parity("diff", small_run.folder, "--golden", small_run.folder).err


def test_every_shipped_policy_has_a_row_for_every_stage(shallow_golden):
    for precision in ("bfloat16", "float32"):
        policy = read_policy(None, precision)
        assert all(policy.row(name, mode) for name in shallow_golden.declared for mode in ("local", "chained"))


def test_a_dtype_that_no_stage_has_is_a_finding_and_its_numbers_are_left_alone(tmp_path):
    pair = clean(SHORT)
    for tensors in pair.run:
        tensors[0, "target.embed"] = tensors[0, "target.embed"].astype(np.float16)
    report = compare(*write(pair, tmp_path), read_policy(None, "bfloat16"))
    assert report.verdict == "fail" and {(one.kind, one.stage) for one in report.findings} == {
        ("dtype", "target.embed")
    }


def test_a_free_run_whose_counts_contradict_each_other_fails_in_any_precision(shallow_golden):
    prompts = [one.model_copy() for one in shallow_golden.manifest.case.prompts]
    told = prompts[0].generation
    drafts = (told.accepted_drafts[0] + 1, *told.accepted_drafts[1:])
    prompts[0] = prompts[0].model_copy(update={"generation": told.model_copy(update={"accepted_drafts": drafts})})
    run = SimpleNamespace(
        manifest=SimpleNamespace(case=SimpleNamespace(precision="bfloat16", prompts=prompts)), sides=(None,)
    )
    (found,) = check_generation(shallow_golden, run).findings
    assert (found.kind, found.prompt, found.round) == ("generation", 0, 1) and "drafts accepted" in found.message
    prompts[0] = shallow_golden.manifest.case.prompts[0]
    assert not check_generation(shallow_golden, run).findings


@pytest.mark.parametrize("field", ["num_layers", "num_drafter_layers"])
def test_a_run_over_a_pair_of_other_layers_is_refused(field, tmp_path):
    golden, run = write(clean(SHORT), tmp_path)
    model = run.manifest.model.model_copy(update={field: 7})
    run.manifest = run.manifest.model_copy(update={"model": model})
    with pytest.raises(UsageError, match="layers"):
        compare(golden, run, read_policy(None, "bfloat16"))
