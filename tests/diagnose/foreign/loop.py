"""The five verbs over the two models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from parity.seam import Description
from tests.diagnose.foreign.arithmetic import Precision
from tests.diagnose.foreign.drafter import Drafter
from tests.diagnose.foreign.sequence import Sequence, whole
from tests.diagnose.foreign.target import Target


class Foreign:
    """The pair as a device.

    Args:
        target, drafter: checkpoint folders.
        k: K.
        precision: `bfloat16` or `float32`.
        max_positions: rows of the caches.
        faults: names of `truth.TRUTH`.
    """

    def __init__(self, target, drafter, k, precision="bfloat16", max_positions=512, faults=frozenset()):
        self.rounded, self.precision, self.k, self.faults = Precision(precision), precision, k, faults
        self.positions = max_positions or 512
        self.target = Target(target, self.rounded, self.positions + k + 1, faults)
        self.drafter = Drafter(drafter, self.rounded, self.positions + k + 1, faults)
        if "drafter_rope_of_target" in faults:
            self.drafter.turn = self.target.turn
        self.eos = tuple(json.loads((Path(target) / "generation_config.json").read_text())["eos_token_id"])
        self.at = Sequence()

    def describe(self) -> Description:
        here = __name__.rpartition(".")[0]
        parts = ("arithmetic", "attention", "target", "drafter", "sequence", "loop")
        modules = tuple(f"{here}.{part}" for part in parts)
        layers = self.target.layers, self.drafter.layers
        return Description("foreign", self.precision, *layers, self.k, self.positions, self.eos, {}, modules)

    def poison(self, value: float) -> None:
        """Put `value` into the cache rows that hold nothing."""
        self.target.cache[:, :, :, self.at.length :] = value
        self.drafter.cache[:, :, :, self.at.draft_length :] = value

    @whole
    def prefill(self, prompt_ids, max_new_tokens, tap) -> int:
        ids = np.asarray(prompt_ids, np.int64)
        if len(ids) + max_new_tokens + self.k > self.positions:
            raise ValueError(f"{len(ids)} + {max_new_tokens} + {self.k} rows do not fit {self.positions}")
        self.at = Sequence(max_new_tokens)
        hidden = self.target.run(ids, 0, tap)
        logits = self.rounded.show(tap, "target.logits", self.target.head(hidden))
        tokens = np.asarray(tap("target.tokens", logits.argmax(axis=-1)))
        self.at.length, self.at.emitted = len(ids), [int(tokens[-1])]
        taps = self._taps()
        self._pass(ids[1:], taps[:-1], 0, tap)
        self.at.draft_length, self.at.owed = len(ids) - 1, taps[-1:]
        self._caches(tap)
        return int(tokens[-1])

    @whole
    def draft(self, tap) -> np.ndarray:
        fresh = len(self.at.owed)
        committed = np.array(self.at.emitted[-fresh:], np.int64)
        rows = self._pass(committed, self.at.owed, self.k - 1, tap)
        self.at.fed = fresh
        first = 0 if "draft_rows_first" in self.faults else fresh - 1
        return self.drafter.draft(rows[first : first + self.k], tap)

    @whole
    def verify(self, draft_tokens, tap) -> np.ndarray:
        ids = np.array([self.at.emitted[-1], *draft_tokens], np.int64)
        hidden = self.target.run(ids, self.at.length, tap)
        logits = self.rounded.show(tap, "verify.logits", self.target.head(hidden))
        return np.asarray(tap("verify.tokens", logits.argmax(axis=-1)))

    @whole
    def commit(self, draft_tokens, verify_tokens, tap) -> np.ndarray:
        drafts, tokens = np.asarray(draft_tokens, np.int64), np.asarray(verify_tokens, np.int64)
        fresh = self._accepted(drafts, tokens)[: self.at.budget - len(self.at.emitted)]
        ends = np.flatnonzero(np.isin(fresh, self.eos))
        fresh = fresh[: ends[0] + 1] if len(ends) else fresh
        length = int(np.asarray(tap("accept.length", np.array([len(fresh)])))[0])
        fresh = fresh if length == len(fresh) else tokens[:length]
        fresh = np.asarray(tap("accept.emitted", fresh))
        self._advance(fresh, len(tokens))
        self._caches(tap)
        return fresh

    def _accepted(self, drafts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        same = drafts == tokens[:-1]
        many = int(same.sum() if "accept_counts_all_matches" in self.faults else np.cumprod(same).sum())
        if "accept_drops_bonus" in self.faults and many == len(drafts) > 0:
            return tokens[:many]
        return tokens[: many + 1]

    def _advance(self, fresh: np.ndarray, rows: int) -> None:
        """Keep the rows of what was emitted, owe their taps to the drafter."""
        at, many = self.at, len(fresh)
        at.emitted += fresh.tolist()
        at.draft_length += at.fed
        at.length += many + ("keeps_rejected_row" in self.faults and many < rows)
        taps = self._taps()
        owed = taps[-many:] if "taps_last_rows" in self.faults else taps[:many]
        if "no_refeed" in self.faults and at.fed:
            stale = min(many, self.k) - 1  # the rows that this round's pass wrote behind the committed ones
            owed, at.draft_length = owed[stale:], at.draft_length + stale
        at.owed, at.fed = owed if at.fed else np.concatenate((at.owed, owed)), 0

    def _taps(self) -> np.ndarray:
        """The target's residual streams that enter the tapped layers, side by side: [S, TH]."""
        streams = self.target.middles if "tap_mid_layer" in self.faults else self.target.streams
        inputs = self.drafter.inputs[::-1] if "taps_descending" in self.faults else self.drafter.inputs
        return np.concatenate([streams[number - 1] for number in inputs], axis=-1)

    def _pass(self, committed: np.ndarray, taps: np.ndarray, masked: int, tap) -> np.ndarray:
        """The drafter over C committed and `masked` rows: residual stream [W, H]."""
        show, placeholder = self.rounded.show, self.drafter.placeholder
        if "placeholder_pad" in self.faults:
            placeholder = self.target.config["pad_token_id"]
        taps = show(tap, "drafter.taps", taps)
        ids = np.asarray(tap("drafter.input_ids", np.append(committed, [placeholder] * masked).astype(np.int64)))
        where = self.at.draft_length + np.arange(len(ids))
        positions = np.asarray(tap("drafter.positions", where))
        slots = np.asarray(tap("drafter.slots", where))
        fused = show(tap, "drafter.fc_out", self.drafter.fuse(taps, masked))
        return self.drafter.run(ids, fused, positions, slots, len(committed), tap)

    def _caches(self, tap) -> None:
        for side, model, length in (
            ("target", self.target, self.at.length),
            ("drafter", self.drafter, self.at.draft_length),
        ):
            for layer in range(model.layers):
                for kind, name in enumerate("kv"):
                    rows = model.cache[layer, kind, :, :length].swapaxes(0, 1)
                    rows = self.rounded.show(tap, f"kv.{side}.{layer}.{name}", rows)
                    model.cache[layer, kind, :, :length] = rows.swapaxes(0, 1)
            tap(f"kv.{side}.length", np.array([length]))
