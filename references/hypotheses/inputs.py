"""Other ids, positions, slots or prompts than the drafter's rows should have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from parity.errors import UsageError
from parity.families import FAMILIES
from parity.references.hypotheses.catalogue import FUSED, PARALLEL, ROWS, Family, Fit, Mutation
from parity.references.hypotheses.inference import Offset, chunk_size, isolated_ids, placeholder
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together
from parity.references.hypotheses.taps import PAIR_FIX
from parity.references.points import replaced
from parity.references.template import rendered

ids = Family(stages=("drafter.input_ids",), drafters=ROWS)
prompt = Family(stages=("target.embed", "target.*"))
positions, slots = Family(stages=("drafter.positions",)), Family(stages=("drafter.slots",))


@contextmanager
def shifted(loop: Loop, delta: int, prefill_only: bool = False) -> Iterator[None]:
    """Committed rows hold the token `delta` from their own, as far as it is known."""
    seen, ahead = list[Tensor](), FAMILIES[loop.drafter.config.family].ahead

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        seen[:] = [prompt]
        inner(prompt)

    def other(inner: Callable[..., Tensor], committed: Tensor, masked: int) -> Tensor:
        if prefill_only and loop.state.draft_length:
            return inner(committed, masked)
        known = torch.cat((seen[0], torch.tensor(loop.state.emitted)))
        places = loop.state.draft_length + ahead + delta + torch.arange(len(committed))
        return inner(known[places.clamp(0, len(known) - 1)], masked)

    with loop.prefill.around(prefill), loop.ids.around(other):
        yield


ids(
    "input-no-shift",
    "the prompt's rows hold the token {value:+d} from their own",
    values=(-1, 1),
    fix="the shift of the prompt by one in the drafter's prefill",
    seen=("mlc-llm #2266",),
)(partial(shifted, prefill_only=True))

ids(
    "input-no-shift-anywhere",
    "all committed rows hold the token {value:+d} from their own",
    values=(-1, 1),
    fix=PAIR_FIX,
    seen=("mlc-llm #2266",),
)(shifted)


@contextmanager
def chunked(loop: Loop, size: float, fill: str) -> Iterator[None]:
    """The last row of every prefill chunk of `size` tokens holds a predicted token, or the prompt's last one."""
    size, predicted = int(size), list[Tensor]()

    def greedy(inner: Callable[..., Tensor], logits: Tensor) -> Tensor:
        tokens = inner(logits)
        if loop.state.length == 0:
            predicted[:] = [tokens]
        return tokens

    def other(inner: Callable[..., Tensor], committed: Tensor, masked: int) -> Tensor:
        if loop.state.draft_length == 0:
            if size > len(committed):
                raise NotApplicable(f"the prompt fits into one chunk of {size}")
            ends = torch.arange(size - 1, len(committed), size)
            last = committed[-1]
            committed = committed.clone()
            committed[ends] = predicted[0][ends] if fill == "predicted" else last
        return inner(committed, masked)

    if size < 2:
        raise NotApplicable("chunks of fewer than two tokens")
    with loop.greedy.around(greedy), loop.ids.around(other):
        yield


for id, fill, says, seen in (
    ("input-chunk-boundary", "predicted", "a predicted token", "SGLang #26329"),
    ("input-chunk-last-token", "last", "the prompt's last token", "vLLM chunked prefill"),
):
    ids(
        id,
        f"the last row of every prefill chunk of {{value}} holds {says}",
        values=(16, 32, 64, 128, 256, 512, 1024, 2048),
        infer=chunk_size,
        fix="the next token at a chunk's end is the prompt's own",
        seen=(seen,),
        drafters=FUSED,
    )(partial(chunked, fill=fill))


def _unmapped(ids: Tensor, d2t: Tensor) -> Tensor:
    """Draft ids of target ids, which stay what they are where the drafter has none."""
    same = ids[:, None] == d2t + torch.arange(len(d2t))
    return torch.where(same.any(dim=1), same.long().argmax(dim=1), ids)


DRAFT_IDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "their ids in the draft vocabulary": _unmapped,
    "ids mapped twice": lambda ids, d2t: ids + d2t[ids.clamp(max=len(d2t) - 1)],
}


@ids(
    "input-drafts-unmapped",
    "committed rows of accepted drafts hold {value}",
    values=tuple(DRAFT_IDS),
    fix="d2t maps what the drafter chose before anything reads it",
    drafters=FUSED,
)
def _(loop: Loop, value: str) -> Mutation:
    d2t = loop.drafter.d2t
    if not d2t.any():
        raise NotApplicable("draft and target vocabulary are the same")

    def other(inner: Callable[..., Tensor], committed: Tensor, masked: int) -> Tensor:
        if loop.state.draft_length:
            committed = torch.cat((DRAFT_IDS[value](committed[:-1], d2t), committed[-1:]))
        return inner(committed, masked)

    return loop.ids.around(other)


@ids(
    "input-other-ids",
    "committed rows hold other ids, (position, id): {value}",
    values=(),
    infer=isolated_ids,
    fix="where these ids come from: a chunk's end, a predicted token, a special token of the template",
    cost=3,
)
def _(loop: Loop, others: tuple[tuple[int, int], ...]) -> Mutation:
    known = dict(others)
    if not all(0 <= token < loop.drafter.config.vocab_size for token in known.values()):
        raise NotApplicable("an id outside the vocabulary")

    def other(inner: Callable[..., Tensor], committed: Tensor, masked: int) -> Tensor:
        places = enumerate(committed.tolist(), loop.state.draft_length)
        return inner(torch.tensor([known.get(place, token) for place, token in places], dtype=torch.long), masked)

    return loop.ids.around(other)


END: dict[str, Callable[[list[int], int], int]] = {
    "the token before it": lambda ids, first: ids[-2],
    "the prompt's first token": lambda ids, first: ids[0],
    "the first emitted token": lambda ids, first: first,
    "the id 0": lambda ids, first: 0,
}
"""Of the prompt's ids and the first emitted one."""


@ids(
    "input-prompt-end",
    "the prompt's last row holds {value}",
    values=END,
    fix="the end of the drafter's prefill: the prompt's own last token",
)
def _(loop: Loop, value: str) -> Mutation:
    def other(inner: Callable[..., Tensor], committed: Tensor, behind: int) -> Tensor:
        if loop.state.draft_length == 0:
            last = END[value](loop.state.prompt.tolist(), loop.state.emitted[0])
            committed = torch.cat((committed[:-1], torch.tensor([last])))
        return inner(committed, behind)

    return loop.ids.around(other)


@ids(
    "input-wrong-placeholder",
    "masked rows hold the id {value}",
    values=("pad", "eos", "bos", 0),
    infer=placeholder,
    fix="the config key the placeholder is read from: ptd_token_id",
    seen=("vLLM key precedence",),
    cost=2,
    drafters=PARALLEL,
)
def _(loop: Loop, value: int | str) -> Mutation:
    config, target = loop.drafter.config, loop.target.config
    named = {"pad": target.pad_token_id, "bos": target.bos_token_id, "eos": loop.eos[0] if loop.eos else None}
    token = named[value] if isinstance(value, str) else value
    if token is None or token == config.placeholder_id or not 0 <= token < config.vocab_size:
        raise NotApplicable(f"placeholder {token}")
    return replaced(loop.drafter, "config", replace(config, placeholder_id=int(token)))


@ids(
    "input-placeholder-repeats",
    "masked rows repeat the last committed token",
    fix="masked rows carry ptd_token_id",
    cost=2,
    drafters=PARALLEL,
)
def _(loop: Loop, value: None) -> Mutation:
    return loop.ids.around(lambda inner, committed, masked: torch.cat((committed, committed[-1:].expand(masked))))


@ids(
    "input-drafts-committed",
    "committed rows hold {value} of the round before, not what was emitted",
    values=("its drafts, the rejected one among them", "its last draft in place of the target's own token"),
    fix="the committed ids are those emitted: accepted drafts and the target's token behind them",
    seen=("class of vLLM #14649",),
    cost=2,
)
def _(loop: Loop, value: str) -> Mutation:
    drafts, before = list[Tensor](), [0]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        known = len(loop.state.emitted)
        drafts[:] = [inner()]
        before[:] = [known]
        return drafts[0]

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        drafts.clear()
        inner(prompt)

    def other(inner: Callable[..., Tensor], committed: Tensor, behind: int) -> Tensor:
        if drafts and value.startswith("its drafts"):
            held = drafts[0][len(loop.state.emitted) - before[0] - len(committed) :][: len(committed)]
            committed = torch.cat((held, committed[len(held) :]))
        elif drafts:
            committed = torch.cat((committed[:-1], drafts[0][-1:]))
        return inner(committed, behind)

    return together((loop.prefill.around(prefill), loop.draft.around(draft), loop.ids.around(other)))


def moved(loop: Loop, value: int | str, rows: str = "all", of: str = "positions") -> Mutation:
    """Positions (or slots) moved by so many, restarted in each window, or the same on all rows behind the committed.

    `rows`: all, those behind the committed ones, or rounds (verify rounds only), there all or the committed ones.
    """

    def move(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        true = inner(committed, behind)
        number = torch.arange(committed + behind)
        wanted = {
            "all": number >= 0,
            "behind": number >= committed,
            "rounds": (number >= 0) & (loop.state.draft_length > 0),
            "committed": (number < committed) & (loop.state.draft_length > 0),
        }[rows]
        first_behind = int(true[min(committed, len(true) - 1)])
        other = {
            "restarted": number,
            "flat": true.clamp(max=int(true[committed - 1])),
            "all the first one's": true.clamp(max=first_behind),
        }
        return torch.where(wanted, other[value] if isinstance(value, str) else true + value, true).clamp(0)

    return (loop.slots if of == "slots" else loop.positions).around(move)


def masked_by(loop: Loop, value: int | str, rows: str = "all") -> Mutation:
    """As `moved`, and the mask is made from the positions: a row sees the slots up to its own."""
    moved_to: list[Tensor] = []

    def keep(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        moved_to[:] = [inner(committed, behind)]
        return moved_to[0]

    def mask(inner: Callable[..., Tensor], slots: Tensor, committed: int) -> Tensor:
        width = inner(slots, committed).shape[1]
        return torch.arange(width) <= moved_to[0][slots - loop.state.draft_length][:, None]

    return together((moved(loop, value, rows), loop.positions.around(keep), loop.mask.around(mask)))


positions(
    "input-position-plus-one",
    "draft positions are {value:+d} off",
    values=(1, -1),
    fit=Fit(-64, 64, clean=0, whole=True),
    infer=Offset("drafter.positions"),
    fix="the ids are shifted by one, the positions are not",
    seen=("SGLang #25015",),
)(moved)

positions(
    "input-round-positions",
    "positions are {value} in verify rounds (a number: so many off)",
    values=(1, -1, "restarted", "flat"),
    infer=Offset("drafter.positions"),
    fix="the first position of a draft window: that of the first committed row",
    cost=2,
)(partial(moved, rows="rounds"))

positions(
    "input-committed-positions",
    "positions of committed rows, and of these alone, are {value} in verify rounds (a number: so many off)",
    values=(1, -1, "restarted"),
    infer=Offset("drafter.positions"),
    fix="the last committed row sits one position before the row behind it",
    cost=2,
    drafters=ROWS,
)(partial(moved, rows="committed"))

positions(
    "input-masked-positions",
    "positions of the rows behind the committed ones are {value} (a number: so many off)",
    values=(1, -1, "flat", "all the first one's", "restarted"),
    infer=Offset("drafter.positions"),
    fix="the j-th row behind the last committed one sits j positions behind it",
    cost=2,
)(partial(moved, rows="behind"))

for kind, says, wrong, which in (
    ("positions", "draft positions are {value:+d} off", (1, -1), "all"),
    (
        "round-positions",
        "positions are {value} in verify rounds (a number: so many off)",
        (1, -1, "restarted", "flat"),
        "rounds",
    ),
    (
        "masked-positions",
        "positions behind the committed rows are {value} (a number: so many off)",
        (1, -1, "flat"),
        "behind",
    ),
):
    positions(
        f"input-{kind}-mask",
        f"{says}, and the mask is made from them",
        values=wrong,
        fix="the positions of a pass; the mask compares slots with them",
        cost=3,
        drafters=ROWS,
    )(partial(masked_by, rows=which))

slots(
    "input-slot-off",
    "cache slots are {value:+d} off",
    values=(1, -1),
    infer=Offset("drafter.slots"),
    fix="the slot of a row is its absolute position",
)(partial(moved, of="slots"))

slots(
    "input-round-slots",
    "cache slots are {value} in verify rounds (a number: so many off)",
    values=(1, -1, "restarted"),
    infer=Offset("drafter.slots"),
    fix="the first slot of a draft window: that of the first committed row",
    cost=2,
)(partial(moved, rows="rounds", of="slots"))

FORMS: dict[str, Callable[[list[int], int, int, int], list[int]]] = {
    "raw": lambda ids, start, end, bos: ids[start:end],
    "without the generation prompt": lambda ids, start, end, bos: ids[:end],
    "without the template's opening": lambda ids, start, end, bos: ids[start:],
    "with a second start token": lambda ids, start, end, bos: [bos, *ids],
    "without its first token": lambda ids, start, end, bos: ids[1:],
    "without its last token": lambda ids, start, end, bos: ids[:-1],
}
"""Of a prompt's ids, where the user's text starts and ends in it, and the token that starts a sequence."""


@prompt(
    "input-raw-prompt",
    "the prompt is {value}",
    values=FORMS,
    fix="apply_chat_template with add_generation_prompt, once",
    seen=("NKIPy PR 63",),
    cost=3,
)
def _(loop: Loop, form: str) -> Mutation:
    prefix, suffix = template(str(loop.target.model.name_or_path))
    bos = loop.target.config.bos_token_id

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        known = prompt.tolist()
        end = len(known) - _shared(suffix[::-1], known[::-1])
        other = FORMS[form](known, _shared(prefix, known), end, known[0] if bos is None else bos)
        if other == known or len(other) < 2:
            raise NotApplicable(f"the prompt {form}")
        inner(torch.tensor(other))

    return loop.prefill.around(prefill)


def template(checkpoint: str) -> tuple[list[int], list[int]]:
    """What the checkpoint's chat template puts before and behind the user's text.

    Raises:
        NotApplicable: it has none that can be used.
    """
    from transformers import AutoTokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
        one, other = (_said(tokenizer, text, checkpoint) for text in ("a", "( 7"))
    except (OSError, ValueError, UsageError) as error:
        raise NotApplicable(f"no usable chat template ({error})") from None
    start = _shared(one, other)
    end = _shared(one[::-1], other[::-1])
    return one[:start], one[len(one) - end :]


def _said(tokenizer: Any, text: str, checkpoint: str) -> list[int]:
    """The tokens of a user's text in the chat template, rendered within limits."""
    said = [{"role": "user", "content": text}]
    told = partial(tokenizer.apply_chat_template, said, add_generation_prompt=True, tokenize=False)
    (prompt,) = rendered([told], checkpoint)
    return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])


def _shared(some: list[int], ids: list[int]) -> int:
    """How many tokens two lists have in common from the start."""
    pairs = zip(some, ids, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(some), len(ids)))
