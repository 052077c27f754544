"""Emitted tokens beside the golden's: where a text first parts, and whether the golden's logits explain that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from parity.compare.choices import BUG
from parity.compare.report import Place
from parity.gates.lossless_golden_text import GoldenLogits
from parity.golden.views import TrustedGolden
from parity.stages import ACCEPT_EMITTED


@dataclass
class TextResult:
    """Texts beside the golden's: how many are the same, how the others' first other tokens were judged, and where.

    Attributes:
        said: the first other token that nothing explains, in words.
    """

    texts: int = 0
    same: int = 0
    tokens: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    place: Place | None = None
    said: str = ""

    @property
    def evidence(self) -> str:
        """One line."""
        others = ", ".join(f"{count} part at a {name}" for name, count in self.verdicts.items() if name != BUG)
        line = f"{self.same} of {self.texts} prompts the golden's text, {self.tokens} tokens"
        return "; ".join(part for part in (line, others, self.said) if part)


class GoldenTokens:
    """The emitted tokens of a golden's prompts, and what may tip a choice in this precision."""

    def __init__(self, golden: TrustedGolden, precision: str):
        self.golden, self.precision = golden, precision

    @cached_property
    def _logits(self) -> GoldenLogits:
        return GoldenLogits(self.golden, self.precision)

    def holds(self, number: int, text: Sequence[int]) -> bool:
        """Whether a prompt's text begins with these tokens: only then its logits behind them say anything."""
        return list(self.golden.manifest.case.prompts[number].generated.emitted[: len(text)]) == list(text)

    def beside(self, texts: Mapping[int, Sequence[int]]) -> TextResult:
        """Texts by the number of their prompts.

        Behind the first other token the context is another one, and nothing is compared.

        Raises:
            Inconclusive: the golden lacks the logits of a row that parts.
        """
        result = TextResult()
        for number, text in texts.items():
            result.texts += 1
            expected = self.golden.manifest.case.prompts[number].generated.emitted
            at = first_difference(text, expected)
            result.tokens += min(at + 1, len(expected))
            if at == len(text) == len(expected):
                result.same += 1
                continue
            verdict, place = self._judged(number, at, text, expected)
            result.verdicts[verdict] += 1
            if verdict == BUG and result.place is None:
                told = " is ".join(f"{one[at]}" if at < len(one) else "its end" for one in (expected, text))
                result.place, result.said = place, f"prompt {number}, token {at}: the golden's {told} here"
        return result

    def _judged(self, number: int, at: int, text: Sequence[int], expected: Sequence[int]) -> tuple[str, Place]:
        prompt = self.golden.manifest.case.prompts[number]
        if at == min(len(text), len(expected)):
            return BUG, Place(ACCEPT_EMITTED, None, number, len(prompt.generated.acceptance_length))
        return self._logits.judged(number, len(prompt.ids) + at - 1, expected[at], text[at])


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place in which two texts differ; the shorter one's length where it begins the longer one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
