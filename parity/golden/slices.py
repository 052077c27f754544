"""One prompt of a golden or of a run, cut to its first rounds, as a dump of its own; and several such put together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.golden.manifest import Generation, PromptCase, Variant
from parity.golden.store import Dump


class OnePrompt(Dump):
    """A view: nothing is copied, and the prompt is number 0.

    The token budget of a prompt that is cut is what the kept rounds emitted, so that a device that is given this budget
    ends where the view ends. A prompt kept to its end keeps its budget: one that an end token ended has tokens left,
    and a device that goes on behind it shows that only if it may.

    Args:
        golden: the golden to cut.
        prompt: the prompt's number in it.
        rounds: verify rounds to keep; fewer where the prompt ended before.
        budget: token budget of the view, where it is not that.
    """

    def __init__(self, golden: Dump, prompt: int, rounds: int, budget: int | None = None):
        self.whole, self.prompt = golden, prompt
        self.folder, self.declared = golden.folder, golden.declared
        self.rows = {
            (variant, 0, round_, stage): row
            for (variant, number, round_, stage), row in golden.rows.items()
            if number == prompt and round_ <= rounds
        }
        case = golden.manifest.case
        cut = _cut(case.prompts[prompt], rounds)
        if budget is None:
            budget = case.max_new_tokens if cut == case.prompts[prompt] else len(cut.generation.emitted)
        case = case.model_copy(update={"prompts": (cut,), "max_new_tokens": budget})
        self.parts = {(variant, 0, *place): golden.parts[variant, prompt, *place] for variant, _, *place in self.rows}
        self.manifest = golden.manifest.model_copy(update={"case": case, "tensors": tuple(self.rows.values())})

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The whole golden's tensor, by this view's prompt number."""
        found = (variant, prompt, round_, stage) in self.rows
        return self.whole.stored(variant, self.prompt, round_, stage) if found else None


class Joined(Dump):
    """Views of one prompt each as one dump of so many prompts, in this order; nothing is copied."""

    def __init__(self, views: Sequence[Dump]):
        self.views, first = views, views[0]
        self.folder, self.declared = first.folder, first.declared
        self.rows = {
            (variant, n, *place): row for n, one in enumerate(views) for (variant, _, *place), row in one.rows.items()
        }
        self.parts = {
            (variant, n, *place): row for n, one in enumerate(views) for (variant, _, *place), row in one.parts.items()
        }
        prompts = tuple(one.manifest.case.prompts[0] for one in views)
        case = first.manifest.case.model_copy(update={"prompts": prompts})
        self.manifest = first.manifest.model_copy(update={"case": case, "tensors": tuple(self.rows.values())})

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The tensor of the view of this number."""
        return self.views[prompt].stored(variant, 0, round_, stage)


def _cut(prompt: PromptCase, rounds: int) -> PromptCase:
    whole = prompt.generation
    if whole is None:
        return prompt
    lengths = whole.acceptance_length[:rounds]
    cut = Generation(
        emitted=whole.emitted[: 1 + sum(lengths)],
        acceptance_length=lengths,
        accepted_drafts=whole.accepted_drafts[:rounds],
        finish=whole.finish if lengths == whole.acceptance_length else "length",
    )
    return prompt.model_copy(update={"generation": cut})
