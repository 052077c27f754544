"""How often rounding alone is called a wrong choice: a clean run's errors against the gaps of a golden's scores.

    python benchmarks/choices.py --golden DIR RUN

For every row the gap between the last score chosen and the first that was not, in that row's noise; for every row and
competitor the error of the difference of the two scores, likewise. Taken as independent, the chance that an error
closes a gap beyond the bound, summed over the rows, is the number of wrong alarms to expect in one run. Then how many
choices of experts differ from the golden's float32 ones: in its bfloat16 floors, chained and local, and in the run.
"""

import argparse
from pathlib import Path

import numpy as np

from parity.compare.choices import row_noise
from parity.compare.rows import stage_rows
from parity.compare.scores import SCORES
from parity.golden.store import Dump

MULTIPLES = (5, 6, 7)
COMPETITORS = 3


def alarms(golden: Dump, run: Dump, name: str, chosen: int) -> tuple[int, float, dict[int, float]]:
    """Rows, the largest error of a difference in noise, and wrong alarms to expect for each multiple.

    Args:
        name: a stage of scores [R, X]; `chosen` of each row are chosen.
    """
    rows = stage_rows(golden, run, golden.declared[name])
    noise = row_noise(rows)
    order, every = np.argsort(-rows.golden, axis=1), np.arange(len(rows.golden))
    last, others = order[:, chosen - 1], order[:, chosen : chosen + COMPETITORS]
    gap = (rows.golden[every, last] - rows.golden[every, others[:, 0]]) / noise
    error = rows.device.astype(np.float64) - rows.golden
    closed = np.sort(np.abs([(error[every, other] - error[every, last]) / noise for other in others.T]).ravel())

    def expected(bound: float) -> float:
        reached = 1 - np.searchsorted(closed, gap[gap > bound]) / len(closed)
        return float(reached.sum() / 2)  # errors are as likely to open a gap

    return len(gap), float(closed[-1]), {multiple: expected(multiple) for multiple in MULTIPLES}


def flipped(golden: Dump, other: Dump, variant: str, layers: list[str]) -> tuple[int, int]:
    """Choices of experts of a variant that differ from the golden's float32 ones, and choices in all."""
    different = every = 0
    for row in other.manifest.tensors:
        prompt, round_, stage = row.place
        if row.variant == variant and not row.rank and stage in layers:
            true, seen = (
                one.stored(name, prompt, round_, stage) for one, name in ((golden, "float32"), (other, variant))
            )
            different += int((np.sort(true[-len(seen) :]) != np.sort(seen)).any(axis=1).sum())
            every += len(seen)
    return different, every


def main() -> None:
    """Experts of all layers together, then each group of logits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--golden", type=Path, required=True)
    options = parser.parse_args()
    golden, run = Dump(options.golden), Dump(options.run)
    layers = [name for name in golden.manifest.stages if name.endswith(".router_logits")]
    experts = golden.stored("float32", 0, 0, layers[0].replace("router_logits", "experts")).shape[1]
    groups = {"experts": [(name, experts) for name in layers]} | {
        stage: [(SCORES[stage], 1)] for stage in SCORES if stage in golden.manifest.stages
    }
    print(f"{golden.manifest.producer.name}; wrong alarms to expect in a run at {MULTIPLES} x noise")
    for group, members in groups.items():
        found = [alarms(golden, run, *member) for member in members]
        rates = ", ".join(f"{sum(one[2][multiple] for one in found):.4f}" for multiple in MULTIPLES)
        rows, largest = sum(one[0] for one in found), max(one[1] for one in found)
        print(f"{group:24s} {rows:6d} rows, largest {largest:.2f} x noise: {rates}")
    chosen = [name.replace("router_logits", "experts") for name in layers]
    for what, dump, variant in (
        ("floor, chained", golden, "bfloat16"),
        ("floor, local", golden, "bfloat16.local"),
        ("run", run, run.manifest.case.precision),
    ):
        different, every = flipped(golden, dump, variant, chosen)
        print(f"experts of the {what}: {different} of {every} choices differ from float32's")


if __name__ == "__main__":
    main()
