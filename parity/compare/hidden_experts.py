"""Experts that a run does not show: inferred where a router tie may have tipped and the shown rows say so.

A device that shows layer outputs, or logits alone, chooses its experts unseen and continues with them. In bfloat16 a
choice within the router's noise may be another one than the golden's, and every row behind it is wide. The golden's
own router logits tell which choices are that close. Such a choice is taken for the device's where the reference, run
again with it, comes nearer to the row that the device shows; all other rows are judged as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parity.compare.flips import EXPERTS, hidden_layers
from parity.compare.rebased import Overlaid, WithTensors
from parity.compare.records import held
from parity.compare.rows import NOISY, StageRows, order, row_floors, stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.errors import UsageError
from parity.golden.views import DumpView, TensorPlace, TrustedGolden
from parity.stages import TARGET_EMBED, Named

SUSPECT = 2.0
"""Multiple of its row's noise beyond which a shown row may stand behind another choice: below the bound of a single
row, so that what is left is judged by that, and above what most clean rows reach."""

SUSPECT_FLOAT32 = 3e-5
"""The same for a float32 run, relative: above what its sums round, below the bound of a single row."""

FINER = 2.0**-16
"""Router noise of float32 over that of bfloat16: 24 significant bits over 8."""

NEARER = 0.8
"""Share of a row's error that a choice may leave to be taken for the device's. The wrong one of two close choices adds
an error of its own; where two choices of a row tipped, the right one of them alone leaves 0.7 of it."""

TRIALS, PATIENCE = 64, 4
"""Runs of the reference at most, and how many in a row may explain nothing: a device with a defect has many bad rows,
and no choice of experts mends them."""

TIPPING = 2
"""Runs of the reference with close choices tipped: the second one's are those that the first one's rows come to."""

CHOICES = 4
"""Other choices that are tried for a row and layer, the closest first."""

Spot = tuple[int, int, int]
"""Prompt, round and position of a row."""


@dataclass(frozen=True)
class ExpertChoice:
    """Experts that the device may have chosen at a row of a layer: within noise of the reference's."""

    place: TensorPlace
    row: int
    experts: tuple[int, ...]
    margin: float


Errors = dict[Spot, float]


class HiddenExperts:
    """Infers the experts of a run's layers that do not show them.

    Args:
        truth: the golden, or what stands for it, with floors of what the run was forced on.
        unresolved: choices that were not tried, of rows that nothing of the prefill shows, or for lack of runs.
        rerun: `rerun(run, prompts)` gives the float32 reference over these prompts with a run's experts.
    """

    def __init__(self, truth: TrustedGolden, run: DumpView, rerun: Callable[[DumpView, Sequence[int]], DumpView]):
        self.truth, self.run, self.rerun = truth, run, rerun
        self.fine = run.manifest.case.precision == "float32"
        self.hidden = hidden_layers(truth, run)
        place = order(truth)
        telling = [named for named in truth.declared.values() if self._tells(named)]
        self.shown = sorted(telling, key=lambda named: place.get((False, named.name), place.get((True, named.name), 0)))
        self._refuse_sketches()
        self.limits = {named.name: self._limits(named) for named in self.shown}
        self.chosen: dict[TensorPlace, dict[int, tuple[int, ...]]] = {}
        self.tried: set[ExpertChoice] = set()
        self.unresolved: list[ExpertChoice] = []
        self._noises: dict[int, dict[Spot, tuple[int, float]]] = {}

    def _refuse_sketches(self) -> None:
        """Raises:
        UsageError: what the run shows in place of its experts is kept as a sketch, which tells no row's.
        """
        if not (self.truth.keeps or self.run.keeps):
            return
        for named in self.shown:
            sides = held(self.truth, self.run, named) if not named.stage.exact else []
            if any(side.form.sketch and not side.form.top for one in sides for side in one.sides[:2]):
                raise UsageError(
                    f"the device does not show target.layers.*.experts, which are inferred from whole tensors, and of "
                    f"{named.name} a sketch is kept (golden {self.truth.folder}): show the experts, "
                    "or compare whole tensors (docs/smaller-goldens.md)"
                )

    def infer(self) -> DumpView | None:
        """The run with its experts as inferred; None where no row that it shows asks for others than the golden's."""
        basis: DumpView = self.truth
        fruitless = 0
        for _ in range(TRIALS):
            picks = self.picks(basis)
            if not picks or fruitless == PATIENCE:
                self.unresolved = [choice for choice in picks.values() if self.blind_prefill]
                break
            self.tried |= {*picks.values()}
            trial = self.again(self.chosen_with(picks.values()))
            taken = [choice for at, choice in picks.items() if self._nearer(basis, trial, *at)]
            fruitless = 0 if taken else fruitless + 1
            if taken:
                self.chosen = self.chosen_with(taken)
                basis = trial if len(taken) == len(picks) else self.again(self.chosen)
        else:
            self.unresolved = [*self.picks(basis).values()]
        return self._assuming(self.chosen) if self.chosen else None

    def assuming(self, choices: Iterable[ExpertChoice]) -> DumpView:
        """The run with these choices."""
        return self._assuming(self.chosen_with(choices))

    def tipped(self, prompts: Sequence[int]) -> Iterator[DumpView]:
        """The reference with every close choice of these prompts the other way: first those close by the golden, then
        with those that are so by what the tipped rows make of their later layers."""
        basis: DumpView = self.truth
        chosen = self.chosen_with(())
        for _ in range(TIPPING):
            close = self.close(basis, prompts, chosen)
            if not close:
                return
            for choice in sorted(close, key=lambda one: one.margin):
                chosen.setdefault(choice.place, {}).setdefault(choice.row, choice.experts)
            basis = self.again(chosen)
            yield basis

    def close(
        self, basis: DumpView, prompts: Sequence[int], chosen: Mapping[TensorPlace, Mapping[int, tuple[int, ...]]]
    ) -> list[ExpertChoice]:
        """Every close choice of these prompts' rows of which nothing is chosen yet."""
        all_ = (
            choice
            for layer in self.hidden
            for spot in self._router_noise(layer)
            if spot[0] in prompts
            for choice in self._choices(basis, [layer], spot)
        )
        return [choice for choice in all_ if choice.row not in chosen.get(choice.place, {})]

    def picks(self, basis: DumpView) -> dict[tuple[str, Spot], ExpertChoice]:
        """Of each round of each prompt, the first stage with bad rows that another choice may explain, and the closest
        such choice of each row: one of the layers since the stage shown before, or else one further back that showed
        too little there.

        Where several layers lie before the stage, a choice reaches the rows behind it as well: then one row at a time.
        Rounds are asked apart: many wrong rows of a defect in one say nothing of a tie in another.
        """
        picks: dict[tuple[str, Spot], ExpertChoice] = {}
        done: set[tuple[int, int]] = set()
        above = 0
        for named in self.shown:
            below = reach(named, self.truth)
            own = [layer for layer in self.hidden if above <= layer < below]
            back = [layer for layer in self.hidden if layer < above]
            above = max(above, below)
            for spot in sorted(self._bad(basis, named)):
                if spot[:2] in done:
                    continue
                near = next(self._untried(basis, own, spot), None) if own else None
                known = near or (next(self._untried(basis, back, spot), None) if back else None)
                if known is not None:
                    picks[named.name, spot] = known
                    done |= {spot[:2]} if near is None or len(own) > 1 else set()
            done |= {spot[:2] for _, spot in picks}
        return picks

    def _tells(self, named: Named) -> bool:
        """Whether a stage shows what experts of the target made of a row; tokens do where their logits are hidden."""
        if named.name not in self.run.manifest.stages or named.name not in self.truth.manifest.stages:
            return False
        if named.stage.exact:
            return named.name in TOKENS and TOKENS[named.name] not in self.run.manifest.stages
        return named.stage.side in ("target", "verify")

    def _errors(self, basis: DumpView, named: Named) -> Errors:
        """How far each row is off: relative L2, or the regret of a token."""
        rows = stage_rows(basis, self.run, named)
        if rows is None:
            return {}
        if not named.stage.exact:
            golden, device = (side.reshape(len(side), -1).astype(np.float64) for side in (rows.golden, rows.device))
            size = np.maximum(np.linalg.norm(golden, axis=1), np.finfo(np.float64).tiny)
            return dict(zip(spots(rows), (np.linalg.norm(device - golden, axis=1) / size).tolist(), strict=True))
        mode = self.run.manifest.case.mode
        scores = stage_rows(basis, basis, basis.declared[TOKENS[named.name]], device="float32", mode=mode)
        if scores is None:
            return {}
        known = dict(zip(spots(scores), scores.golden, strict=True))
        chosen = zip(spots(rows), rows.device.tolist(), strict=True)
        return {
            spot: float(known[spot].max() - known[spot][token])
            for spot, token in chosen
            if spot in known and 0 <= token < len(known[spot])
        }

    def _limits(self, named: Named) -> Errors:
        """The error beyond which a row is suspect."""
        scores = self.truth.declared[TOKENS[named.name]] if named.stage.exact else named
        rows = stage_rows(self.truth, self.truth, scores, device="float32", mode=self.run.manifest.case.mode)
        if rows is None:
            return {}
        if named.stage.exact:
            limits = NOISE_SIGMAS * row_noise(rows) * (FINER if self.fine else 1.0)
        elif self.fine:
            limits = np.full(len(rows.golden), SUSPECT_FLOAT32)
        else:
            golden, floor = (side.reshape(len(side), -1).astype(np.float64) for side in (rows.golden, rows.noise_floor))
            size = np.maximum(np.linalg.norm(golden, axis=1), np.finfo(np.float64).tiny)
            own = np.linalg.norm(floor - golden, axis=1) / size
            limits = SUSPECT * row_floors(own, np.zeros(len(own), dtype=bool), NOISY)
        return dict(zip(spots(rows), limits.tolist(), strict=True))

    def _bad(self, basis: DumpView, named: Named) -> list[Spot]:
        limits = self.limits[named.name]
        return [spot for spot, error in self._errors(basis, named).items() if not error <= limits.get(spot, np.inf)]

    def _nearer(self, basis: DumpView, trial: DumpView, stage: str, spot: Spot) -> bool:
        before, after = (self._errors(side, self.truth.declared[stage]).get(spot) for side in (basis, trial))
        return before is not None and after is not None and after <= NEARER * before

    def _untried(self, basis: DumpView, layers: Sequence[int], spot: Spot) -> Iterator[ExpertChoice]:
        """Other choices of a row in these layers, the closest first; of earlier rows too, where the prefill shows
        no row of its own."""
        own = sorted(self._choices(basis, layers, spot), key=lambda choice: choice.margin)
        yield from (choice for choice in own if choice not in self.tried)
        if len(layers) > 1 and self.blind_prefill:
            prompt, _, last = spot
            before = [choice for at in range(last) for choice in self._choices(basis, layers, (prompt, 0, at))]
            yield from (c for c in sorted(before, key=lambda choice: choice.margin) if c not in self.tried)

    @property
    def blind_prefill(self) -> bool:
        """Whether no stage shows every row of the prefill."""
        return not any(self.run.view.rows(named.name, 0) == "all" for named in self.shown)

    def _choices(self, basis: DumpView, layers: Sequence[int], spot: Spot) -> Iterator[ExpertChoice]:
        prompt, round_, _ = spot
        for layer in layers:
            stage = EXPERTS.format(l=layer)
            noise = self._router_noise(layer)
            if spot not in noise:
                continue
            row, limit = noise[spot]
            place: TensorPlace = (self.run.manifest.case.precision, prompt, round_, stage)
            scores = basis.contents("float32", prompt, round_, stage.replace("experts", "router_logits"))
            own = self.chosen.get(place, {}).get(row)
            mine = own or tuple(np.asarray(self.truth.contents("float32", prompt, round_, stage))[row].tolist())
            if scores is not None:
                yield from (
                    ExpertChoice(place, row, experts, margin) for experts, margin in swaps(scores[row], mine, limit)
                )

    def _router_noise(self, layer: int) -> dict[Spot, tuple[int, float]]:
        """Of each row its number in its pass, and the regret that noise explains."""
        if layer not in self._noises:
            named = self.truth.declared[EXPERTS.format(l=layer).replace("experts", "router_logits")]
            rows = stage_rows(self.truth, self.truth, named, device="float32", mode=self.run.manifest.case.mode)
            if rows is None:
                return {}
            begins = (np.diff(rows.prompt) != 0) | (np.diff(rows.round) != 0)
            begun = np.maximum.accumulate(np.r_[0, begins * np.arange(1, len(rows.prompt))])
            limits = NOISE_SIGMAS * row_noise(rows) * (FINER if self.fine else 1.0)
            numbered = zip((np.arange(len(begun)) - begun).tolist(), limits.tolist(), strict=True)
            self._noises[layer] = dict(zip(spots(rows), numbered, strict=True))
        return self._noises[layer]

    def chosen_with(self, choices: Iterable[ExpertChoice]) -> dict[TensorPlace, dict[int, tuple[int, ...]]]:
        """What was chosen so far, and these."""
        all_ = {place: {**rows} for place, rows in self.chosen.items()}
        for choice in choices:
            all_.setdefault(choice.place, {})[choice.row] = choice.experts
        return all_

    def again(self, chosen: Mapping[TensorPlace, Mapping[int, tuple[int, ...]]]) -> DumpView:
        """The float32 reference with these experts; of other prompts the truth."""
        prompts = sorted({place[1] for place in chosen})
        return Overlaid(self.truth, self.rerun(self._assuming(chosen), prompts), prompts)

    def _assuming(self, chosen: Mapping[TensorPlace, Mapping[int, tuple[int, ...]]]) -> WithTensors:
        """The run with these experts, and the golden's everywhere else."""
        experts: dict[TensorPlace, NDArray[np.int64]] = {}
        hidden = {EXPERTS.format(l=layer) for layer in self.hidden}
        for variant, prompt, round_, stage in self.truth.rows:
            if variant == "float32" and stage in hidden:
                place: TensorPlace = (self.run.manifest.case.precision, prompt, round_, stage)
                value = np.array(self.truth.contents("float32", prompt, round_, stage), dtype=np.int64)
                for row, ids in chosen.get(place, {}).items():
                    value[row] = ids
                experts[place] = value
        return WithTensors(self.run, self.truth, experts)


TOKENS = {"target.tokens": "target.logits", "verify.tokens": "verify.logits"}
"""The target's tokens, and the scores that they are chosen from."""


def reach(named: Named, golden: DumpView) -> int:
    """How many of the target's layers have chosen their experts before a stage."""
    if named.layer is None or named.stage.side != "target":
        return 0 if named.name == TARGET_EMBED else golden.manifest.model.num_layers
    return named.layer + int(named.stage.part in ("ffn_out", "out"))


def swaps(scores: np.ndarray, mine: tuple[int, ...], limit: float) -> list[tuple[tuple[int, ...], float]]:
    """Sets of experts [X] that differ from `mine` in one, and the regret of each by these scores [E], up to a limit."""
    left = [expert for expert in range(len(scores)) if expert not in mine]
    pairs = sorted((float(scores[kept] - scores[other]), kept, other) for kept in mine for other in left)
    near = [pair for pair in pairs if pair[0] <= limit][:CHOICES]
    return [(tuple(other if each == kept else each for each in mine), regret) for regret, kept, other in near]


def spots(rows: StageRows) -> list[Spot]:
    """Prompt, round and position of each row."""
    return list(zip(rows.prompt.tolist(), rows.round.tolist(), rows.position.tolist(), strict=True))
