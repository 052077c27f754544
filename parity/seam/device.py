"""What every device offers: its description and the five verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from parity.seam.taps import Tap

When = Literal["", "prefill", "round"]
Rows = Literal["all", "last"]


@dataclass(frozen=True)
class Shown:
    """Stages that a device hands to the tap: what it declares is its contract, and missing one of them is a failure.

    Args:
        stages: a glob over full stage names or their last parts (`target.layers.*.out`, `logits`).
        when: in `prefill` only, in each `round` only, or in both.
        rows: `all` of a pass, or the `last` one alone, as where only the last prompt row has logits.
    """

    stages: str
    when: When = ""
    rows: Rows = "all"


@dataclass(frozen=True)
class Description:
    """What a device says of itself.

    Args:
        name: the device's name, e.g. `numpy`.
        precision: `bfloat16` or `float32`, the dtype of weights and activations.
        num_layers: L of the target.
        num_drafter_layers: L of the drafter.
        k: K, draft tokens per round.
        max_positions: rows that fit the caches.
        eos: token ids that end a generation.
        versions: package name to version, of whatever decides the result.
        modules: the Python modules the device's maths is made of (for the independence check).
        constants: what it read of the two config.json files, under `target` and `drafter`: the key in the spelling of
            transformers 5, dotted (`rms_norm_eps`, `rope_parameters.factor`), to the number, flag, word or list that
            its maths uses, defaults included; end tokens in ascending order. A device that says one says them all:
            each is compared with the reference's own reading.
        notes: what else a reader of its runs must know, by a short name: programs compiled, parts replaced.
        shown: the stages that it hands over; none stands for every stage. What the verbs return (tokens, drafts,
            emitted ids) is shown always and need not be handed over. Between two shown stages a segment is compared.
        forcible: globs of the stages at which it continues with what the tap returns; none for a device of which
            tensors are only copied out.
        family: of its drafter, a name of `parity.families`; empty where it does not say: a drafter on taps.
        partial_kv: the pages of its cache that a drafter's row attends to, as `parity.partial_kv` writes them; empty
            for the whole cache.
        kv_cache: the formats of its caches, as `parity.kv_cache` writes them; empty for the dtype of the pass.
        varies_k: its `draft` takes the number of drafts of this round as well; see `VaryingK`.
        lanes: B, the sequences that it runs at once, where that is more than one; see `Batched`.
        samples: it speculates by sampling as well; see `Sampling` and `Samples`, of lanes `SamplesInLanes`.
        own_numbers: it samples by random numbers of its own, whatever it is given: nothing of it can be replayed.
        transactional: a verb that raises leaves the state it found. Where not, what needs it is not judged
            (`parity.adapters.transactional` makes it so).
    """

    name: str
    precision: str
    num_layers: int
    num_drafter_layers: int
    k: int
    max_positions: int
    eos: tuple[int, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    shown: tuple[Shown, ...] = ()
    forcible: tuple[str, ...] = ("*",)
    transactional: bool = True
    family: str = ""
    partial_kv: str = ""
    kv_cache: str = ""
    varies_k: bool = False
    lanes: int = 1
    samples: bool = False
    own_numbers: bool = False


class Device(Protocol):
    """The five verbs. A device holds one sequence at a time; `prefill` starts a new one.

    Lengths: after `prefill` of S prompt tokens the target cache holds S rows and the drafter
    cache S-1 (row p pairs token p+1 with the taps at p). A round that emits m tokens adds m rows
    to the target cache; the next `draft` re-feeds those m tokens as committed rows.

    A verb that raises (a tap may) leaves the state it found: calling it again gives what it would have given,
    and so does starting the round once more from `draft`. A failed `prefill` leaves the sequence before it. A device
    whose verbs do not says so: `Description.transactional`.
    """

    def describe(self) -> Description:
        """Say what this device is; no computation."""
        ...

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """Round 0: target prefill over S rows, drafter prefill over S-1 rows; the first token.

        Raises:
            ValueError: the prompt, the budget and K rows do not fit the caches.
        """
        ...

    def draft(self, tap: Tap) -> np.ndarray:
        """Draft: C committed rows and K-1 masked rows in one pass; K target-vocabulary ids.

        Fewer ids, or none, where the caches' end leaves no room: plain decoding from there on.
        """
        ...

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """Verify: the last emitted token and n <= K drafts as n+1 target rows; n+1 greedy ids.

        Parity chooses the drafts when it explores accepts and rejects. With none this is plain greedy
        decoding; a sequence that skipped `draft` continues without the drafter until the next `prefill`.
        """
        ...

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """Accept, commit and roll back; the ids emitted (cut by EOS and by the token budget)."""
        ...


class VaryingK(Device, Protocol):
    """A device whose rounds may have other numbers of drafts than K; it says so: `Description.varies_k`."""

    def draft(self, tap: Tap, k: int | None = None) -> np.ndarray:
        """Draft `k` tokens in this round, 0 to K; K where None.

        With 0 the drafter runs over the C committed rows alone, so that its cache misses nothing, and drafts nothing:
        the round is plain decoding of one token, and the next round may draft again.
        """
        ...
