"""Acceptance curves as InferenceX keeps them: one YAML a drafter, mean acceptance length by mode and draft length.

The format is SemiAnalysis InferenceX's `golden_al_distribution`: a model's name, its modes (`thinking_on`,
`thinking_off`), and per number of drafts K the mean, 1 + accepted drafts / verify rounds, bonus included. Its
readers take a file of one model and nothing else, so limits, rates by place and counts stand beside it in comments, one
line of JSON for each K.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity import files, limits
from parity.compare.report import conclude, exit_code
from parity.errors import UsageError
from parity.gates.acceptance_counts import AcceptanceCounts
from parity.gates.acceptance_interval import TokenSums, interval_verdict, paired_bootstrap
from parity.golden.synthetic import refuse_synthetic
from parity.golden.views import DumpView

METADATA = "_metadata"
DEPTH = 8
"""Values within values; a curve has three."""
SOURCE = (
    "# Acceptance lengths, bonus token included: 1 + accepted drafts / verify rounds, greedy.\n"
    "# key = num_speculative_tokens; value = mean acceptance length; low and high are its one-sided 95 % limits.\n"
)


@dataclass(frozen=True)
class Point:
    """Acceptance of one dump: what its prompts generated freely.

    Attributes:
        mean: 1 + accepted drafts per verify round.
        low, high: its one-sided 95 % limits, prompts resampled.
        rates: [K] share of rounds that accept draft i.
        conditional: [K] of those that accepted draft i - 1; None where none did.
    """

    k: int
    mean: float
    low: float
    high: float
    rates: tuple[float, ...]
    conditional: tuple[float | None, ...]
    rounds: int
    prompts: int
    producer: str
    target: str
    drafter: str


@dataclass(frozen=True)
class Compared:
    """One draft length: a dump's point, and the curve's value there."""

    point: Point
    curve: float
    relative: float
    low: float
    high: float
    verdict: str
    why: str


@dataclass(frozen=True)
class CurveReport:
    """A curve's values against dumps of one drafter, joined by AND."""

    model: str
    mode: str
    compared: tuple[Compared, ...]

    @property
    def verdict(self) -> str:
        """The worst of all draft lengths."""
        return conclude(one.verdict for one in self.compared)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return exit_code(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {"verdict": self.verdict, "exit_code": self.exit_code}


def point(dump: DumpView) -> Point:
    """The acceptance of a golden or a run.

    Raises:
        UsageError: it generated nothing freely, or its acceptance is synthetic.
    """
    case, model = dump.manifest.case, dump.manifest.model
    refuse_synthetic(dump.manifest.producer, str(dump.folder))
    if case.schedule:
        raise UsageError(f"{dump.folder}: K changes between its rounds; a curve is over dumps of one K each")
    sums = _sums(dump)
    counts = AcceptanceCounts.of([prompt.generated for prompt in case.prompts], case.ks)
    if not counts.rounds:
        raise UsageError(f"{dump.folder} has no verify round: there is no acceptance in it")
    interval = paired_bootstrap(sums, TokenSums(sums.rounds, sums.rounds), 0)
    return Point(
        case.k,
        1 + interval.estimate,
        1 + interval.low,
        1 + interval.high,
        tuple(counts.rates.tolist()),
        tuple(None if math.isnan(rate) else rate for rate in counts.conditional.tolist()),
        counts.rounds,
        len(case.prompts),
        dump.manifest.producer.name,
        model.target.weights_digest,
        model.drafter.weights_digest,
    )


def _sums(dump: DumpView) -> TokenSums:
    """Per prompt the accepted drafts with a token of the target's for every round, and the rounds."""
    generations = [prompt.generated for prompt in dump.manifest.case.prompts]
    rounds = np.array([len(one.accepted_drafts) for one in generations], np.float64)
    return TokenSums(rounds + [sum(one.accepted_drafts) for one in generations], rounds)


def points(dumps: Sequence[DumpView]) -> dict[int, Point]:
    """By K, of one pair.

    Raises:
        UsageError: as `point`, two have the same K, or they are of different checkpoints.
    """
    found: dict[int, Point] = {}
    for dump in dumps:
        one = point(dump)
        first = next(iter(found.values()), one)
        if (one.target, one.drafter) != (first.target, first.drafter):
            raise UsageError(f"{dump.folder} is of another pair of checkpoints than {dumps[0].folder}: not one curve")
        if one.k in found:
            raise UsageError(f"{dump.folder}: there is a dump of K = {one.k} already; a curve has one value each")
        found[one.k] = one
    return dict(sorted(found.items()))


def write_curve(dumps: Sequence[DumpView], out: Path, model: str, mode: str) -> dict[int, Point]:
    """Write dumps of several K as one curve; the points.

    Raises:
        UsageError: as `points`, or the file is there already.
    """
    found = points(dumps)
    if out.exists():
        raise UsageError(f"{out} exists already; choose another --out or remove it")
    ours = "".join(f"# parity: {json.dumps({'mode': mode, **asdict(one)})}\n" for one in found.values())
    whole = {model: {mode: {k: round(one.mean, 2) for k, one in found.items()}}}
    files.put(out, (SOURCE + ours + _yaml().safe_dump(whole)).encode())
    return found


def read_curve(path: Path, model: str | None = None) -> tuple[str, dict[str, dict[int, float]]]:
    """The model of a file, and its values by mode and K.

    Args:
        model: whose, where the file holds several.

    Raises:
        UsageError: it is no such file, or holds values that no acceptance length can have.
    """
    whole = _parsed(path)
    named = {name: modes for name, modes in whole.items() if name != METADATA} if isinstance(whole, dict) else {}
    if named and not any(isinstance(modes, dict) for modes in named.values()):
        raise UsageError(f"{path}: {next(iter(named))!s:.80} has no modes with a value per draft length each")
    if model not in named and (model or len(named) != 1):
        raise UsageError(f"{path} holds {len(named)} models, one is needed: name --model")
    name = model or next(iter(named))
    modes = named[name]
    if not isinstance(modes, dict) or not modes or not all(isinstance(one, dict) and one for one in modes.values()):
        raise UsageError(f"{path}: {name!s:.80} has no modes with a value per draft length each")
    return str(name), {str(mode): dict(_value(path, *pair) for pair in one.items()) for mode, one in modes.items()}


def _value(path: Path, k: Any, value: Any) -> tuple[int, float]:
    """A draft length and its acceptance length, a number or a text of one.

    Raises:
        UsageError: the first is no number of drafts, or the second not between 1 and K + 1.
    """
    if type(k) is not int or not 1 <= k <= limits.DRAFTS:
        raise UsageError(f"{path}: {k!r:.40} is no number of drafts")
    try:
        length = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        length = math.nan
    if not 1 <= length <= k + 1:
        raise UsageError(f"{path}: {value!r:.40} is no acceptance length at K = {k}: 1 to {k + 1}, bonus included")
    return k, length


def compare_curve(
    dumps: Sequence[DumpView], path: Path, mode: str, model: str | None = None, bound: float = 0.05, seed: int = 0
) -> CurveReport:
    """Compare dumps with a curve's values of the same draft lengths: is a loss larger than the bound excluded?

    Raises:
        UsageError: as `points` and `read_curve`, or the curve has no such mode or draft length.
    """
    found = points(dumps)
    name, modes = read_curve(path, model)
    if mode not in modes:
        raise UsageError(f"{path} has no mode {mode}: there is {', '.join(modes)[:200]}")
    if missing := [k for k in found if k not in modes[mode]]:
        raise UsageError(f"{path} has no value of {mode} at K = {missing[0]}")
    by_k: Mapping[int, DumpView] = {dump.manifest.case.k: dump for dump in dumps}
    compared = []
    for k, one in found.items():
        sums, curve = _sums(by_k[k]), modes[mode][k]
        interval = paired_bootstrap(sums, TokenSums(curve * sums.rounds, sums.rounds), seed)
        verdict, why = interval_verdict(interval, bound, one.rounds, one.prompts)
        compared.append(Compared(one, curve, interval.estimate, interval.low, interval.high, verdict, why))
    return CurveReport(name, mode, tuple(compared))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError("acceptance curves are YAML: install PyYAML, or parity-harness[curves]") from None
    return yaml


def _parsed(path: Path) -> Any:
    """YAML without aliases, tags or double keys: values alone.

    Raises:
        UsageError: it is none.
    """
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.check_event(yaml.events.AliasEvent) or self.depth > DEPTH:
                raise yaml.YAMLError("an alias, or values within values")
            made = super().compose_node(parent, index)
            self.depth -= 1
            return made

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, True) for key, _ in node.value]
            if any(key in keys[:at] for at, key in enumerate(keys)):
                raise yaml.YAMLError("a key that is there twice")
            return super().construct_mapping(node, deep)

    data = files.content(path, limits.CURVE_BYTES, "curve")
    try:
        return yaml.load(data, Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(f"curve {path} cannot be read as YAML ({said})") from None
