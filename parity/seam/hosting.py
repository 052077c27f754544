"""What a device may offer of a serving engine: its own loop, prefixes, saved sequences, several lanes, dead rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from parity.seam.device import Description
from parity.seam.taps import Tap


class OnRound(Protocol):
    """Told by a host loop that a round is over."""

    def __call__(self, drafts: Sequence[int], emitted: Sequence[int], tokens: Sequence[int] | None = None) -> None:
        """Take what the round chose; the prefill is one, without drafts, which emits the first token.

        Args:
            drafts: those that were verified, n <= K.
            emitted: the ids that came out, cut by EOS and by the token budget.
            tokens: the target's n+1 greedy ids, where the host sees them; a device of which not every stage is shown
                declares `verify.tokens` then.
        """
        ...


@runtime_checkable
class Looping(Protocol):
    """A device whose host loop cannot be split into verbs: it is run whole, and says where its rounds end.

    So what the loop does wrong is the device's, and nobody repairs it who writes the adapter. Stages go to the tap as
    ever. What cannot be forced (`Description.forcible`) leaves the sequence its own: where it parts from the golden's
    the comparison ends. What needs single verbs is inconclusive.
    """

    def describe(self) -> Description:
        """Say what this device is; no computation."""
        ...

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> Sequence[int]:
        """Prefill and rounds until EOS or the budget; every id emitted, `on_round` called at the end of each round.

        Raises:
            ValueError: the prompt, the budget and K rows do not fit the caches.
        """
        ...


@runtime_checkable
class PlainDecoding(Protocol):
    """A device that decodes plainly in one call: what speculation has to be faster than, and to emit the tokens of.

    Without it plain decoding is `verify` without drafts and `commit`, token by token.
    """

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Sequence[int]:
        """Greedy decoding by the target alone until EOS or the budget; every id emitted, the prefill's first one too.

        It begins a sequence anew and leaves none: the next call is a `prefill`.

        Raises:
            ValueError: the prompt and the budget do not fit the caches.
        """
        ...


@runtime_checkable
class Synchronizes(Protocol):
    """A device whose calls may return before all that they sent has run."""

    def synchronize(self) -> None:
        """Wait until everything that was sent has run: what is still running falls into whatever is timed next."""
        ...


@runtime_checkable
class ComputesElsewhere(Protocol):
    """A device that computes in processes of its own, which this one's clock of processors does not see."""

    def processor_time(self) -> float:
        """Seconds that those have computed so far, all threads together."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A device whose prefill can continue from its caches: prefix hits, what is resumed after a stop or an abort."""

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """`Device.prefill` of a prompt whose first `cached` ids have committed rows in the caches.

        It may run over more of them again (a drafter on taps needs those of the last one), and shows the rows that it
        runs over: the prompt's last ones. Behind it everything is as after `prefill`, the caches shown whole.

        Args:
            cached: 0 to S - 1, at most the rows committed.

        Raises:
            ValueError: the caches' sequence does not begin with these ids.
        """
        ...


@runtime_checkable
class Saving(Protocol):
    """A device whose sequence can be taken off and put back: swapped out, pre-empted, moved."""

    def save(self, name: str) -> None:
        """Keep the sequence between two rounds under this name, off the device; its own goes on."""
        ...

    def restore(self, name: str) -> None:
        """Put that sequence back in the place of whatever is there."""
        ...


@runtime_checkable
class Batched(Protocol):
    """A device that runs several sequences at once, each in a lane: 0 to B - 1, `Description.lanes`.

    Each verb of `Device` for some of its lanes, all of them in one pass; what comes back is in their order. A lane that
    is not named keeps its sequence as it is. `prefill_batch` begins a sequence anew, beside others in mid-generation:
    sequences join and leave between rounds, their prompts have any lengths, and each accepts what it accepts. Every
    sequence has a tap of its own, which sees what it would see if the sequence were alone.
    """

    def describe(self) -> Description:
        """Say what this device is; no computation."""
        ...

    def prefill_batch(
        self, lanes: Sequence[int], prompts: Sequence[Sequence[int]], budgets: Sequence[int], taps: Sequence[Tap]
    ) -> Sequence[int]:
        """`Device.prefill` of each lane: the first tokens."""
        ...

    def draft_batch(
        self, lanes: Sequence[int], taps: Sequence[Tap], ks: Sequence[int] | None = None
    ) -> Sequence[np.ndarray]:
        """`Device.draft` of each lane; with `ks`, which only a device is given that says `varies_k`, so many drafts."""
        ...

    def verify_batch(
        self, lanes: Sequence[int], drafts: Sequence[np.ndarray], taps: Sequence[Tap]
    ) -> Sequence[np.ndarray]:
        """`Device.verify` of each lane."""
        ...

    def commit_batch(
        self,
        lanes: Sequence[int],
        drafts: Sequence[np.ndarray],
        verified: Sequence[np.ndarray],
        taps: Sequence[Tap],
    ) -> Sequence[np.ndarray]:
        """`Device.commit` of each lane."""
        ...


@runtime_checkable
class ContinuingInLanes(Protocol):
    """A device of several lanes whose prefills can continue from the caches of their lanes."""

    def prefill_from_batch(
        self,
        lanes: Sequence[int],
        cached: Sequence[int],
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        taps: Sequence[Tap],
    ) -> Sequence[int]:
        """`Continuing.prefill_from` of each lane, from as many rows as its own cache has of its own prompt."""
        ...


@runtime_checkable
class SavingInLanes(Protocol):
    """A device of several lanes whose sequences can be taken off and put back while others go on."""

    def save_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """`Saving.save` of each lane; a name is its lane's own."""
        ...

    def restore_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """`Saving.restore` of each lane: the sequence that was saved under this name there."""
        ...


@runtime_checkable
class Poisonable(Protocol):
    """A device whose dead cache rows can be overwritten, which shows whether anything reads them."""

    def poison(self, value: float) -> None:
        """Put `value` into every row of every cache that holds no committed row: behind the lengths, padding.

        Called between rounds only: after `prefill` or `commit`.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A device whose caches can be looked at between two calls of verbs or loops, whatever it shows during them."""

    def show_caches(self, tap: Tap) -> None:
        """Hand every `kv.*` stage of the sequence over as it is now: committed rows, and the lengths."""
        ...
