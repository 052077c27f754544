"""vLLM's steps sorted into the stages of one prompt, round by round.

vLLM drafts at the end of a step, so its prefill step already holds the drafter rows of round 1: the S-1 rows whose
next token is part of the prompt are round 0, the last committed row and the masked ones are round 1. Rejected rows stay
in vLLM's batch as padding; they are no logical rows and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.errors import UsageError
from parity.golden.manifest import Generation
from parity.references.vllm_capture.steps import Step
from parity.trace import Tensors


class Rounds:
    """One prompt's stages out of the steps that it took part in.

    Args:
        steps: the whole recording.
        request: vLLM's number of the prompt.
        prompt: S, its length in tokens.
        k: K, drafts per round.
        budget: tokens to emit at most.
        eos: token ids that end a generation.

    Raises:
        UsageError: the rows of a step are not what its round should have.
    """

    def __init__(self, steps: Sequence[Step], request: str, prompt: int, k: int, budget: int, eos: Sequence[int]):
        self.request, self.prompt, self.k, self.budget, self.eos = request, prompt, k, budget, eos
        self.tensors: Tensors = {}
        self.emitted: list[int] = []
        self.lengths: list[int] = []
        self.accepted: list[int] = []
        for round_, step in enumerate(one for one in steps if request in one.requests):
            place = step.requests.index(request)
            self._target(step, place, round_)
            self._emit(step, place, round_)
            if not self.finished:
                self._drafter(step, place, round_)
            elif round_ == 0:
                self._fed(step, place, 0, slice(0, prompt - 1))

    @property
    def finished(self) -> bool:
        """Whether the last emitted token ends the generation, or the budget is spent."""
        return self.emitted[-1] in self.eos or len(self.emitted) >= self.budget

    @property
    def generation(self) -> Generation:
        """What the prompt emitted."""
        return Generation(
            emitted=tuple(self.emitted),
            acceptance_length=tuple(self.lengths),
            accepted_drafts=tuple(self.accepted),
            finish="eos" if self.emitted[-1] in self.eos else "length",
        )

    @property
    def consistent(self) -> bool:
        """Whether what was emitted is what the recorded scores say: not so where the choices were forced."""
        seen = [int(self.tensors[0, "target.tokens"][-1])]
        for round_, length in enumerate(self.lengths, 1):
            seen += self.tensors[round_, "verify.tokens"][:length].tolist()
        return seen == self.emitted

    def _target(self, step: Step, place: int, round_: int) -> None:
        """The target's rows: S of the prompt, or K+1 to verify."""
        due = self.k + 1 if round_ else self.prompt
        for name in step.named("target.layers.", "target.embed", "target.pre_head_hidden"):
            self.tensors[round_, name] = _exactly(step.rows(name, place), due, name, step)
        side = "verify" if round_ else "target"
        logits = step.verified(place) if round_ else step.rows("target.logits", place)
        logits = _exactly(logits, due, f"{side}.logits", step)
        self.tensors[round_, f"{side}.logits"] = logits
        self.tensors[round_, f"{side}.tokens"] = logits.astype(np.float32).argmax(axis=1)

    def _emit(self, step: Step, place: int, round_: int) -> None:
        """What vLLM sampled, cut by EOS and budget as its scheduler cuts it."""
        sampled = step.part("sampled", place)[0]
        fresh = [int(token) for token in sampled[sampled >= 0]][: self.budget - len(self.emitted)]
        ends = [number for number, token in enumerate(fresh) if token in self.eos]
        fresh = fresh[: ends[0] + 1] if ends else fresh
        self.emitted += fresh
        if round_ == 0:
            return
        matching = self.tensors[round_, "drafter.draft_tokens"][: len(fresh)] == fresh[: self.k]
        self.lengths.append(len(fresh))
        self.accepted.append(int(np.cumprod(matching).sum()))
        self.tensors[round_, "accept.length"] = np.array([len(fresh)])
        self.tensors[round_, "accept.emitted"] = np.array(fresh)

    def _drafter(self, step: Step, place: int, round_: int) -> None:
        """The rows that draft for the next round; a prefill's rows but the last are its own round."""
        first = 0 if round_ else self.prompt - 1
        if round_ == 0:
            self._fed(step, place, 0, slice(0, first))
        rows = self._fed(step, place, round_ + 1, slice(first, None))
        sampled, drafts = step.part("drafter.sampled_rows", place), self.k if step.passes == 1 else 1
        if not np.array_equal(sampled, rows[-drafts:]):
            raise UsageError(
                f"vLLM step {step.number} samples from rows {sampled.tolist()}, not from the last {drafts}"
            )
        found = {
            "drafter.pre_head_hidden": step.tensors["drafter.normed"][sampled],
            "drafter.logits": step.part("drafter.logits", place),
        }
        self.tensors |= {(round_ + 1, name): value for name, value in found.items()}
        self.tensors[round_ + 1, "drafter.draft_tokens"] = step.part("drafter.draft_tokens", place)[0]
        for number in range(1, step.passes):
            self._chained(step, place, round_ + 1, f"chain.{number}.")

    def _chained(self, step: Step, place: int, round_: int, prefix: str) -> None:
        """The one row of a chain's later pass, behind those of the passes before it."""
        for name in step.named(prefix):
            value, stage = step.part(name, place), name.replace(prefix, "drafter.")
            stage = "drafter.pre_head_hidden" if stage == "drafter.normed" else stage
            value = self._places(step, place, value) if stage == "drafter.slots" else _whole(value)
            self.tensors[round_, stage] = np.concatenate((self.tensors[round_, stage], value))

    def _fed(self, step: Step, place: int, round_: int, part: slice) -> np.ndarray:
        """Some of the logical rows as the drafter's input and layers of a round; their numbers in the step."""
        start = step.tensors["drafter.starts"][place]
        masked, rejected = (step.rows(f"drafter.{mask}", place) for mask in ("masked", "rejected"))
        logical = np.flatnonzero(~rejected)
        committed = int((~masked[logical]).sum())
        if masked[logical].tolist() != [False] * committed + [True] * (self.k - step.passes):
            raise UsageError(
                f"vLLM step {step.number}: {masked.tolist()} are not the committed rows, then K-1 masked ones"
            )
        rows = logical[part]
        for name in step.named("drafter.layers.", "drafter.fc_out", "drafter.input_ids", "drafter.positions"):
            self.tensors[round_, name] = _whole(step.rows(name, place)[rows])
        self.tensors[round_, "drafter.slots"] = self._places(step, place, step.rows("drafter.slots", place))[rows]
        self.tensors[round_, "drafter.taps"] = step.rows("drafter.taps", place)[:committed][part]
        numbers: np.ndarray = start + rows
        return numbers

    def _places(self, step: Step, place: int, slots: np.ndarray) -> np.ndarray:
        """Physical slots of the paged cache as places in the sequence, by the request's block table; -1 for none."""
        slots, blocks = slots.astype(np.int64), step.tensors["drafter.blocks"][place]
        pages = {int(block): number for number, block in reversed(list(enumerate(blocks)))}
        where = np.array([pages.get(int(slot) // step.block_size, -1) for slot in slots])
        return np.where((slots < 0) | (where < 0), -1, where * step.block_size + slots % step.block_size)


def _whole(value: np.ndarray) -> np.ndarray:
    """Integers as int64, numbers as they are."""
    return value.astype(np.int64) if value.dtype.kind == "i" else value


def _exactly(value: np.ndarray, rows: int, name: str, step: Step) -> np.ndarray:
    if len(value) != rows:
        raise UsageError(
            f"vLLM step {step.number} has {len(value)} rows of {name}, {rows} were due: was a prefill chunked?"
        )
    return value
