"""The walk through the verbs: a few rounds of accepts and rejects on a prompt of two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from parity.contract.lines import Ledger
from parity.contract.tap import ContractTap, Force, Interrupt, unforced
from parity.decode import NO_DRAFTS
from parity.errors import ParityError
from parity.families import agreeing, family_of
from parity.pair_sizes import PairSizes
from parity.seam import UNWATCHED, Description, Device
from parity.shown import View

PROMPTS = ((5, 9), (7, 3), (11, 2), (4, 6))
"""Two tokens each: the next one is taken where the first token would end the generation."""
ULP = 2.0**-7
"""Two runs of the same program may sum in another order: one ULP of bfloat16, relative L2."""


def rows_needed(k: int) -> int:
    """Rows of the caches that the walk fills at the most, with room for one more round."""
    return 6 * k + 12


class Stopped(Exception):
    """A verb raised, or returned what nothing can follow."""


class Walk:
    """One device, walked through.

    Attributes:
        prompt: two tokens.
        recorded: what it handed over in the rounds of `rounds`.
        cached: rows of the drafter's cache.
    """

    def __init__(self, device: Device, says: Description, view: View, ledger: Ledger, pair: PairSizes):
        self.device, self.says, self.view, self.ledger, self.pair = device, says, view, ledger, pair
        self.k, self.prompt = says.k, PROMPTS[0]
        self.family = family_of(says.family)
        self.cached = self.family.prompt_rows(2)
        self.recorded: list[dict[str, np.ndarray]] = []

    def tap(self, force: Force = unforced) -> ContractTap:
        """A tap for one sequence."""
        return ContractTap(self.ledger, self.pair, self.view, self.says.precision, force)

    def call(self, verb: str, *arguments: Any) -> Any:
        """What a verb returns.

        Raises:
            Stopped: it raised.
        """
        try:
            return getattr(self.device, verb)(*arguments)
        except ParityError as error:
            raise Stopped(str(error)) from error

    def ids(self, line: str, value: Any, most: int, least: int, what: str) -> list[int]:
        """Ids that a verb returned, once they are some.

        Raises:
            Stopped: they are none.
        """
        shape = getattr(value, "shape", None)
        held = self.ledger.expect(
            line, shape is None or len(shape) == 1, f"{what} returned an array of shape {list(shape or ())}, not [n]"
        )
        try:
            ids = [index(one) for one in value] if held else []
        except TypeError as error:
            held = self.ledger.expect(line, False, f"{what} returned no integers ({error})")
            ids = []
        if not held:
            raise Stopped(f"{what} returned nothing that the next verb can take")
        wanted = str(most) if least == most else f"{least} to {most}"
        held = self.ledger.expect(line, least <= len(ids) <= most, f"{what} returned {len(ids)} ids; {wanted} are due")
        outside = [one for one in ids if not 0 <= one < self.pair.vocab]
        said = f"{what} returned {outside[:1]}, outside the target's vocabulary of {self.pair.vocab}"
        if not self.ledger.expect(line, not outside, said) or not held:
            raise Stopped(f"{what} returned nothing that the next verb can take")
        return ids

    def prefill(self, tap: ContractTap, budget: int) -> int:
        """The first token; closes round 0."""
        value = self.call("prefill", self.prompt, budget, tap)
        try:
            first = index(value)
        except TypeError:
            self.ledger.expect("prefill: returned", False, f"prefill returned a {type(value).__name__}, not one id")
            raise Stopped("prefill returned nothing that the next verb can take") from None
        fits = 0 <= first < self.pair.vocab
        if not self.ledger.expect("prefill: returned", fits, f"prefill returned {first}, outside the vocabulary"):
            raise Stopped("prefill returned no id")
        self.cached = self.family.prompt_rows(2)
        tap.close({"S": 2, "C": self.cached, "W": self.cached, "kv.target": 2, "kv.drafter": self.cached})
        return first

    def close(
        self, tap: ContractTap, drafts: int, held: int, own: Sequence[int], emitted: Sequence[int], k: int | None = None
    ) -> None:
        """Closes a round.

        Args:
            drafts: how many were verified.
            held: rows of the target's cache before it.
            own: what the drafter drafted.
            k: drafts that it was asked for, where that is not K.
        """
        k = self.k if k is None else k
        committed = self.family.committed(held, self.cached)
        self.cached = self.family.kept(held, agreeing(own[:-1], emitted), len(emitted))
        rows = {
            "S": drafts + 1,
            "K": len(own) if self.family.fewer else k,
            "M": len(emitted),
            **self.family.round_rows(committed, k),
        }
        tap.close(rows | {"kv.target": held + len(emitted), "kv.drafter": self.cached})

    def draft(self, tap: ContractTap) -> list[int]:
        """K drafts."""
        return self.ids("draft: returned", self.call("draft", tap), self.k, self.least(self.k), "draft")

    def verify(self, drafts: Sequence[int], tap: ContractTap) -> list[int]:
        """n+1 ids for these drafts."""
        value = self.call("verify", np.array(drafts, np.int64), tap)
        count = len(drafts) + 1
        return self.ids("verify: returned", value, count, count, f"verify of {len(drafts)} drafts")

    def commit(self, drafts: Sequence[int], tokens: Sequence[int], tap: ContractTap) -> list[int]:
        """The ids emitted for these drafts and ids."""
        value = self.call("commit", np.array(drafts, np.int64), np.array(tokens, np.int64), tap)
        return self.ids("commit: returned", value, len(tokens), 0, "commit")

    def open(self) -> None:
        """Choose a prompt whose first token ends nothing."""
        for self.prompt in PROMPTS:
            if self.prefill(self.tap(), 4) not in self.says.eos:
                return
        raise Stopped("every short prompt of the walk ends at its first token")

    def rounds(self) -> None:
        """All drafts accepted, one rejected, none verified, one that ends the generation; what is left after each."""
        tap, held, budget = self.tap(), 2, 4 * self.k + 8
        self.prefill(tap, budget)
        other, end = self.others, next(iter(self.says.eos), None)
        plans = [(other[: self.k], True), (other[:1], False), ([], True)]
        plans += [([*other[: self.k - 1], end], True)] if end is not None else []
        for drafts, agreed in plans:
            own = self.draft(tap)
            self.verify(drafts, tap)
            tokens = [*drafts, other[-1]] if agreed else [other[-1], *([other[-1]] * len(drafts))]
            emitted = self.commit(drafts, tokens, tap)
            self._accepted(drafts, tokens, emitted)
            self.close(tap, len(drafts), held, own, emitted)
            held += len(emitted)
            if not emitted:
                raise Stopped("commit emitted nothing")
        if end is None:
            self.ledger.skip("commit: eos", "neither the device nor config.json names an id that ends a generation")
        self.recorded = tap.rounds

    @property
    def others(self) -> list[int]:
        """K+1 different ids that end nothing."""
        return [one for one in range(20, 40 + 2 * self.k + len(self.says.eos)) if one not in self.says.eos][
            : self.k + 1
        ]

    def _accepted(self, drafts: Sequence[int], tokens: Sequence[int], emitted: Sequence[int]) -> None:
        agreed = int(np.cumprod([a == b for a, b in zip(drafts, tokens, strict=False)]).sum())
        due = list(tokens[: agreed + 1])
        ends = [place for place, token in enumerate(due) if token in self.says.eos]
        line = "commit: eos" if ends else "commit: returned"
        due = due[: ends[0] + 1] if ends else due
        said = f"of {len(drafts)} drafts {agreed} agree: commit returned {list(emitted)}, {due} are due"
        self.ledger.expect(line, list(emitted) == due, said)

    def budget(self) -> None:
        """A budget of two tokens: the round emits one, whatever agrees."""
        tap, other = self.tap(), self.others
        self.prefill(tap, 2)
        self.draft(tap)
        drafts = other[: self.k]
        self.verify(drafts, tap)
        emitted = self.commit(drafts, [*drafts, other[-1]], tap)
        said = f"of a budget of 2 the first token is 1: commit returned {len(emitted)} ids more"
        self.ledger.expect("commit: budget", len(emitted) == 1, said)

    def changing(self) -> None:
        """Rounds that are told their K: the largest, none, one, the largest again, everything accepted."""
        if not self.says.varies_k:
            return self.ledger.skip("draft: k", "varies_k=False: every round has K drafts")
        tap, held = self.tap(), 2
        self.prefill(tap, 4 * self.k + 8)
        for k in (self.k, 0, 1, self.k):
            drafts = self.others[:k]
            own = self.ids("draft: k", self.call("draft", tap, k), k, self.least(k), f"draft of {k} tokens")
            self.verify(drafts, tap)
            emitted = self.commit(drafts, [*drafts, self.others[-1]], tap)
            self.close(tap, k, held, own, emitted, k)
            held += len(emitted)

    def plain(self) -> None:
        """Rounds without a draft, to the end of a budget; as the gates decode where they ask for no drafts."""
        line, due = "verbs: plain", (self.others * (4 * self.k + 7))[: 4 * self.k + 7]
        try:
            self.call("prefill", self.prompt, len(due) + 1, UNWATCHED)
            for one in due:
                count = len(self.call("verify", NO_DRAFTS, UNWATCHED))
                self.ledger.expect(line, count == 1, f"verify of no drafts returned {count} ids, 1 is due")
                emitted = self.call("commit", NO_DRAFTS, np.array([one]), UNWATCHED)
                said = f"commit of no drafts and {one} returned {list(emitted)}"
                self.ledger.expect(line, list(emitted) == [one], said)
        except Stopped as stopped:
            self.ledger.expect(line, False, f"a round without a draft: {stopped}")

    def least(self, k: int) -> int:
        """Drafts of a round at the least, of k that are asked for."""
        return 0 if self.family.fewer else k

    def raising(self) -> None:
        """The first round once more, each verb interrupted first; what comes out is what came out before."""
        tap, other = self.tap(), self.others
        whole = self.says.transactional
        if not whole:
            self.ledger.skip("verbs: raising", "transactional=False: what raises on purpose is not judged")
        budget, drafts = 4 * self.k + 8, other[: self.k]
        for verb, arguments in (
            ("prefill", (self.prompt, budget)),
            ("draft", ()),
            ("verify", (np.array(drafts),)),
            ("commit", (np.array(drafts), np.array([*drafts, other[-1]]))),
        ):
            before = set(tap.tensors)
            if whole:
                self._interrupted(verb, arguments, tap)
            tap.tensors = {name: value for name, value in tap.tensors.items() if name in before}
            self.call(verb, *arguments, tap)
            self._alike(verb, tap.tensors, "verbs: raising" if whole and verb != "prefill" else "prefill: anew")
            if verb == "prefill":
                tap.rounds, tap.tensors, tap.round = [tap.tensors], {}, 1

    def _interrupted(self, verb: str, arguments: tuple[Any, ...], tap: ContractTap) -> None:
        """A verb with a tap that raises half way through what it hands over."""
        given = self.recorded[0 if verb == "prefill" else 1]
        side: dict[str, str | tuple[str, ...]] = {
            "prefill": "",
            "draft": "drafter",
            "verify": ("target", "verify"),
            "commit": ("accept", "kv"),
        }
        count = sum(name.startswith(side[verb]) for name in given)
        if not count:
            return
        kept = dict(tap.tensors)
        tap.interrupt = count // 2
        try:
            getattr(self.device, verb)(*arguments, tap)
        except (ParityError, Interrupt):
            pass
        else:
            told = tap.interrupt is not None
            said = f"{verb} hands over less than before" if told else f"{verb} returns although its tap raised"
            self.ledger.expect("verbs: raising", False, said)
        tap.interrupt, tap.tensors = None, kept

    def _alike(self, verb: str, tensors: dict[str, np.ndarray], line: str) -> None:
        recorded = self.recorded[0 if verb == "prefill" else 1]
        for name in tensors:
            alike = name in recorded and same(recorded[name], tensors[name])
            said = f"{verb} once more hands over another {name}"
            if not self.ledger.expect(line, alike, said):
                return
        self.ledger.expect(line, True, "")


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tensors are the same but for the order of sums."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "iu":
        return bool(np.array_equal(one, other))
    a, b = one.astype(np.float64), other.astype(np.float64)
    return bool(np.linalg.norm(a - b) <= ULP * np.linalg.norm(a)) or bool(np.array_equal(a, b, equal_nan=True))
