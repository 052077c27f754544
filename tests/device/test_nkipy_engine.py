"""The whole device traced by the real NKIPy and executed on XLA:CPU: the programs, and the verdicts."""

import numpy as np
import pytest

pytest.importorskip("nkipy", reason="NKIPy is not installed: docs/neuron.md has the command")
pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")

from parity import api
from parity.api import compare_dumps
from parity.builders import builder
from parity.device.engines.traced import lowering
from parity.device.faults import CATALOGUE
from parity.device.kernels.tap import untapped
from parity.device.kernels.target_layer import target_layer
from parity.device.rows import pad_rows
from parity.drive import run_device
from parity.golden.store import Dump
from parity.guard import unguarded
from parity.run_request import RunRequest

PREFILL, DECODE, VERIFY = 32, 1, 5
UNSUPPORTED = {"float64", "int64", "uint64"}


def through(_stage, value):
    return value


@pytest.fixture(scope="module")
def engine_device(load):
    """The random pair on the nkipy engine, K = 4, bfloat16."""
    return load(precision="bfloat16", engine="nkipy")


def caches_of(model):
    return [model.engine.host(one).astype(np.float32) for pair in model.caches for one in pair]


def runs(device, prompts, budget=20):
    return [device.generate(prompt, budget) for prompt in prompts]


def assert_runs_on_neuron(program):
    """Names that do not collide, no 64-bit dtype, no bool at an edge, and nothing that only a replacement runs."""
    code = program.code
    names = [one.name for one in code.inputs]
    assert len(set(names)) == len(names) == len(program.leaves)
    assert len({one.name for one in code.outputs}) == len(code.outputs)
    assert not {str(np.dtype(one.dtype)) for one in (*code.inputs, *code.outputs)} & {*UNSUPPORTED, "bool"}
    assert not {str(np.dtype(one.result_dtype)) for one in code.operations} & UNSUPPORTED
    assert not {one.op_name for one in code.operations} & {"custom-call", "topk"}


@pytest.mark.parametrize("width", [PREFILL, DECODE, VERIFY])
@pytest.mark.parametrize("layer", [0, 1], ids=["window", "full"])
def test_the_target_layer_traces_in_every_shape(width, layer, load):
    target = load(precision="bfloat16", engine="nkipy").target
    positions = np.arange(width)
    step = target.step(pad_rows(positions, positions, positions, width, target.trash))
    x = target.engine.array(np.ones((1, width, target.config.hidden), np.float32), target.dtype)
    pair, window = target.caches[layer], target.windows[layer]
    out = target_layer(x, step, target.layers[layer], pair, target.config, window, untapped)
    program = target.engine.programs[-1]
    assert out.shape == x.shape
    assert program.kernel.__name__ == "target_layer"
    assert [program.leaves[place].name for place in program.aliases.values()] == ["in_caches_0", "in_caches_1"]
    assert {one.name for one in program.code.inputs} >= {"in_caches_0.must_alias_input", "in_weights_q"}
    assert_runs_on_neuron(program)
    assert np.abs(caches_of(target)[2 * layer][0, :width]).max() > 0


def test_a_generation_is_few_programs_each_fit_for_the_hardware(engine_device, prompts, load):
    generations = runs(engine_device, prompts)
    programs = engine_device._engine.programs
    assert {one.kernel.__name__ for one in programs} >= {"target_layer", "midlayer", "plain_layer", "choose"}
    for program in programs:
        assert_runs_on_neuron(program)
    assert [one.tokens for one in generations] == [one.tokens for one in runs(load(precision="bfloat16"), prompts)]
    assert runs(engine_device, prompts) == generations
    assert len(engine_device._engine.programs) == len(programs), "the same prompts compiled something new"


def test_company_in_the_batch_runs_on_the_same_engine(load, prompts):
    batched = load(precision="bfloat16", engine="nkipy", batch=2)
    assert batched.generate(prompts[1], 6).tokens == load(precision="bfloat16").generate(prompts[1], 6).tokens
    caches = [one for pair in batched.target.caches for one in pair]
    assert {(type(one).__mro__[1].__module__, one.shape[0]) for one in caches} == {
        ("parity.device.engines.traced.arrays", 2)
    }
    assert "off hardware" in batched.describe().notes


def test_arguments_that_a_program_does_not_use_are_no_parameters(engine_device, prompts):
    runs(engine_device, prompts[:1])
    choose = [one for one in engine_device._engine.programs if one.kernel.__name__ == "choose"]
    assert choose
    assert not [leaf.name for one in choose for leaf in one.leaves if "embed" in leaf.name]


def test_a_whole_program_and_its_pieces_give_the_same_bits(load, prompts):
    whole, pieces = (load(precision="bfloat16", engine="nkipy") for _ in range(2))
    whole.prefill(prompts[2], 8), pieces.prefill(prompts[2], 8, through)
    for left, right in zip(caches_of(whole.target), caches_of(pieces.target), strict=True):
        np.testing.assert_array_equal(left, right)


def test_excess_precision_would_be_seen(load, prompts, monkeypatch):
    options = lowering.get_compile_options
    allowed = dict(env_options_overrides={"xla_allow_excess_precision": True})
    monkeypatch.setattr(lowering, "get_compile_options", lambda *given, **_: options(*given, **allowed))
    whole, pieces = (load(precision="bfloat16", engine="nkipy") for _ in range(2))
    whole.prefill(prompts[2], 8), pieces.prefill(prompts[2], 8, through)
    pairs = zip(caches_of(whole.target), caches_of(pieces.target), strict=True)
    assert any((left != right).any() for left, right in pairs)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["local", "chained"])
def test_the_comparison_is_green(mode, precision, small_golden, tmp_path):
    run = api.run_device(small_golden, "nkipy", mode, precision, out=tmp_path / "run")
    report = compare_dumps(small_golden, run)
    assert report.verdict == "pass", report.first
    assert "nkipy" in run.manifest.producer.versions
    assert run.manifest.producer.notes["off hardware"].startswith("executed by XLA:CPU")


def test_a_planted_fault_is_traced_and_killed(small_golden, tmp_path):
    fault = CATALOGUE["attn-window-missing-once"]
    device = builder("nkipy", small_golden)(precision=fault.precision)
    fault.plant(unguarded(device))
    out = run_device(RunRequest(device=device, golden=small_golden, mode="local", stages=(), out=tmp_path / "run"))
    report = compare_dumps(small_golden, Dump(out))
    assert report.verdict == "fail"
    assert report.first.stage == fault.stage
