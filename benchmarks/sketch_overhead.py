"""What sketching costs on the xla engine.

    python benchmarks/sketch_overhead.py [--golden DIR]

Processor time of all threads, so that other work on the machine does not count. A round of the tiny pair: nobody
watching (whole layers are compiled programs), the sketches of all stages inside the layers made by these same programs,
and watched stage by stage (which runs operation by operation), whole or sketched. Then one layer of gpt-oss-20b's width
with the experts that one token runs through, alone and with its sketches.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import parity.device.drafter as drafter_module
import parity.device.target as target_module
from parity.builders import builder
from parity.device.config import TargetConfig
from parity.device.kernels.target_layer import target_layer
from parity.fault_choice import small_golden
from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.sketch import projection
from parity.trace import Trace

EXACT = ("experts", "router_logits")


class Within:
    """A kernel's tap inside its program; `sums` are the products of all its stages with the table of their width, one
    product for each width, and the sums of squares."""

    def __init__(self, tables: dict[int, Any]) -> None:
        self.tables = tables
        self.rows: dict[int, list[Any]] = {}

    def __call__(self, part: str, value: Any) -> Any:
        if part not in EXACT:
            rows = value.held[0].reshape(value.shape[1], -1).astype(jnp.float32)
            self.rows.setdefault(rows.shape[1], []).append(rows)
        return value

    def at(self, layer: int) -> "Within":
        """The same."""
        return self

    def of(self, group: str) -> "Within":
        """The same."""
        return self

    def sums(self) -> Any:
        """Of all stages, [rows of all, N + 2]."""
        made = []
        for width, parts in self.rows.items():
            rows = jnp.concatenate(parts)
            products = jnp.matmul(rows, self.tables[width].held, precision=lax.Precision.HIGHEST)
            made.append(jnp.concatenate([products, jnp.square(rows).sum(axis=1, keepdims=True)], axis=1))
        return jnp.concatenate(made)


def sketching(layer: Callable[..., Any], tables: dict[int, Any]) -> Callable[..., Any]:
    """The layer as a kernel that gives its sketches beside its result; the tables are constants of its program."""

    def kernel(*arguments: Any) -> tuple[Any, Any]:
        tap = Within(tables)
        result = layer.__wrapped__(*arguments[:-1], tap)
        return result, type(result)(tap.sums(), np.dtype(np.float32))

    kernel.__name__ = f"sketched_{layer.__name__}"
    return kernel


class Layers:
    """The device's layers with sketches in their programs; `kept` gets them. One object, so that they compile once."""

    def __init__(self, tables: dict[int, Any]) -> None:
        self.kept: list[Any] = []
        places = [(target_module, "target_layer"), (drafter_module, "midlayer"), (drafter_module, "plain_layer")]
        self.places = [
            (module, name, getattr(module, name), partial(self._run, sketching(getattr(module, name), tables)))
            for module, name in places
        ]

    def _run(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        result, sums = type(arguments[0]).run_program(kernel, (*arguments[:-1], None))
        self.kept.append(sums.held)
        return result

    def read(self) -> None:
        """Read the sketches of a round back."""
        for one in self.kept:
            np.array(one)
        self.kept.clear()

    def rounds(self, device: Any, ids: Any, count: int) -> list[float]:
        """Rounds with these layers while nobody watches."""
        try:
            for module, name, _, sketched in self.places:
                setattr(module, name, sketched)
            return rounds(device, ids, None, count, self.read)
        finally:
            for module, name, own, _ in self.places:
                setattr(module, name, own)


def rounds(device: Any, ids: Any, tap: Any, count: int, over: Callable[[], Any] = lambda: None) -> list[float]:
    """Processor seconds of each round."""
    if tap is not None:
        tap.begin(0)
    device.prefill(ids, 12 + 5 * count, tap)
    over()
    taken = []
    for number in range(1, count + 1):
        if tap is not None:
            tap.begin(number)
        start = time.process_time()
        draft = device.draft(tap)
        device.commit(draft, device.verify(draft, tap), tap)
        over()
        taken.append(time.process_time() - start)
    return taken


def tiny(golden: Any, repeats: int = 60, count: int = 6) -> None:
    """A round of the tiny pair in each way; medians."""
    device, ids = builder("xla", golden)(precision="bfloat16"), golden.manifest.case.prompts[0].ids
    array = device._engine.array
    within: dict[str, Callable[[], list[float]]] = {"nobody watches": lambda: rounds(device, ids, None, count)}
    watched: dict[str, Callable[[], list[float]]] = {
        "watched, whole": lambda: rounds(device, ids, Trace(golden.declared), count)
    }
    for numbers in (8, 64):
        keeping = Keeping(Smaller(numbers).kept(), "", golden.declared)
        layers = Layers({width: array(projection(0, numbers, width)) for width in (96, 128, 256)})
        watched[f"watched, sketch {numbers}"] = lambda keeping=keeping: rounds(
            device, ids, Trace(golden.declared, keeping=keeping), count
        )
        within[f"sketch {numbers} inside the programs"] = lambda layers=layers: layers.rounds(device, ids, count)
    # Apart: a watched round leaves caches of the processor and of the allocator behind that cost the next one.
    took = in_turn(within, repeats) | in_turn(watched, repeats // 6)
    least = statistics.median(took["nobody watches"])
    for name, seconds in took.items():
        print(f"  {name}: {1e3 * statistics.median(seconds):.2f} ms, {statistics.median(seconds) / least - 1:+.1%}")


def in_turn(ways: dict[str, Callable[[], list[float]]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every round of each way, in an order drawn anew each time; the first time does not count."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in random.Random(repeat).sample(list(ways), len(ways)):
            seconds = ways[name]()
            took[name] += seconds if repeat else []
    return took


def real_width(numbers: int, rows: int = 4, repeats: int = 30) -> None:
    """One layer at the width of gpt-oss-20b as a program, its experts those that one token runs through."""
    from parity.device.kernels.step import make_step

    hidden, intermediate, heads, kv, dim, experts = 2880, 2880, 64, 8, 64, 4
    engine = __import__("parity.device.engines.xla_engine", fromlist=["engine"]).engine()
    rng, dtype = np.random.default_rng(0), np.dtype("bfloat16")
    shapes = dict(
        input_norm=(hidden,), post_norm=(hidden,), q=(hidden, heads * dim), q_bias=(heads * dim,),
        k=(hidden, kv * dim), k_bias=(kv * dim,), v=(hidden, kv * dim), v_bias=(kv * dim,),
        o=(heads * dim, hidden), o_bias=(hidden,), sinks=(heads,), router=(hidden, experts), router_bias=(experts,),
        gate=(experts, hidden, intermediate), gate_bias=(experts, intermediate), up=(experts, hidden, intermediate),
        up_bias=(experts, intermediate), down=(experts, intermediate, hidden), down_bias=(experts, hidden),
    )  # fmt: skip
    weights = {
        name: engine.array(rng.standard_normal(shape, np.float32) * 0.02, dtype) for name, shape in shapes.items()
    }
    attention = __import__("parity.device.config", fromlist=["Attention"]).Attention
    known = {"heads": heads, "kv_heads": kv, "head_dim": dim}
    config = TargetConfig(
        hidden, 201088, attention(**{name: known.get(name) for name in attention.__dataclass_fields__}), (None,),
        experts, experts, intermediate, 7.0, 1.702, 1e-5, 256, (),
    )  # fmt: skip
    caches = tuple(engine.zeros((1, 256, kv, dim), dtype) for _ in range(2))
    cos = engine.array(np.ones((256, dim // 2), np.float32))
    places = np.arange(rows, dtype=np.int32)[None]
    step = make_step(engine.array(places), engine.array(places), (cos, cos), 256)
    x = engine.array(rng.standard_normal((1, rows, hidden), np.float32), dtype)
    tables = {width: engine.array(projection(0, numbers, width)) for width in (hidden, heads * dim, kv * dim)}
    plain = (x, step, weights, caches, config, None)
    from parity.device.kernels.tap import untapped

    kernel = sketching(target_layer, tables)
    ways = {
        "alone": lambda: jax.block_until_ready(target_layer(*plain, untapped).held),
        f"with sketches of {numbers}": lambda: jax.device_get(
            [one.held for one in type(x).run_program(kernel, (*plain, None))]
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        for name, way in ways.items():
            start = time.process_time()
            way()
            took[name] += [time.process_time() - start] if repeat > 1 else []
    least = statistics.median(took["alone"])
    for name, seconds in took.items():
        middle = statistics.median(seconds)
        print(f"  {rows} rows, {name}: {1e3 * middle:.1f} ms, {middle / least - 1:+.1%}")


def main() -> None:
    """Both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--only", choices=["tiny", "real"])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.only == "real":
            return widths()
        golden = trusted(Dump(chosen.golden)) if chosen.golden else small_golden(Path(folder))
        print("a round of the tiny pair, the xla engine, bfloat16:")
        tiny(golden)
    if chosen.only != "tiny":
        widths()


def widths() -> None:
    """Real width, by two sketches."""
    print("one layer of the width of gpt-oss-20b:")
    for numbers in (8, 64):
        real_width(numbers)


if __name__ == "__main__":
    main()
