"""The neuron engine against a stand-in of NKIPy's runtime that checks names, shapes and dtypes as the real one does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity import device
from parity.device.engines import neuron_engine
from parity.device.engines.traced import tracer
from parity.device.kernels import cache
from parity.errors import UsageError
from tests.sample import by_night


def test_without_nkipy_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tracer, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"need NKIPy; docs/neuron\.md"):
        device.load("target", "drafter", 4, engine="neuron")


def nkipy():
    pytest.importorskip("nkipy", reason="NKIPy is not installed: docs/neuron.md has the command")
    pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")


class Tensor:
    """`nkipy.runtime.DeviceTensor`, with its memory on the host."""

    def __init__(self, array):
        assert array.dtype not in (np.bool_, np.int64, np.float64), f"the runtime knows no {array.dtype}"
        self.array = np.array(array)

    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        return cls(array)

    def numpy(self):
        return self.array.copy()


class Kernel:
    """`nkipy.runtime.DeviceKernel`, with XLA:CPU in the core's place."""

    calls = 0

    def __init__(self, code):
        self.code, self.execute = code, self.executable(code)

    def executable(self, code):
        """What runs it: host arrays in and out."""
        from parity.device.engines.traced.mesh import Replicas

        core = Replicas(1)
        execute = core.compiled(code.to_proto())
        return lambda arrays: execute([core.put([one.copy()]) for one in arrays])

    @classmethod
    def compile_and_load(cls, kernel, *args, name=None, build_dir=None, target=None, rank_id=None, **kwargs):
        kernel.specialize(*args, **kwargs)
        return cls(kernel._code)

    def __call__(self, inputs, outputs):
        for given, expected in ((inputs, self.code.inputs), (outputs, self.code.outputs)):
            if set(given) != {one.name for one in expected}:
                raise ValueError(f"{sorted(given)} are not {sorted(one.name for one in expected)}")
            for one in expected:
                assert given[one.name].array.shape == tuple(one.shape)
                assert given[one.name].array.dtype == np.dtype(one.dtype)
        for alias in self.code.aliases:
            assert outputs[alias.param_name] is inputs[f"{alias.param_name}.must_alias_input"]
        results = self.execute([inputs[one.name].array for one in self.code.inputs])
        for one, result in zip(self.code.outputs, results, strict=True):
            outputs[one.name].array[...] = np.asarray(result)
        Kernel.calls += 1


@pytest.fixture
def core(monkeypatch, tmp_path):
    """A folder in the place of /dev, with one Neuron device."""
    nkipy()
    (tmp_path / "neuron0").touch()
    monkeypatch.setattr(neuron_engine, "DEVICES", tmp_path)


@pytest.fixture
def runtime(monkeypatch, core):
    """`nkipy.runtime` replaced by the stand-in."""
    monkeypatch.setitem(sys.modules, "nkipy.runtime", SimpleNamespace(DeviceKernel=Kernel, DeviceTensor=Tensor))
    monkeypatch.setattr(neuron_engine, "version", lambda name: "0.0")


def test_the_neuron_engine_emits_what_the_numpy_engine_emits(runtime, load, prompts):
    found = load(precision="bfloat16", engine="neuron")
    assert found.describe().name == "neuron"
    assert found.describe().versions["neuronx-cc"] == "0.0"
    before = Kernel.calls
    generations = [found.generate(prompt, 12) for prompt in prompts[1:]]
    assert Kernel.calls > before
    plain = load(precision="bfloat16")
    assert [one.tokens for one in generations] == [plain.generate(prompt, 12).tokens for prompt in prompts[1:]]


def test_a_cache_is_written_where_it_lies(runtime):
    engine = neuron_engine.engine()
    held, new = engine.zeros((1, 9, 2, 4), np.float32), engine.array(np.ones((1, 3, 2, 4), np.float32))
    buffer = held.buffer
    cache.write(held, new, engine.array(np.array([[7, 0, 3]])))
    assert held.buffer is buffer
    assert np.flatnonzero(buffer.array[0, :, 0, 0]).tolist() == [0, 3, 7]


def test_a_written_argument_under_its_plain_name_is_refused(runtime):
    engine = neuron_engine.engine()
    held = engine.array(np.zeros((1, 4, 2), np.float32))

    def write(held, new):
        held[:, 1:2] = new

    engine.run(write, (held, engine.array(np.ones((1, 1, 2), np.float32))))
    assert engine.host(held)[0, 1].tolist() == [1, 1]
    code = engine.programs[-1].code
    tensors = {one.original_name: Tensor(np.zeros(one.shape, one.dtype)) for one in code.inputs}
    with pytest.raises(ValueError, match="must_alias_input"):
        Kernel(code)(inputs=tensors, outputs={})


@pytest.mark.parametrize(
    ("here", "said"),
    [(None, "needs the Neuron compiler"), (SimpleNamespace(), "needs NKIPy's runtime")],
    ids=["no compiler", "no runtime"],
)
def test_what_is_missing_is_said_in_one_sentence(here, said, core, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkipy.runtime", here)  # None: importing it is an ImportError
    with pytest.raises(UsageError, match=said):
        neuron_engine.engine()


def test_without_a_device_the_engine_is_absent(core, tmp_path):
    (tmp_path / "neuron0").unlink()
    assert "neuron* is absent" in device.absent("neuron")


def test_ranks_without_their_processes_are_refused(runtime, few_kv):
    with pytest.raises(UsageError, match="2 ranks on Trainium are as many processes, and there are 1; start them with"):
        few_kv(engine="neuron", tp=2)


@by_night
def test_ranks_are_processes_that_run_one_host_loop(core, tiny, tmp_path):
    """Under torchrun: each process holds one rank, and each is shown all ranks' tensors."""
    pair, root = (tiny / "target", tiny / "drafter"), Path(__file__).parents[2]
    script = Path(__file__).with_name("neuron_rank.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, script, *pair, tmp_path], env=os.environ | {"PYTHONPATH": str(root)}, check=True)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    plain = device.load(*pair, 4, max_positions=64)
    assert [one["tokens"] for one in ranks] == 2 * [plain.generate(range(1, 25), 4).tokens]
    assert [one["core"] for one in ranks] == ["0", "1"]
    assert (
        ranks[0]["shards"] == ranks[1]["shards"] == {"target.layers.0.q": ["N", 2], "target.embed": ["replicated", 2]}
    )
