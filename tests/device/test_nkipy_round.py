"""A whole round traced by the real NKIPy: one program, whose HLO asks no host for anything."""

import numpy as np
import pytest

pytest.importorskip("nkipy", reason="NKIPy is not installed: docs/neuron.md has the command")
pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")

from parity import device
from parity.device.engines.traced.tracer import Program
from tests.sample import first

HOST = {
    "infeed",
    "outfeed",
    "send",
    "send-done",
    "recv",
    "recv-done",
    "custom-call",
    "domain",
    "rng-get-and-update-state",
}
"""HLO instructions by which a program may wait for a host, or call something that is none of it."""
FAMILIES = ("p-eagle", "eagle3", "draft-model", "dflash")


def opcodes(program: Program) -> set[str]:
    return {one.opcode for some in program.code.to_proto().computations for one in some.instructions}


@pytest.fixture
def both(load, tiny):
    """The two loops on the engine nkipy: of the random pair, or of a tiny one."""

    def make(family, precision):
        loops = ("synchronous", "asynchronous")
        if family == "p-eagle":
            return [load(3, precision, engine="nkipy", loop=loop, chunk=2, max_positions=64) for loop in loops]
        options = dict(engine="nkipy", chunk=2, max_positions=64)
        return [device.load(tiny / "target", tiny / family, 3, precision, loop=loop, **options) for loop in loops]

    return make


@pytest.mark.parametrize(("family", "precision"), first([(one, "bfloat16") for one in FAMILIES]))
def test_a_round_is_one_program_without_a_host_and_gives_the_same_bits(family, precision, both):
    waiting, ahead = both(family, precision)
    prompt = np.arange(2, 40)
    assert ahead.generate(prompt, 8) == waiting.generate(prompt, 8)
    for side in ("target", "drafter"):
        models = getattr(waiting, side), getattr(ahead.pipeline, side)
        held = [[model.engine.host(one)[:, :-1] for pair in model.caches for one in pair] for model in models]
        assert all(map(np.array_equal, *held)), side
    (program,) = [one for one in ahead.engine.programs if one.kernel.__name__ == "speculated"]
    assert not opcodes(program) & HOST
    caches = 2 * (len(ahead.pipeline.target.caches) + len(ahead.pipeline.drafter.caches))
    assert len(program.aliases) == caches, "every cache is written in place, and nothing else"
    assert ahead.decode_plain(prompt, 5) == waiting.decode_plain(prompt, 5)
    (step,) = [one for one in ahead.engine.programs if one.kernel.__name__ == "stepped"]
    assert not opcodes(step) & HOST


def test_an_instruction_that_asks_the_host_is_seen(load):
    """The check is one: it finds the custom call that NKIPy makes of its own top-k."""
    pytest.importorskip("nkipy.core.tensor_apis", reason="this NKIPy has no tensor_apis")
    from nkipy.core import tensor_apis

    engine = load(3, "float32", engine="nkipy").engine
    x = engine.array(np.arange(8, dtype=np.float32)[None])
    engine.run(top, (x,))
    assert opcodes(engine.programs[-1]) & HOST
    assert tensor_apis


def top(x):
    from nkipy.core import tensor_apis

    return tensor_apis.topk(x, k=2, axis=-1)[0]
