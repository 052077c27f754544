"""An imported dump, which forces nothing by default: what lies behind its own experts is no pass without evidence."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare import compare
from parity.golden.manifest import key
from parity.golden.store import Dump
from tests.compare.test_unforced import FFN, POLICY, flipped, garbage, same
from tests.meta.dumps import write

NAMES = (
    "[run]\nprecision = 'bfloat16'\n[[row]]\nname = 'p(?P<prompt>\\d+)/r(?P<round>\\d+)/(?P<stage>.+)'\n"
    "stage = '{stage}'"
)


@pytest.fixture
def dumps(parity, tmp_path):
    """A made-up golden, and a run over it as another tool dumped it and `parity import` read it."""

    def imported(pair) -> tuple[Dump, Dump]:
        golden, _ = write(pair, tmp_path / "pair")
        arrays = {
            key(prompt, *place): value if value.dtype.kind in "iu" else value.astype(np.float32)
            for prompt, tensors in enumerate(pair.run)
            for place, value in tensors.items()
        }
        np.savez(tmp_path / "dump.npz", **arrays)
        (tmp_path / "map.toml").write_text(NAMES)
        common = ("--from", "files", "--golden", golden.folder, "--map", tmp_path / "map.toml")
        found = parity("import", tmp_path / "dump.npz", *common, "--out", tmp_path / "imported")
        assert found.code == 0, found
        return golden, Dump(tmp_path / "imported")

    return imported


def test_garbage_behind_flipped_experts_never_passes(dumps):
    golden, run = dumps(garbage(flipped()))
    assert run.manifest.case.forced == ()
    alone, again = compare(golden, run, POLICY), compare(golden, run, POLICY, rerun=same)
    assert alone.exit_code == 3 and "the reference was not run again" in str(alone.own_experts)
    assert again.exit_code == 1 and again.first.stage == FFN


def test_experts_flipped_within_noise_pass_by_the_reference_alone(dumps):
    golden, run = dumps(flipped())
    alone, again = compare(golden, run, POLICY), compare(golden, run, POLICY, rerun=same)
    assert (alone.verdict, again.verdict) == ("inconclusive", "pass")
