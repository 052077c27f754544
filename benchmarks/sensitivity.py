"""What the default policy catches, and what a cosine would: the smallest error of one weight matrix.

    python benchmarks/sensitivity.py [--golden DIR] [--out docs/sensitivity.md]

One weight of the numpy device is multiplied, element by element, by 1 + e * N(0, 1), kept wider than
bfloat16, so that an e below a ULP is not rounded away. For each stage that the weight feeds, e is bisected
on a grid of eighths of an octave: the smallest that the policy lists, that it fails, and at which the
stage's cosine falls below 0.999, 0.99 and 0.98. Takes about six minutes of one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity.builders import device
from parity.calibrate import judge
from parity.compare.report import FAIL, PASS, Report
from parity.device.engines.numpy_engine import Array
from parity.golden.store import Dump
from parity.golden.views import PromptSlice
from parity.policy import read_policy
from parity.producers import dump_golden

COSINES = (0.999, 0.99, 0.98)
LOWEST, HIGHEST = -128, 24
"""Exponents of e in eighths of an octave: 1.5e-5 to 8."""
LAYER, DRAFTER_LAYER, ROUNDS = 4, 1, 3


@dataclass(frozen=True)
class Feed:
    """A weight and the stage it feeds without another stage between; `layer` is None outside the layers."""

    stage: str
    side: str
    layer: int | None
    weight: str

    def __str__(self) -> str:
        return f"{self.side}{'' if self.layer is None else f'.layers.{self.layer}'}.{self.weight}"


def feeds() -> list[Feed]:
    """One for each stage that has a weight of its own, in dataflow order."""
    inner = {"attn_in": "input_norm", "q": "q", "k": "k", "v": "v", "attn_out": "o", "router_logits": "router"}
    inner |= {"ffn_out": "down"}
    found = [Feed("target.embed", "target", None, "embed")]
    found += [Feed(f"target.layers.{LAYER}.{part}", "target", LAYER, name) for part, name in inner.items()]
    found += [Feed("target.pre_head_hidden", "target", None, "norm"), Feed("target.logits", "target", None, "head")]
    found += [Feed("verify.logits", "target", None, "head"), Feed("drafter.fc_out", "drafter", None, "fc")]
    for part, name in (("attn_out", "o"), ("ffn_out", "down")):
        found.append(Feed(f"drafter.layers.{DRAFTER_LAYER}.{part}", "drafter", DRAFTER_LAYER, name))
    found += [Feed("drafter.pre_head_hidden", "drafter", None, "norm"), Feed("drafter.logits", "drafter", None, "head")]
    return found + [Feed(f"kv.drafter.{DRAFTER_LAYER}.{name}", "drafter", DRAFTER_LAYER, name) for name in "kv"]


class Bench:
    """A device whose weights can be perturbed, and one case to hold it against."""

    def __init__(self, golden: Dump):
        self.case, self.policy = PromptSlice(golden, 0, ROUNDS), read_policy(None, "bfloat16")
        self.device = device("numpy", golden, "bfloat16")

    def report(self, feeds: Iterable[Feed], e: float, mode: str) -> Report:
        """The verdict with these weights perturbed by e; they are put back."""
        kept = []
        for feed in dict.fromkeys(feeds):
            model = getattr(self.device, feed.side)
            weights = model.outer if feed.layer is None else model.layers[feed.layer]
            kept.append((weights, feed.weight, weights[feed.weight]))
        for weights, name, value in kept:
            weights[name] = Array(self.perturbed(value.held, e), value.dtype)
        report = judge(self.case, self.device, mode, self.policy)[1]
        for weights, name, value in reversed(kept):
            weights[name] = value
        return report

    def perturbed(self, weight: np.ndarray, e: float) -> np.ndarray:
        """A weight with an error of relative size e."""
        return weight * (1 + np.float32(e) * np.random.default_rng(0).standard_normal(weight.shape, np.float32))


@dataclass(frozen=True)
class Line:
    """The smallest e by what sees it; inf where the whole range is not seen."""

    feed: Feed
    listed: float
    caught: float
    cosines: tuple[float, ...]

    def markdown(self) -> str:
        """One row of the table."""
        ratios = " / ".join(_times(self.cosines[i] / self.caught) for i in (0, -1))
        shown = " | ".join(f"{e:.2g}" for e in (self.listed, self.caught, *self.cosines))
        return f"| `{self.feed.stage}` | `{self.feed}` | {shown} | {ratios} |"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def smallest(seen: Callable[[int], bool]) -> float:
    """The smallest e of the grid that is seen; a larger one is taken to be seen as well."""
    low, high = LOWEST, HIGHEST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return 2 ** (low / 8) if seen(low) else np.inf


def line(feed: Feed, probe: Callable[[int], Report], whole: bool) -> Line:
    """Bisect every threshold of one stage; `whole`: the policy's verdict is the whole report's."""

    def stage(i: int):
        return next(one for one in probe(i).stages if one.stage == feed.stage)

    def verdict(i: int) -> str:
        return probe(i).verdict if whole else stage(i).verdict

    cosines = tuple(smallest(lambda i, bound=bound: stage(i).cosine < bound) for bound in COSINES)
    return Line(feed, smallest(lambda i: verdict(i) != PASS), smallest(lambda i: verdict(i) == FAIL), cosines)


def local(bench: Bench) -> list[Line]:
    """Every stage starts from the golden's input, so all weights are perturbed at once.

    Except k and v of the drafter, which reach attn_out without a stage between: they get their own runs.
    """
    every = feeds()
    groups = [every[:-2], every[-2:]]
    probes = [cache(lambda i, group=group: bench.report(group, 2 ** (i / 8), "local")) for group in groups]
    return [line(feed, probe, False) for group, probe in zip(groups, probes, strict=True) for feed in group]


def chained(bench: Bench) -> list[Line]:
    """One weight at a time; caught where any stage fails, as `parity diff` fails."""
    found = []
    for feed in feeds():
        print(f"chained {feed}", file=sys.stderr)
        found.append(line(feed, cache(lambda i, feed=feed: bench.report([feed], 2 ** (i / 8), "chained")), True))
    return found


def table(lines: Iterable[Line]) -> str:
    """A markdown table."""
    head = "| stage | weight | listed at | caught at | cosine 0.999 | 0.99 | 0.98 | ratio |"
    return "\n".join([head, "|---|---|" + "--:|" * 6, *(one.markdown() for one in lines)])


TEXT = """# Sensitivity

The smallest relative error e of one weight matrix (each element times 1 + e N(0, 1)) that the default
policy sees, against the e at which the stage's cosine falls below a fixed bound. Made by
`python benchmarks/sensitivity.py --out docs/sensitivity.md` on the tiny pair: bfloat16, one chat prompt,
{rounds} verify rounds, e in steps of an eighth of an octave (9 %).

*Listed* is a warning (a failure under `--strict`), *caught* a failure. The ratio is how much larger the error has to
grow before a cosine of 0.999, and one of 0.98, notices.

## Local: the stage alone

Every stage starts from the golden's input, so that only its own weight's error is in it.

{local}

## Chained: the whole verdict

One weight is perturbed and errors travel; the policy sees it where any stage warns or fails. The cosine is that of
the named stage.

{chained}
"""


def main() -> None:
    """Bisect both modes and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--golden", type=Path, help="a golden of a bfloat16 pair; one prompt of the tiny pair by default"
    )
    parser.add_argument("--out", type=Path, help="markdown file to write; standard output by default")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        golden = Dump(options.golden) if options.golden else dump_golden(max_new_tokens=12, out=Path(folder) / "g")
        bench = Bench(golden)
        rounds = len(bench.case.manifest.case.prompts[0].generation.acceptance_length)
        page = TEXT.format(rounds=rounds, local=table(local(bench)), chained=table(chained(bench)))
    options.out.write_text(page) if options.out else print(page)


if __name__ == "__main__":
    main()
