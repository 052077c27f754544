"""One rank of the neuron engine in a process of its own, under torchrun: TARGET DRAFTER OUT.

NKIPy's runtime is replaced: the processes share what they have, and each runs the program of all of them on XLA:CPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from parity import device
from parity.device.engines import neuron_engine
from tests.device.test_nkipy_hardware import Kernel, Tensor

SHOWN = ("target.layers.0.q", "target.embed")


class RankKernel(Kernel):
    """A loaded program of one rank."""

    def executable(self, code: Any) -> Any:
        """What runs it with the other processes."""
        from parity.device.engines.traced.mesh import Replicas

        ranks = Replicas(dist.get_world_size())
        run = ranks.compiled(code.to_proto())

        def execute(arrays: list[Any]) -> list[Any]:
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, arrays)
            return [
                ranks.get(one)[dist.get_rank()] for one in run([ranks.put(one) for one in zip(*every, strict=True)])
            ]

        return execute


class Seen:
    """A tap that notes how ranks' tensors come."""

    def __init__(self) -> None:
        self.shards: dict[str, Any] = {}

    def __call__(self, stage: str, value: Any) -> Any:
        return value

    def ranks(self, stage: str, shards: Any, sharding: str) -> Any:
        """Note those of some stages."""
        self.shards |= {stage: [sharding, len(shards)]} if stage in SHOWN else {}
        return shards


def main(target: str, drafter: str, out: str) -> None:
    """Generate, and watch one prefill."""
    sys.modules["nkipy.runtime"] = SimpleNamespace(DeviceKernel=RankKernel, DeviceTensor=Tensor)  # type: ignore[assignment]
    neuron_engine.DEVICES = Path(out)
    neuron_engine.version = lambda name: "0.0"  # type: ignore[assignment]
    loaded, seen = device.load(target, drafter, 4, engine="neuron", tp=2, max_positions=64), Seen()
    tokens = loaded.generate(range(1, 25), 4).tokens
    loaded.prefill(range(1, 25), 4, seen)
    core = os.environ["NEURON_RT_VISIBLE_CORES"]
    told = {"tokens": [*map(int, tokens)], "core": core, "shards": seen.shards}
    Path(out, f"rank-{dist.get_rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
