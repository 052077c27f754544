"""The lines of the contract between parity and a device, and what a walk found of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, BROKEN, NOT_EXERCISED = "ok", "broken", "not exercised"


@dataclass(frozen=True)
class Line:
    """One line: `name` is how messages speak of it, `says` what a device owes."""

    name: str
    says: str

    @property
    def verb(self) -> str:
        """The verb that it is about, or `tap` where it is about all of them."""
        return self.name.partition(": ")[0]


LINES = {
    line.name: line
    for line in (
        Line(
            "factory: verbs",
            "called as `factory(target=Path, drafter=Path, k=int, precision=str)`; what it returns has `describe` and "
            "`prefill`, `draft`, `verify`, `commit`, `describe` and `speculate` (`parity.seam.Looping`), or `describe` "
            "and the verbs of `parity.seam.Batched`, whose last lane is walked through",
        ),
        Line("describe: fields", "a `parity.seam.Description`, each field of its type; the same whenever it is asked"),
        Line("describe: case", "the precision and the K that the factory was called with"),
        Line("describe: layers", "the layers of both config.json; `max_positions` rows hold prompt, budget and K"),
        Line(
            "describe: eos",
            "every id that ends a generation, of the target's vocabulary; none only where config.json has none",
        ),
        Line("describe: modules", "the modules of your maths, as they are imported; at least one"),
        Line("describe: shown", "globs that match stages of this pair; a cache is shown with all its rows"),
        Line("describe: forcible", "globs that match stages of this pair; `()` where tensors are only copied out"),
        Line(
            "describe: constants",
            "`target` and `drafter` both, or neither; dotted keys to numbers, flags, words or lists; end tokens "
            "ascending",
        ),
        Line("tap: type", "a NumPy array of host numbers (`parity.adapters.to_numpy` makes one of torch's and JAX's)"),
        Line("tap: name", "a stage of the table, declared as shown, in the prefill or the rounds, once a round"),
        Line(
            "tap: dtype",
            "bfloat16 (`ml_dtypes.bfloat16`) or float32 of a bfloat16 device, float32 of a float32 one; int64, "
            "int32 or "
            "uint8 where the stage is exact",
        ),
        Line("tap: shape", "the axes of the stage: no batch axis, nothing transposed, nothing merged"),
        Line(
            "tap: rows",
            "logical rows, no padding: S of the prompt and n+1 of a verify for the target; for the drafter S-1 in the "
            "prefill, and in a round C taps, C committed and K-1 masked rows, K logits; one where `last` is declared",
        ),
        Line("tap: finite", "no NaN and no Inf"),
        Line(
            "tap: complete",
            "every stage that is shown, in every round; what the verbs return need not be handed over",
        ),
        Line("tap: returned", "where the stage is forcible, the device continues with what the tap returns"),
        Line(
            "prefill: returned",
            "gets the S prompt ids and the token budget; returns the first token, an id of the target's vocabulary",
        ),
        Line("prefill: anew", "leaves nothing of the sequence before it: the same prompt gives the same tensors"),
        Line(
            "draft: returned",
            "called with the tap alone it returns K ids of the target's vocabulary (behind `d2t`), fewer only at the "
            "caches' end",
        ),
        Line(
            "draft: k",
            "with `varies_k=True` gets the number of drafts behind the tap, 0 to K, and returns as many; with 0 it "
            "runs over the C committed rows alone and shows no stage of drafts but an empty `drafter.draft_tokens`",
        ),
        Line(
            "verify: returned",
            "gets n of 0 to K drafts, which parity may have chosen; returns n+1 greedy ids, one a row",
        ),
        Line(
            "commit: returned",
            "gets the drafts and the n+1 ids; returns the drafts that agree and the next id, the bonus: m tokens",
        ),
        Line("commit: eos", "the ids returned end at the first one that ends a generation"),
        Line("commit: budget", "with the first token never more ids than the budget"),
        Line("commit: length", "`accept.length` is m: it counts the bonus"),
        Line(
            "commit: caches",
            "leaves caches of all committed rows, shown whole: behind a prefill S target and S-1 drafter rows; a round "
            "adds m to the target's and the C rows of its draft to the drafter's, and takes the others back",
        ),
        Line(
            "verbs: plain",
            "decode plainly where a round comes without `draft`: `verify` of no drafts, then `commit` of the id; "
            "nobody watches, and what the drafter's cache misses by it is not asked for",
        ),
        Line(
            "verbs: raising",
            "a verb in which a tap raises passes that on and leaves the state it found: called again it gives the same "
            "(`transactional=False` where not)",
        ),
        Line(
            "speculate: rounds",
            "`on_round` behind the prefill (no drafts, one token) and behind every round (one token at least)",
        ),
        Line("speculate: returned", "every id emitted: those of the rounds in order, within the budget"),
    )
}
"""In the order in which a walk meets them."""

LOOP_ONLY = ("speculate: rounds", "speculate: returned")
VERBS_ONLY = (
    "prefill: returned", "prefill: anew", "draft: returned", "draft: k", "verify: returned", "commit: eos",
    "commit: budget", "verbs: plain", "verbs: raising",
)  # fmt: skip


@dataclass
class Ledger:
    """What a walk found: of each line what breaks it, or that it was met."""

    met: set[str] = field(default_factory=set)
    breaches: dict[str, list[str]] = field(default_factory=dict)
    unmet: dict[str, str] = field(default_factory=dict)

    def expect(self, line: str, held: bool, breach: str) -> bool:
        """Note that a line was met, and what breaks it if it is not held; whether it is."""
        assert line in LINES, line
        self.met.add(line)
        if not held and breach not in self.breaches.setdefault(line, []):
            self.breaches[line].append(breach)
        return held

    def skip(self, line: str, why: str) -> None:
        """Say why a line cannot be met."""
        assert line in LINES, line
        self.unmet.setdefault(line, why)

    def state(self, line: str) -> str:
        """Ok, broken, or not exercised."""
        return BROKEN if line in self.breaches else OK if line in self.met else NOT_EXERCISED


@dataclass(frozen=True)
class Checked:
    """A device against the contract.

    Args:
        lines: in the order of the contract: name, state, and what breaks it or why it was not met.
        broken: names of the lines that are broken, the first one found first.
        stopped: what ended the walk before its end; '' where nothing did.
    """

    device: str
    name: str
    precision: str
    k: int
    lines: tuple[tuple[str, str, tuple[str, ...]], ...]
    broken: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def verdict(self) -> str:
        """Fail where a line is broken, inconclusive where the walk did not come to its end."""
        return "fail" if self.broken else "inconclusive" if self.stopped else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 a line is broken, 3 the device raised."""
        return {"pass": 0, "fail": 1, "inconclusive": 3}[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        lines = [{"line": line, "state": state, "said": list(said)} for line, state, said in self.lines]
        about = {"device": self.device, "name": self.name, "precision": self.precision, "k": self.k}
        return about | {"lines": lines, "stopped": self.stopped, "verdict": self.verdict, "exit_code": self.exit_code}
