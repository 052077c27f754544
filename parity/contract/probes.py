"""Whether a device continues with what the tap returns: another tensor is given back, and must be seen behind it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from parity.arrays import Array
from parity.contract.lines import Ledger
from parity.contract.walk import Walk
from parity.seam import Description
from parity.shown import View
from parity.stages import (
    ACCEPT_EMITTED,
    ACCEPT_LENGTH,
    DRAFT_TOKENS,
    DRAFTER_INPUT_IDS,
    DRAFTER_POSITIONS,
    DRAFTER_SLOTS,
    TARGET_TOKENS,
    VERIFY_TOKENS,
    Named,
    inputs,
    matches,
)

LINE = "tap: returned"
COUNTS = (ACCEPT_LENGTH, "kv.*.length", DRAFTER_INPUT_IDS, DRAFTER_POSITIONS, DRAFTER_SLOTS)
"""What is not forced here: another number there is another sequence."""
Seen = dict[str, Array]
RETURNED = "what the verb returns: "
CHOSEN = (TARGET_TOKENS, DRAFT_TOKENS, VERIFY_TOKENS, ACCEPT_EMITTED)
"""What a verb returns: it must be what the tap returned."""


def forcible(says: Description, name: str) -> bool:
    """Whether the device says that it continues with what the tap returns there."""
    return any(matches(glob, name) for glob in says.forcible)


def forcible_stages(says: Description, view: View, sides: Sequence[str]) -> list[Named]:
    """Shown stages of rounds at which the device can be forced: one layer of each family, the second one."""
    families: dict[str, Named] = {}
    for name, named in view.declared.items():
        counts = any(matches(glob, name) for glob in COUNTS)
        probed = not counts and forcible(says, name) and view.rows(name, 1) is not None
        if named.stage.side in sides and probed and (named.layer or 0) <= 1:
            families[named.stage.template] = named
    return list(families.values())


def other(stage: str, value: Array, walk: Walk) -> Array:
    """Another tensor of the same shape and dtype: ids one further on, numbers turned round and moved."""
    if value.dtype.kind in "iu":
        most = walk.pair.vocab if stage in CHOSEN else walk.pair.sizes["target"]["E"] or 2
        return ((value.astype(np.int64) + 1) % most).astype(value.dtype)
    return (-value.astype(np.float32) - 1).astype(value.dtype)


def probe(walk: Walk) -> None:
    """Force a stage of the draft and one of the verify at a time, in the round behind a fresh prefill; then caches."""
    says, view, ledger = walk.says, walk.view, walk.ledger
    if not says.forcible:
        return ledger.skip(LINE, "forcible=(): tensors are only copied out")
    scratch = Walk(walk.device, says, view, Ledger(), walk.pair)  # what odd tensors lead to breaks no other line
    scratch.prompt = walk.prompt
    drafting, verifying, cached = (
        forcible_stages(says, view, sides) for sides in (("drafter",), ("target", "verify"), ("kv",))
    )
    first = round_seen(scratch, (), {})
    plans: list[tuple[int, tuple[Named | None, ...]]] = [(1, pair) for pair in zip_longest(drafting, verifying)]
    plans += [(0, tuple(one for one in cached if one.name.endswith(part))) for part in (".k", ".v")]
    for when, stages in plans:
        given: Seen = {}
        seen = round_seen(scratch, [(one.name, when) for one in stages if one], given)
        for one in stages:
            if one and one.name in given:
                compare(ledger, view, one, given, seen, first)
    chosen = [(name, when) for name, when in ((TARGET_TOKENS, 0), (ACCEPT_EMITTED, 1)) if forcible(says, name)]
    given = {}
    seen = round_seen(scratch, chosen, given)
    for name in given:
        compare(ledger, view, view.declared[name], given, seen, first)
    return None


def round_seen(walk: Walk, stages: Sequence[tuple[str, int]], given: Seen) -> Seen:
    """A prefill and a round in which these stages are forced in this round; what was seen in the second.

    Args:
        given: filled with what was given back in their place.
    """

    def force(stage: str, value: Array) -> Array:
        if (stage, tap.round) not in stages:
            return value
        another = other(stage, value, walk)
        given[stage] = np.concatenate([given[stage], another]) if stage in given else another.copy()  # pass by pass
        return another

    tap, drafts = walk.tap(force), walk.others[: walk.k]
    seen = {RETURNED + TARGET_TOKENS: np.array([walk.prefill(tap, 4 * walk.k + 8)])}
    seen[RETURNED + DRAFT_TOKENS] = np.array(walk.draft(tap))
    seen[RETURNED + VERIFY_TOKENS] = np.array(walk.verify(drafts, tap))
    seen[RETURNED + ACCEPT_EMITTED] = np.array(walk.commit(drafts, [*drafts, walk.others[-1]], tap))
    return seen | tap.tensors


def compare(ledger: Ledger, view: View, named: Named, given: Seen, seen: Seen, first: Seen) -> None:
    """What a verb returns must be what the tap returned; what is computed from any other stage not what it was."""
    name = named.name
    if name in CHOSEN:
        due, returned = given[name].reshape(-1), seen[RETURNED + name]
        due = due[-1:] if name == TARGET_TOKENS else due
        said = f"{name}: the tap returned {due.tolist()}, the verb {returned.tolist()}"
        ledger.expect(LINE, np.array_equal(due, returned), said)
        return
    drafting = name.startswith(("drafter", "kv.drafter"))
    sides = ("drafter",) if drafting else ("target", "verify")
    shown = [one for one in behind(view, named) if one.startswith(sides) and one in seen and one in first]
    tokens = DRAFT_TOKENS if drafting else VERIFY_TOKENS
    shown += [RETURNED + tokens] if name in inputs(view.declared[tokens], view.declared) else []
    changed = any(not np.array_equal(seen[one], first[one]) for one in (*shown, RETURNED + tokens))
    if shown or changed:
        said = f"{name}: another tensor is given back, and {(shown or [tokens])[0]} stays what it was"
        ledger.expect(LINE, changed, said)


def behind(view: View, named: Named) -> list[str]:
    """Stages of a round that are computed from this one, in the order of the table."""
    reached, order = {named.name}, []
    for name, one in view.declared.items():
        if name != named.name and not one.stage.cache and reached & set(inputs(one, view.declared)):
            reached.add(name)
            order.append(name)
    return order
