"""The device seam: what parity asks of an implementation, and the tap it hands over.

An implementation of speculative decoding becomes a *device* by offering the five verbs of
`Device`. Parity drives them round by round; the device hands every stage tensor to the `Tap`
it is given and continues with what the tap returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from parity.operations import Cut as Cut
from parity.operations import Operand as Operand
from parity.operations import Operation as Operation

Side = Literal["target", "drafter"]
When = Literal["", "prefill", "round"]
Rows = Literal["all", "last"]


class Offering(type(Protocol)):  # type: ignore[misc]  # the class of protocols has no public name
    """Protocols of what a tap may have beside being called; an attribute of that name which is no method is none."""

    def __instancecheck__(cls, tap: Any) -> bool:
        offered = [name for name in vars(cls) if not name.startswith("_")]
        return all(callable(getattr(tap, name, None)) for name in offered)


class Tap(Protocol):
    """Receives a stage tensor and returns the tensor to continue with.

    A recording tap returns its argument. A forcing tap returns the golden's tensor in the
    argument's dtype and shape, so that the next stage starts from the golden's input: this one
    rule is both teacher forcing (token stages) and local comparison (every stage).
    """

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Take `value` of the stage with this full name; logical rows only, no padding, no B axis."""
        ...


@runtime_checkable
class RankTap(Protocol, metaclass=Offering):
    """A tap that takes the stages of a tensor-parallel device rank by rank, merges them itself and sees where they
    part.

    A device hands it a stage in this way where its ranks hold tensors of their own; any other stage, and
    any other tap, gets the one whole tensor.
    """

    def ranks(self, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Sequence[np.ndarray]:
        """Take each rank's tensor of a stage; return what each continues with.

        Args:
            shards: in rank order, each with all axes of the stage.
            sharding: how they make one tensor: an axis letter of the stage (side by side along it), a letter with
                the number of neighbouring ranks that hold the same (`G/2`), `sum` (partial sums) or `replicated`.
        """
        ...


@runtime_checkable
class RowTap(Protocol, metaclass=Offering):
    """A tap that takes a stage whose rows come in several passes of one round: a chain of drafter steps.

    A device or reference that drafts step by step hands such a stage over pass by pass, so that each pass can be
    made to start from the golden; any other tap gets the whole stage with its last rows.
    """

    def rows(self, stage: str, value: np.ndarray, first: int, total: int) -> np.ndarray:
        """Take the next rows of a stage; return those to continue with.

        Args:
            value: some rows, with all axes of the stage.
            first: where they stand in the stage; 0 begins it anew.
            total: rows of the whole stage, known from the first pass on.
        """
        ...


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


Rule = Literal["residual", "match"]
DRAWS = ("draft", "accept", "replace", "target")
"""What a number in [0, 1) decides, in the order of a table of them: a draft; whether it is accepted; what takes the
place of a rejected one; a token out of the target's own distribution."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn instead of chosen greedily.

    The processors change the rows of target and drafter alike, in the order of the fields, which is that of
    transformers. Ties at an edge are all kept.

    Args:
        temperature: what logits are divided by, a normal number of float32; 0 is greedy, the lowest id on a tie.
        top_k: only the k largest logits; 0 for all.
        top_p: only the smallest set of the likeliest tokens that holds this much probability.
        min_p: only tokens at least this likely, as a share of the likeliest one.
        rule: `residual`: draft d is accepted with probability min(1, p(d) / q(d)), and a rejected one replaced by a
            draw from max(p - q, 0) made to sum to 1, q being what d was drawn from (arXiv 2211.17192, 2302.01318).
            `match`: every row draws from p alone, and drafts are accepted as long as they are what was drawn.

    Raises:
        ValueError: a number outside its range, or an unknown rule.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rule: Rule = "residual"

    def __post_init__(self) -> None:
        within = self.temperature == 0 or np.finfo(np.float32).tiny <= self.temperature < np.inf
        within = within and self.top_k >= 0 and 0 < self.top_p <= 1 and 0 <= self.min_p <= 1
        if not within or self.rule not in get_args(Rule):
            raise ValueError(f"{self} is no way to sample")


class Samples(Device, Protocol):
    """A device that samples, by numbers that it is given; it says so: `Description.samples`.

    A token is drawn by the inverse of the cumulative distribution in the order of ids: the first whose sum is above
    the number. `verify` returns for row i the draft where it is accepted, what takes its place where it is not (never
    the draft itself), and in the last row a token of the target's: `commit` is what it is without sampling. Rows behind
    the first rejected draft may all be -1: nothing was decided there. Drafts of a drafter without logits are certain: q
    is 1 there. A draft that a tap puts in the place of its own counts as drawn from the row's q. A rule or a processor
    that it does not have it refuses: `parity.errors.NotOffered`.
    """

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """Sample from the next `prefill` on; greedily again where `settings` is None.

        Args:
            uniforms: float32 [R, 4, n], n > K, in [0, 1): of round r, of what (`DRAWS`) and row i. The first token is
                `target` of round 0, row 0; the token behind n accepted drafts is `target` of row n.
        """
        ...


class SamplesInLanes(Protocol):
    """A device of several lanes that samples; it says so: `Description.samples`."""

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """`Samples.sample` of each lane: its next sequence has settings and numbers of its own."""
        ...


class Decides(Protocol):
    """A sampling device whose rule can be asked alone. Optional; it must be what `verify` does."""

    def decide(
        self,
        settings: Sampling,
        target_logits: np.ndarray,
        draft_logits: np.ndarray,
        drafts: np.ndarray,
        uniforms: np.ndarray,
    ) -> np.ndarray:
        """What `verify` would return in B rounds that have nothing to do with each other.

        Args:
            target_logits: float32 [B, K+1, V]; minus infinity stands for a probability of 0.
            draft_logits: float32 [B, K, V], of the same vocabulary.
            drafts: int64 [B, K].
            uniforms: float32 [B, 4, K+1], as a round's in `Samples.sample`.

        Returns:
            int64 [B, K+1].
        """
        ...


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
class Poisonable(Protocol):
    """A device whose dead cache rows can be overwritten, which shows whether anything reads them."""

    def poison(self, value: float) -> None:
        """Put `value` into every row of every cache that holds no committed row: behind the lengths, padding.

        Called between rounds only: after `prefill` or `commit`.
        """
        ...


class Rotary(Protocol):
    """A device's rotary embedding alone: the function `rotate`, in the module that holds the device's factory.

    Optional. It shows long positions, which no small pass reaches, so it must use what a pass uses: the same reading
    of the config, the same tables, the same kernel.
    """

    def __call__(self, folder: Path, side: Side, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotate head vectors as a pass under this checkpoint's config.json rotates q and k; no weights are read.

        Args:
            folder: holds config.json of a target or of a drafter.
            x: float32 [S, N, D], in the checkpoint's order of the head dimensions.
            positions: int64 [S], absolute, in any order.

        Returns:
            float32 [S, N, D].

        Raises:
            Exception: a RoPE schedule this device does not know in full, or a position outside
                [0, max_position_embeddings).
        """
        ...


@dataclass(frozen=True)
class Gemm:
    """One shape of matrix multiplication: [batch, M, K] times [batch, K, N].

    Args:
        shared: one left operand [M, K] meets all of the batch.
        dtype: of the operands and of the result in the program, the accumulator being float32 at least.
        values: the narrowest dtype that holds the operands' values; bfloat16 where a cast to float32 is all that
            made them float32.
    """

    m: int
    k: int
    n: int
    batch: int = 1
    shared: bool = False
    dtype: str = "bfloat16"
    values: str = "bfloat16"

    def __str__(self) -> str:
        left = f"{self.batch}x" if self.batch > 1 else ""
        return f"{left}{self.m}x{self.k}x{self.n}"


class Multiply(Protocol):
    """A device's matrix multiplication alone: the function `multiply`, in the module that holds its factory.

    Optional. It shows which shapes a device multiplies well, so it must use what a pass uses.
    """

    def __call__(self, left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
        """Multiply in the program's dtype.

        Args:
            left: [M, K] or [batch or 1, M, K], bfloat16 (ml_dtypes) or float32.
            right: [K, N] or [batch, K, N], of the same dtype.
            dtype: `bfloat16` or `float32`: what both are cast to before, and the dtype of the result.

        Returns:
            [M, N] or [batch, M, N] of this dtype.
        """
        ...


class Operate(Protocol):
    """A device's operations one by one: the function `operate`, in the module that holds its factory.

    Optional. It shows which operations a compiler gets wrong before a model runs, so it must compile and run them as a
    pass does. Where arrays follow NumPy's protocols this is `operation.apply` on the device's arrays.
    """

    def __call__(self, operation: Operation, *arrays: np.ndarray) -> np.ndarray | Sequence[np.ndarray]:
        """Carry out one operation.

        Args:
            arrays: its operands, of their shapes and dtypes (bfloat16 as ml_dtypes); they may be written to.

        Returns:
            its results, as declared; of integers any width will do. One array, or a sequence where it makes several.
        """
        ...


class Operations(Protocol):
    """The operations of a device's own programs: the function `operations`, in the module that holds its factory.

    Optional, beside `operate`; without it a device is asked for those of this project's pipeline. NumPy-style kernels
    are recorded by `parity.ops.record`.
    """

    def __call__(self) -> Iterable[Operation]:
        """Every operation of its programs."""
        ...
