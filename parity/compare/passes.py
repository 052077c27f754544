"""In which pass of a round a place lies, where the drafter drafts in a chain: each is computed from those before."""

from __future__ import annotations

from dataclasses import dataclass

from parity.compare.report import Place
from parity.compare.rows import Clock
from parity.families import family_of
from parity.golden.views import DumpView
from parity.stages import DRAFT_TOKENS


@dataclass(frozen=True)
class ChainPasses:
    """The passes of a golden's rounds; none where its drafter drafts in one."""

    clocks: tuple[Clock, ...] = ()

    @classmethod
    def of(cls, golden: DumpView) -> ChainPasses:
        """The passes of a golden."""
        if not family_of(golden.manifest.model.family).chain:
            return cls()
        return cls(tuple(Clock.all_of(golden)))

    def number(self, place: Place) -> int:
        """0 for the committed rows, then one for each chain row; what a round computes behind its drafts comes last."""
        if not self.clocks or place.round == 0:
            return 0
        clock = self.clocks[place.prompt]
        if not place.stage.startswith("drafter."):
            return clock.length(place.round)
        last = clock.first(DRAFT_TOKENS, place.round, 0)
        return max(0, (last if place.position is None else place.position) - last)

    def later(self, place: Place, than: Place) -> bool:
        """Whether a place of the drafter lies in a chain row, and behind another place of the drafter's."""
        drafted = place.stage.startswith("drafter.") and than.stage.startswith("drafter.")
        return drafted and self.number(place) > 0 and self._when(place) > self._when(than)

    def _when(self, place: Place) -> tuple[int, int, int]:
        return place.prompt, place.round, self.number(place)
