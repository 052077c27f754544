"""The xla engine: the numpy engine's arithmetic, compiled once for each shape and never for a round."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")

import jax

from parity import device as package
from parity.device.engines import numpy_engine, xla_engine
from parity.device.kernels import cache, moe, norm, rows
from parity.device.kernels.program import program
from parity.device.recorder import Recorder
from parity.device.rows import pad_rows
from parity.errors import UsageError
from tests.sample import by_night

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations():
    """Counts what XLA compiles, the engine's programs or any other."""
    seen = []

    def listen(event, _seconds, **_details):
        seen.append(event) if event == COMPILED else None

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module")
def loaded(pair):
    """Devices by precision, each loaded once; K = 3."""
    made = {}

    def load(precision="float32"):
        if precision not in made:
            made[precision] = package.load(*pair, 3, precision=precision, engine="xla")
        return made[precision]

    return load


@program
def chain(x, y):
    """Four roundings that a compiler would like to merge into one."""
    return (x * y + x) * y - x


def both(make):
    """The same arrays on both engines, in bfloat16."""
    machine = xla_engine.engine()
    return [tuple(one.array(value, ml_dtypes.bfloat16) for value in make) for one in (numpy_engine, machine)]


def pairs_of_values(count=4096, seed=3):
    return np.random.default_rng(seed).standard_normal((2, 1, count)).astype(np.float32)


def test_every_operation_rounds_once_inside_a_program():
    plain, compiled = both(pairs_of_values())
    np.testing.assert_array_equal(np.asarray(chain(*compiled)), np.asarray(chain(*plain)))


def test_a_rounding_that_is_left_out_would_be_seen(monkeypatch):
    monkeypatch.setattr(xla_engine.lax, "reduce_precision", lambda value, *_bits: value)
    plain, compiled = both(pairs_of_values(seed=4)[..., :4095])
    assert (np.asarray(chain(*compiled)) != np.asarray(chain(*plain))).mean() > 0.1


def test_a_norm_is_that_of_the_numpy_engine_bit_for_bit():
    weight, x = pairs_of_values(96)[0, 0], pairs_of_values(96 * 7).reshape(2, 7, 96)
    plain, compiled = both([x, weight])
    for kind in (norm.gpt_oss_norm, norm.llama_norm):
        np.testing.assert_array_equal(np.asarray(kind(*compiled, 1e-5)), np.asarray(kind(*plain, 1e-5)))


@by_night
def test_it_decodes_as_the_numpy_engine_does(loaded, load, prompts):
    for prompt in prompts:
        assert loaded().generate(prompt, 12) == load(3).generate(prompt, 12)
    assert loaded().decode_plain(prompts[1], 8) == load(3).decode_plain(prompts[1], 8)


def drive(device, prompt, rounds=8):
    """Rounds that accept 0 to K drafts in turn; then verify passes of every width."""
    truth = device.decode_plain(prompt, 30)
    device.prefill(prompt, 30)
    done = 1
    for round_ in range(rounds):
        device.draft()
        drafts = np.array(truth[done : done + 3])
        drafts[round_ % 4 :] = (drafts[round_ % 4 :] + 1) % 77
        emitted = device.commit(drafts, device.verify(drafts))
        assert len(emitted) == round_ % 4 + 1
        done += len(emitted)
    for width in range(4):
        device.verify(np.array(truth[done : done + width], np.int64))


def test_no_round_compiles_whatever_is_accepted(loaded, prompts):
    device = loaded()
    drive(device, prompts[1])
    before = len(device._engine.programs.used)
    with compilations() as compiled:
        drive(device, prompts[1])
    assert (len(compiled), len(device._engine.programs.used)) == (0, before)


@by_night
def test_a_program_for_every_accepted_count_would_be_seen(loaded, prompts, monkeypatch):
    @program
    def counted(x, _count):
        return x

    clean, device = rows.window, loaded()
    drive(device, prompts[1])
    before = len(device._engine.programs.used)
    monkeypatch.setattr(rows, "window", lambda x, starts, width: counted(clean(x, starts, width), int(starts.held[0])))
    with compilations() as compiled:
        drive(device, prompts[1])
    new = [one.kernel for one in device._engine.programs.used.values()][before:]
    assert new.count("counted") >= 4 and len(compiled) >= 4


def test_programs_are_bounded_by_widths_and_spans(pair, prompts):
    device = package.load(*pair, 3, precision="float32", engine="xla")
    drive(device, prompts[1])
    kernels = [one.kernel for one in device._engine.programs.used.values()]
    # Two windows; prefill, and verify with 0 to K drafts; two spans of the cache.
    assert kernels.count("target_layer") <= 2 * (1 + 4) * 2
    assert kernels.count("plain_layer") <= 2 * 2, "prefill and draft, in two spans"
    assert device.describe().notes["programs"] == str(len(kernels))


def test_arguments_that_a_program_writes_are_donated_and_the_others_are_not(loaded):
    machine = xla_engine.engine()
    held = machine.zeros((1, 8, 2, 3), np.float32)
    written = machine.array(np.ones((1, 2, 2, 3), np.float32))
    before, given = held.held, written.held
    cache.write(held, written, machine.array(np.array([[1, 4]], np.int32)))
    assert before.is_deleted() and not given.is_deleted()
    assert np.asarray(held)[0, :, 0, 0].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]


def test_a_replaced_kernel_is_traced_anew_and_the_clean_one_comes_back(loaded, prompts, monkeypatch):
    device, prompt = loaded(), prompts[0]
    quiet, count = Recorder(None, device._engine), np.arange(len(prompts[0]))

    def stream():
        device.target.clear()
        padded = pad_rows(prompt, count, count, len(prompt), device.target.trash)
        return device._engine.host(device.target.forward(padded, (), quiet)[0])

    clean, swiglu = stream(), moe.clamped_swiglu
    with monkeypatch.context() as patch:
        patch.setattr(moe, "clamped_swiglu", lambda gate, up, *rest: swiglu(up, gate, *rest))
        assert not np.allclose(stream(), clean)
    with compilations() as compiled:
        np.testing.assert_array_equal(stream(), clean)
    assert not compiled


@by_night
def test_copies_in_a_batch_run_as_one_sequence_does(pair, prompts, loaded):
    batch = package.load(*pair, 3, precision="float32", engine="xla", batch=2)
    assert batch.target.caches[0][0].shape[0] == 2
    assert batch.generate(prompts[0], 5) == loaded().generate(prompts[0], 5)


def test_without_jax_one_sentence_says_what_to_install(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "parity.device.engines.xla_engine")
    with pytest.raises(UsageError, match=r"the engine xla needs jax.*: pip install 'parity-harness\[xla\]'"):
        package.load(*pair, 3, engine="xla")
