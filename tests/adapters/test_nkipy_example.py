"""AWS's NKIPy example through its adapter; $PARITY_NKIPY_EXAMPLE names a folder with its examples/models/gpt_oss."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from docs.ports.nkipy_eager import Rounded
from docs.ports.nkipy_gpt_oss import load
from parity.api import compare_dumps, open_golden
from parity.drive import run_device
from parity.golden.store import Dump
from parity.guard import guard
from parity.oracles import ReferenceRerun
from parity.run_request import RunRequest

CHECKOUT = os.environ.get("PARITY_NKIPY_EXAMPLE")
example = pytest.mark.skipif(not CHECKOUT, reason="$PARITY_NKIPY_EXAMPLE names no checkout of aws-neuron/nkipy")


@pytest.fixture
def judge(small_golden, tmp_path):
    """The example, run and compared; `break_it` is given the port before."""
    golden = open_golden(small_golden.folder)

    def judged(precision, mode, break_it=lambda port: None):
        pair = golden.manifest.model
        port = load(Path(pair.target.path), Path(pair.drafter.path), golden.manifest.case.k, precision, CHECKOUT)
        break_it(port)
        run = run_device(RunRequest(guard(port, "port"), golden, mode, (), tmp_path / f"{precision}-{mode}"))
        return compare_dumps(golden, Dump(run), rerun=ReferenceRerun())

    return judged


@example
@pytest.mark.parametrize("mode", ["chained", "local"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_example_passes(precision, mode, judge):
    report = judge(precision, mode)
    assert report.verdict == "pass", report.first
    assert {stage.stage for stage in report.stages} >= {"target.layers.7.out", "drafter.taps", "kv.target.0.k"}


@example
def test_a_verify_pass_one_position_ahead_is_seen_where_it_shows_first(judge):
    def ahead(port):
        verify = port.example.target.verify
        port.example.target.verify = lambda self, tokens, start: verify(self, tokens, start + 1)

    report = judge("float32", "chained", ahead)
    assert report.verdict == "fail" and report.first.round == 1
    assert report.first.stage == "target.layers.0.out"


def test_bfloat16_as_a_compiler_computes_it_accumulates_in_float32_and_rounds_once():
    ones = np.ones(1000, ml_dtypes.bfloat16).view(Rounded)
    assert float(np.sum(ones)) == 1000.0 and float(np.sum(np.asarray(ones))) < 300.0
    left = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16).view(Rounded)
    product = left @ left.T
    assert product.dtype == ml_dtypes.bfloat16 and float(product[2, 2]) == float(ml_dtypes.bfloat16(366.0))
    left += np.float32(0.5) * left
    assert left.dtype == ml_dtypes.bfloat16 and float(left[0, 1]) == 1.5
