"""Clean variants of the device: they differ in what rounding does, and in nothing that a user could call wrong.

`CLEAN` names them; each is a factory for `--device parity.device.variants:NAME`. Summation order and accumulator,
padding widths, a batch, tensor-parallel ranks, and the formulation of the experts. Masks and caches have one
formulation each, which every variant shares: masks are iota compares, caches keep every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from parity.device import rotate  # noqa: F401  no variant changes the rotary embedding: there is no sum in it
from parity.device.assembly import assemble
from parity.device.batch import Batch
from parity.device.engines.reordered import Order, engine
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

PLAIN = Order()


@dataclass(frozen=True)
class Variant:
    """One way to run the same kernels.

    Args:
        order: of every sum.
        copies: of the sequence, which run together.
        prompt_bucket: prompts are padded to a multiple of it; the device's own where None.
        span_bucket: attended cache rows likewise.
        tp: tensor-parallel ranks.
        moe: the formulation of the experts.
        name: what the device calls itself.
    """

    order: Order = PLAIN
    copies: int = 1
    prompt_bucket: int | None = None
    span_bucket: int | None = None
    tp: int = 1
    moe: str = "masked"
    name: str = ""

    def __call__(
        self,
        target: Path,
        drafter: Path,
        k: int,
        precision: str = "bfloat16",
        batch: int | None = None,
        partial_kv: str = "",
        kv_cache: str = "",
        lanes: int = 1,
        prefill_rows: int | None = None,
    ) -> Pipeline | Batch:
        """Load a pair of checkpoints, as `parity.device.load`; `batch` takes the place of the variant's copies.

        Raises:
            UsageError: lanes of a variant that runs copies.
        """
        copies = batch or self.copies
        if min(copies, lanes) > 1:
            raise UsageError(f"{self.name} runs copies of one sequence: it has no lanes")
        machine = engine(f"numpy, {self.name}", self.order, copies)
        case = Path(target), Path(drafter), k, precision
        pipeline = assemble(*case, machine, None, self.tp, self.moe, partial_kv=partial_kv, kv_cache=kv_cache)
        pipeline.prompt_bucket = self.prompt_bucket or pipeline.prompt_bucket
        for model in (pipeline.target, pipeline.drafter):
            model.span_bucket = self.span_bucket or model.span_bucket
        pipeline.prefill_rows = prefill_rows
        return pipeline if lanes == 1 else Batch(pipeline, lanes)


def backwards(count: int) -> np.ndarray:
    """The last term first."""
    return np.arange(count)[::-1]


def shuffled(count: int, seed: int) -> np.ndarray:
    """A random order, the same for the same seed and count."""
    return np.random.default_rng([seed, count]).permutation(count)


def _variants() -> dict[str, Variant]:
    found = {
        "plain": Variant(),
        "reversed": Variant(Order(backwards)),
        "float64_sums": Variant(Order(accumulator=np.float64)),
        "unpadded": Variant(prompt_bucket=1, span_bucket=1),
        "prompt_bucket_128": Variant(prompt_bucket=128),
        "span_bucket_512": Variant(span_bucket=512),
        "reversed_unpadded_batch_3": Variant(Order(backwards), 3, 1, 1),
        "gathered": Variant(moe="gathered"),
        "gathered_tp_2": Variant(moe="gathered", tp=2),
    }
    found |= {f"tp_{ranks}": Variant(tp=ranks) for ranks in (2, 4)}
    found |= {f"split_k_{parts}": Variant(Order(parts=parts)) for parts in (2, 4, 8)}
    found |= {f"batch_{copies}": Variant(copies=copies) for copies in (2, 3)}
    found |= {f"shuffled_{seed}": Variant(Order(partial(shuffled, seed=seed))) for seed in range(6)}
    found |= {
        f"shuffled_split_k_{parts}": Variant(Order(partial(shuffled, seed=100 + parts), parts)) for parts in (3, 5)
    }
    return {name: replace(variant, name=name) for name, variant in found.items()}


CLEAN: Mapping[str, Callable[..., Pipeline | Batch]] = _variants()


def __getattr__(name: str) -> Callable[..., Pipeline | Batch]:
    if name not in CLEAN:
        raise AttributeError(f"no clean variant {name}; there is {', '.join(CLEAN)}")
    return CLEAN[name]
