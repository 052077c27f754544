"""The stages of speculative decoding, in dataflow order: the only place a stage name is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from parity.errors import UsageError
from parity.families import BLOCK, MODEL, TAPS, family_of

PREFILL, ROUND = "prefill", "round"
PAGES = "pages"
"""What a stage needs that only a drafter with partial KV has."""
QUANTISED = "quantised"
"""What a stage needs that only a drafter has whose caches keep another format: see `parity.kv_cache`."""

# Full names that other modules speak of; every other name is made from a template of the table below.
TARGET_EMBED = "target.embed"
TARGET_LOGITS = "target.logits"
TARGET_TOKENS = "target.tokens"
VERIFY_LOGITS = "verify.logits"
VERIFY_TOKENS = "verify.tokens"
DRAFTER_TAPS = "drafter.taps"
DRAFTER_INPUT_IDS = "drafter.input_ids"
DRAFTER_POSITIONS = "drafter.positions"
DRAFTER_SLOTS = "drafter.slots"
DRAFTER_FC_OUT = "drafter.fc_out"
DRAFTER_LOGITS = "drafter.logits"
DRAFT_TOKENS = "drafter.draft_tokens"
ACCEPT_LENGTH = "accept.length"
ACCEPT_EMITTED = "accept.emitted"

OF_PREFILL = {VERIFY_LOGITS: TARGET_LOGITS, VERIFY_TOKENS: TARGET_TOKENS}
"""Stages of verify passes by the one that is the same computation in the prefill, under a name of its own."""


@dataclass(frozen=True)
class Stage:
    """One row of the stage table.

    Args:
        template: full name; `{l}` stands for a layer number.
        axes: axis letters of the design, in storage order.
        exact: integers that must agree, as against numbers with a noise floor.
        when: in `prefill` (round 0), in `round` (rounds 1, 2, ...), or both.
        forced: a choice, teacher-forced to the golden in a chained run (tokens, experts, accepted counts):
            the device's own choice is recorded and judged, then the run continues with the golden's.
        cache: rows accumulate over the rounds; stored as what changed since the round before.
        inputs: templates of the stages it is computed from; `{p}` is the layer before, `{last}` the last
            one, `{any}` every one.
        needs: what a drafter must have to have this stage: see `parity.families`, `PAGES` or `QUANTISED`; nothing where
            any has.
    """

    template: str
    axes: tuple[str, ...]
    exact: bool = False
    when: tuple[str, ...] = (PREFILL, ROUND)
    forced: bool = False
    cache: bool = False
    inputs: tuple[str, ...] = ()
    needs: str = ""

    @property
    def part(self) -> str:
        """The bare last part: `attn_out` of `target.layers.{l}.attn_out`."""
        return self.template.rsplit(".", 1)[-1]

    @property
    def side(self) -> str:
        """`target`, `drafter`, `verify`, `accept` or `kv`."""
        return self.template.split(".", 1)[0]


DRAFTER_ROWS = (DRAFTER_INPUT_IDS, DRAFTER_POSITIONS, DRAFTER_SLOTS, DRAFTER_FC_OUT, "drafter.layers.{p}.out")
"""What makes the rows that a drafter's layer runs over."""

TABLE: tuple[Stage, ...] = (
    Stage(TARGET_EMBED, ("S", "H")),
    Stage("target.layers.{l}.attn_in", ("S", "H"), inputs=(TARGET_EMBED, "target.layers.{p}.out")),
    Stage("target.layers.{l}.q", ("S", "N", "D"), inputs=("target.layers.{l}.attn_in", "kv.target.length")),
    Stage("target.layers.{l}.k", ("S", "G", "D"), inputs=("target.layers.{l}.attn_in", "kv.target.length")),
    Stage("target.layers.{l}.v", ("S", "G", "D"), inputs=("target.layers.{l}.attn_in",)),
    Stage(
        "target.layers.{l}.attn_out",
        ("S", "H"),
        inputs=(
            "target.layers.{l}.q",
            "target.layers.{l}.k",
            "target.layers.{l}.v",
            "kv.target.{l}.k",
            "kv.target.{l}.v",
        ),
    ),
    Stage(
        "target.layers.{l}.router_logits",
        ("S", "E"),
        inputs=(TARGET_EMBED, "target.layers.{p}.out", "target.layers.{l}.attn_out"),
    ),
    Stage(
        "target.layers.{l}.experts", ("S", "X"), exact=True, forced=True, inputs=("target.layers.{l}.router_logits",)
    ),
    Stage(
        "target.layers.{l}.ffn_out",
        ("S", "H"),
        inputs=(
            TARGET_EMBED,
            "target.layers.{p}.out",
            "target.layers.{l}.attn_out",
            "target.layers.{l}.router_logits",
            "target.layers.{l}.experts",
        ),
    ),
    Stage(
        "target.layers.{l}.out",
        ("S", "H"),
        inputs=(TARGET_EMBED, "target.layers.{p}.out", "target.layers.{l}.attn_out", "target.layers.{l}.ffn_out"),
    ),
    Stage("target.pre_head_hidden", ("S", "H"), inputs=("target.layers.{last}.out",)),
    Stage(TARGET_LOGITS, ("S", "V"), when=(PREFILL,), inputs=("target.pre_head_hidden",)),
    Stage(TARGET_TOKENS, ("S",), exact=True, when=(PREFILL,), forced=True, inputs=(TARGET_LOGITS,)),
    Stage(VERIFY_LOGITS, ("S", "V"), when=(ROUND,), inputs=("target.pre_head_hidden",)),
    Stage(VERIFY_TOKENS, ("S",), exact=True, when=(ROUND,), forced=True, inputs=(VERIFY_LOGITS,)),
    Stage(DRAFTER_TAPS, ("C", "TH"), inputs=(TARGET_EMBED, "target.layers.{any}.out"), needs=TAPS),
    Stage(DRAFTER_INPUT_IDS, ("W",), exact=True, inputs=(ACCEPT_EMITTED,), needs=MODEL),
    Stage(DRAFTER_POSITIONS, ("W",), exact=True, inputs=("kv.drafter.length",), needs=MODEL),
    Stage(DRAFTER_SLOTS, ("W",), exact=True, inputs=("kv.drafter.length",), needs=MODEL),
    Stage(DRAFTER_FC_OUT, ("W", "H"), inputs=(DRAFTER_TAPS,), needs=TAPS),
    Stage(
        "drafter.layers.{l}.page_scores",
        ("W", "P"),
        inputs=(
            *DRAFTER_ROWS,
            "kv.drafter.{l}.k",
        ),
        needs=PAGES,
    ),
    Stage(
        "drafter.layers.{l}.pages",
        ("W", "X"),
        exact=True,
        forced=True,
        inputs=("drafter.layers.{l}.page_scores",),
        needs=PAGES,
    ),
    Stage("drafter.layers.{l}.k", ("W", "G", "D"), inputs=DRAFTER_ROWS, needs=QUANTISED),
    Stage("drafter.layers.{l}.v", ("W", "G", "D"), inputs=DRAFTER_ROWS, needs=QUANTISED),
    Stage(
        "drafter.layers.{l}.attn_out",
        ("W", "H"),
        inputs=(
            *DRAFTER_ROWS,
            "drafter.layers.{l}.pages",
            "drafter.layers.{l}.k",
            "drafter.layers.{l}.v",
            "kv.drafter.{l}.k",
            "kv.drafter.{l}.v",
        ),
        needs=MODEL,
    ),
    Stage(
        "drafter.layers.{l}.ffn_out",
        ("W", "H"),
        inputs=(DRAFTER_INPUT_IDS, DRAFTER_FC_OUT, "drafter.layers.{p}.out", "drafter.layers.{l}.attn_out"),
        needs=MODEL,
    ),
    Stage(
        "drafter.layers.{l}.out",
        ("W", "H"),
        inputs=(
            DRAFTER_INPUT_IDS,
            DRAFTER_FC_OUT,
            "drafter.layers.{p}.out",
            "drafter.layers.{l}.attn_out",
            "drafter.layers.{l}.ffn_out",
        ),
        needs=MODEL,
    ),
    Stage("drafter.pre_head_hidden", ("K", "H"), when=(ROUND,), inputs=("drafter.layers.{last}.out",), needs=MODEL),
    Stage(DRAFTER_LOGITS, ("K", "VD"), when=(ROUND,), inputs=("drafter.pre_head_hidden",), needs=MODEL),
    Stage(DRAFT_TOKENS, ("K",), exact=True, when=(ROUND,), forced=True, inputs=(DRAFTER_LOGITS,)),
    Stage(
        ACCEPT_LENGTH,
        ("1",),
        exact=True,
        when=(ROUND,),
        forced=True,
        inputs=(DRAFT_TOKENS, VERIFY_TOKENS),
    ),
    Stage(ACCEPT_EMITTED, ("M",), exact=True, when=(ROUND,), forced=True, inputs=(ACCEPT_LENGTH, VERIFY_TOKENS)),
    Stage("kv.target.{l}.k", ("S", "G", "D"), cache=True, inputs=("target.layers.{l}.k", "kv.target.length")),
    Stage("kv.target.{l}.v", ("S", "G", "D"), cache=True, inputs=("target.layers.{l}.v", "kv.target.length")),
    Stage("kv.target.length", ("1",), exact=True, inputs=(ACCEPT_LENGTH,)),
    Stage(
        "kv.drafter.{l}.k",
        ("S", "G", "D"),
        cache=True,
        inputs=(
            *DRAFTER_ROWS,
            "drafter.layers.{l}.k",
            "kv.drafter.length",
        ),
        needs=MODEL,
    ),
    Stage(
        "kv.drafter.{l}.v",
        ("S", "G", "D"),
        cache=True,
        inputs=(
            *DRAFTER_ROWS,
            "drafter.layers.{l}.v",
            "kv.drafter.length",
        ),
        needs=MODEL,
    ),
    Stage("kv.drafter.length", ("1",), exact=True, inputs=(ACCEPT_LENGTH, "kv.target.length"), needs=MODEL),
)

_CONTEXT = (DRAFTER_POSITIONS, DRAFTER_SLOTS, DRAFTER_FC_OUT, "kv.drafter.length")


def _of_block(stage: Stage) -> Stage:
    """The same stage where the layers run over the block alone, and the caches hold the context."""
    if stage.template == DRAFTER_FC_OUT:
        return replace(stage, axes=("C", "H"))
    if stage.template.startswith("kv.drafter.{l}"):
        return replace(stage, inputs=_CONTEXT)
    if stage.template == DRAFTER_INPUT_IDS or (stage.side == "drafter" and stage.axes == ("W", "H")):
        return replace(stage, axes=("B", *stage.axes[1:]), when=(ROUND,))
    return stage


_OF_DRAFTS = ("K", "B")
"""Axes whose rows a round without drafts has not: drafts, and the block that they come of."""

_SIDES = {PREFILL: ("target", "drafter", "kv"), ROUND: ("drafter", "target", "verify", "accept", "kv")}


@dataclass(frozen=True)
class Named:
    """A stage of the table with its layer number filled in."""

    name: str
    stage: Stage
    layer: int | None = None


def declared(
    num_layers: int, num_drafter_layers: int, family: str = "", pages: bool = False, quantised: bool = False
) -> dict[str, Named]:
    """Every stage of a pair of models by full name, in table order with layers inside.

    Args:
        family: of the drafter; one on taps where it is not said.
        pages: whether the drafter attends to some pages of its cache: see `parity.partial_kv`.
        quantised: whether the drafter's caches keep another format: see `parity.kv_cache`.

    Raises:
        UsageError: there is no such family.
    """
    names: dict[str, Named] = {}
    has = {"", *family_of(family).has, *([PAGES] if pages else []), *([QUANTISED] if quantised else [])}
    for block in _blocks():
        layers = num_drafter_layers if "drafter" in block[0].template else num_layers
        numbers: Sequence[int | None] = range(layers) if "{l}" in block[0].template else (None,)
        for number in numbers:
            for stage in (stage for stage in block if stage.needs in has):
                name = stage.template.format(l=number)
                names[name] = Named(name, _of_block(stage) if BLOCK in has else stage, number)
    return names


def inputs(named: Named, names: Mapping[str, Named]) -> list[str]:
    """Full names of the stages that this one is computed from, as far as the pair has them."""
    sources: list[str] = []
    for template in named.stage.inputs:
        layer = -1 if named.layer is None else named.layer
        if "{any}" in template or "{last}" in template:
            same = [name for name, one in names.items() if one.stage.template == _own(template)]
            sources += same[-1:] if "{last}" in template else same
        elif template != TARGET_EMBED or layer <= 0:
            sources.append(template.format(l=layer, p=layer - 1))
    return [name for name in sources if name in names]


def _own(template: str) -> str:
    """The template under which a table row stands."""
    return template.replace("{any}", "{l}").replace("{last}", "{l}")


def _blocks() -> list[list[Stage]]:
    """Runs of the table that repeat together: all stages of one kind of layer, or one stage alone."""
    blocks: list[list[Stage]] = []
    for stage in TABLE:
        prefix = stage.template.partition("{l}")[0]
        layered = "{l}" in stage.template
        if layered and blocks and blocks[-1][0].template.partition("{l}")[0] == prefix:
            blocks[-1].append(stage)
        else:
            blocks.append([stage])
    return blocks


def drafting(named: Named) -> bool:
    """Whether a stage comes of drafting alone: a round of K = 0 lacks it. Its draft tokens are there, none of them."""
    return named.stage.axes[0] in _OF_DRAFTS and named.name != DRAFT_TOKENS


def dataflow(names: Iterable[Named], round_: int, k: int | None = None) -> list[Named]:
    """The stages of a round in the order data flows: a verify round drafts before the target runs.

    Args:
        k: K of a verify round, where some have none; see `drafting`.
    """
    when = PREFILL if round_ == 0 else ROUND
    sides = _SIDES[when]
    present = [named for named in names if when in named.stage.when]
    if when == ROUND and k == 0:
        present = [named for named in present if not drafting(named)]
    return sorted(present, key=lambda named: sides.index(named.stage.side))


def select(globs: Sequence[str], names: Iterable[str]) -> list[str]:
    """Names that match any glob, over the full name or the bare last part; all without a glob.

    Raises:
        UsageError: a glob matches no stage.
    """
    names = list(names)
    if not globs:
        return names
    for glob in globs:
        if not any(matches(glob, name) for name in names):
            raise UsageError(f"--stage {glob}: no stage of this pair has that name (`parity inspect` lists them)")
    return [name for name in names if any(matches(glob, name) for glob in globs)]


@lru_cache(maxsize=2**16)
def matches(glob: str, name: str) -> bool:
    """A stage glob against one full stage name, or against its last part; `rollback` stands for all the cache stages.

    The last part of a cache names none: `k`, `v` and `length` are what the pass made and accepted.
    """
    if glob == "rollback":
        glob = "kv.*"
    return fnmatchcase(name, glob) or (not name.startswith("kv.") and fnmatchcase(name.rsplit(".", 1)[-1], glob))
