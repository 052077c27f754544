"""What the default policy catches, and what a cosine would: the smallest error of one weight matrix.

    python benchmarks/sensitivity.py [--golden DIR] [--out docs/sensitivity.md] [--beside DEVICE ...]

One weight of the numpy device, and of every clean device beside it, is multiplied, element by element, by
1 + e * N(0, 1), kept wider than bfloat16, so that an e below a ULP is not rounded away. For each stage that the weight
feeds, e is bisected on a grid of eighths of an octave: the smallest that the policy lists, that it fails, and at which
the stage's cosine falls below 0.999, 0.99 and 0.98. Takes about ten minutes of one core, and five more for each device
beside, of which only what the policy fails is asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
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
from parity.device.engines.ranks import Ranks
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
    """A device whose weights can be perturbed, and one case to compare it with."""

    def __init__(self, golden: Dump, name: str = "numpy"):
        self.case, self.policy = PromptSlice(golden, 0, ROUNDS), read_policy(None, "bfloat16")
        self.name, self.device = name, device(name, golden, "bfloat16")

    def report(self, feeds: Iterable[Feed], e: float, mode: str) -> Report:
        """The verdict with these weights perturbed by e; they are put back."""
        kept = []
        for feed in dict.fromkeys(feeds):
            model = getattr(self.device, feed.side)
            weights = model.outer if feed.layer is None else model.layers[feed.layer]
            kept.append((weights, feed.weight, weights[feed.weight]))
        for weights, name, value in kept:
            weights[name] = self.perturbed(value, e)
        report = judge(self.case, self.device, mode, self.policy)[1]
        for weights, name, value in reversed(kept):
            weights[name] = value
        return report

    def perturbed(self, weight: Array | Ranks, e: float) -> Array | Ranks:
        """A weight with an error of relative size e, the same in what all ranks hold alike."""
        if isinstance(weight, Ranks):
            return Ranks([self.perturbed(part, e) for part in weight.parts])
        error = np.random.default_rng(0).standard_normal(weight.held.shape, np.float32)
        return Array(weight.held * (1 + np.float32(e) * error), weight.dtype)


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


class Probes:
    """Reports by e, one of a kind each: of all weights of a group at once, or of one weight after the other."""

    def __init__(self, bench: Bench, mode: str):
        self.bench, self.mode = bench, mode
        every = feeds()
        # k and v of the drafter reach attn_out without a stage between: in a local comparison they get their own runs.
        self.groups = [every[:-2], every[-2:]] if mode == "local" else [[feed] for feed in every]

    def __iter__(self) -> Iterator[tuple[Feed, Callable[[int], Report]]]:
        for group in self.groups:
            print(f"{self.bench.name}, {self.mode}: {', '.join(map(str, group))}", file=sys.stderr)
            probe = cache(lambda i, group=group: self.bench.report(group, 2 ** (i / 8), self.mode))
            yield from ((feed, probe) for feed in group)

    def verdict(self, feed: Feed, report: Report) -> str:
        """Local, the stage's own; chained, where errors travel, the whole report's."""
        return self.stage(feed, report).verdict if self.mode == "local" else report.verdict

    @staticmethod
    def stage(feed: Feed, report: Report):
        """What the report says of the stage that the weight feeds."""
        return next(one for one in report.stages if one.stage == feed.stage)

    def caught(self, feed: Feed, probe: Callable[[int], Report]) -> float:
        """The smallest e that the policy fails."""
        return smallest(lambda i: self.verdict(feed, probe(i)) == FAIL)

    def lines(self) -> list[Line]:
        """Every threshold of each stage, bisected."""
        return [self._line(feed, probe) for feed, probe in self]

    def _line(self, feed: Feed, probe: Callable[[int], Report]) -> Line:
        cosines = tuple(smallest(lambda i, bound=bound: self.stage(feed, probe(i)).cosine < bound) for bound in COSINES)
        listed = smallest(lambda i: self.verdict(feed, probe(i)) != PASS)
        return Line(feed, listed, self.caught(feed, probe), cosines)


def beside(lines: list[Line], benches: list[Bench], mode: str) -> str:
    """A markdown table of what is caught, a column for each further device; '' without any."""
    if not benches:
        return ""
    columns = [[probes.caught(*one) for one in probes] for probes in (Probes(bench, mode) for bench in benches)]
    names = [bench.name.rpartition(":")[2] for bench in benches]
    head = f"| caught, by device | numpy | {' | '.join(names)} |"
    rows = [[one.caught, *(column[place] for column in columns)] for place, one in enumerate(lines)]
    shown = [" | ".join(f"{e:.2g}" for e in row) for row in rows]
    body = [f"| `{one.feed}` | {row} |" for one, row in zip(lines, shown, strict=True)]
    return "\n".join(["", head, "|---|" + "--:|" * (1 + len(names)), *body, ""])


def table(lines: Iterable[Line]) -> str:
    """A markdown table."""
    head = "| stage | weight | listed at | caught at | cosine 0.999 | 0.99 | 0.98 | ratio |"
    return "\n".join([head, "|---|---|" + "--:|" * 6, *(one.markdown() for one in lines)])


TEXT = """# Sensitivity

The smallest relative error e of one weight matrix (each element times 1 + e N(0, 1)) that the default
policy sees, against the e at which the stage's cosine falls below a fixed bound. Made by
`python benchmarks/sensitivity.py --out docs/sensitivity.md --beside D:gathered D:tp_2` (D: `parity.device.variants`)
on the tiny pair: bfloat16, one chat prompt,
{rounds} verify rounds, e in steps of an eighth of an octave (9 %).

*Listed* is a warning (a failure under `--strict`), *caught* a failure. The ratio is how much larger the error has to
grow before a cosine of 0.999, and one of 0.98, notices.

## Local: the stage alone

Every stage starts from the golden's input, so that only its own weight's error is in it.

{local}
{local_beside}
## Chained: the whole verdict

One weight is perturbed and errors travel; the policy sees it where any stage warns or fails. The cosine is that of
the named stage.

{chained}
{chained_beside}"""


def main() -> None:
    """Bisect both modes and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--golden", type=Path, help="a golden of a bfloat16 pair; one prompt of the tiny pair by default"
    )
    parser.add_argument("--out", type=Path, help="markdown file to write; standard output by default")
    parser.add_argument(
        "--beside",
        nargs="*",
        default=[],
        metavar="DEVICE",
        help="further clean devices, as parity.device.variants:tp_2: what of theirs is caught",
    )
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        golden = Dump(options.golden) if options.golden else dump_golden(max_new_tokens=12, out=Path(folder) / "g")
        bench, others = Bench(golden), [Bench(golden, name) for name in options.beside]
        rounds = len(bench.case.manifest.case.prompts[0].generation.acceptance_length)
        lines = {mode: Probes(bench, mode).lines() for mode in ("local", "chained")}
        parts = {mode: table(found) for mode, found in lines.items()}
        parts |= {f"{mode}_beside": beside(found, others, mode) for mode, found in lines.items()}
        page = TEXT.format(rounds=rounds, **parts)
    options.out.write_text(page) if options.out else print(page)


if __name__ == "__main__":
    main()
