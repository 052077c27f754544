"""The drafter's taps are the target's residual streams, and each token is paired with the hidden before it.

A chained run is judged: in a local one every tap is the golden's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.errors import Inconclusive
from parity.gates.context import Bench
from parity.gates.evidence import Check
from parity.gates.taps.streams import Feed, explain, feeds, numbers, pairings, tapped
from parity.golden.views import DumpView, TrustedGolden

TAPS, IDS = "drafter.taps", "drafter.input_ids"


def checks(bench: Bench) -> Iterator[Check]:
    """Both over the bench's chained run."""
    golden, run = bench.golden, bench.run("chained")
    streams = tapped(golden)
    yield taken(golden, run, streams)
    yield paired(golden, run, streams)


def taken(golden: TrustedGolden, run: DumpView, streams: Sequence[str]) -> Check:
    """Every chunk of every committed row against the run's own stream."""
    found = list(feeds(golden, run, streams))
    wrong = [feed for feed in found if feed.wrong]
    rows, chunks = sum(len(feed.taps) for feed in found), len(streams)
    bad = sum(feed.wrong for feed in found)
    figures = {"in_of": numbers(streams), "rows": rows, "chunks": rows * chunks, "wrong": bad, "rounds": len(found)}
    name = f"{chunks} taps, in_of {figures['in_of']} = out_of {[number - 1 for number in figures['in_of']]}"
    if wrong:
        first = min(wrong, key=lambda feed: (feed.round, feed.prompt))
        place = Place(TAPS, None, first.prompt, first.round, first.position)
        said = f"{bad} of {rows * chunks} chunks are another tensor; {explain(run, first, streams)}"
        return Check(name, FAIL, said, figures, place)
    said = f"bit for bit the run's own stream in all {rows} rows of {len(found)} rounds"
    return Check(name, PASS, said, figures)


def paired(golden: TrustedGolden, run: DumpView, streams: Sequence[str]) -> Check:
    """Ids, positions and hiddens of every row; of the first one above all."""
    name = "pairs (next token, hidden of the position before it)"
    mistaken = next((one for one in pairings(golden, golden, "float32") if one.wrong), None)
    if mistaken is not None:
        raise Inconclusive(f"the golden's own {mistaken.wrong} (prompt {mistaken.prompt}, round {mistaken.round})")
    found = list(pairings(golden, run, run.manifest.case.precision))
    wrong = [one for one in found if one.wrong]
    heads = [feed for feed in feeds(golden, run, streams) if feed.round == 0]
    late = [feed for feed in heads if not feed.same[0].all()]
    rows = sum(one.rows for one in found)
    figures = {"rows": rows, "rounds": len(found), "wrong_rounds": len(wrong), "first_rows": len(heads)}
    if wrong or late:
        first = min((*wrong, *late), key=lambda one: (one.round, one.prompt))
        stage, said = IDS, first.wrong
        if isinstance(first, Feed):
            stage, said = TAPS, f"row 0 is not paired with its hidden: {explain(run, first, streams)}"
        where = Place(stage, None, first.prompt, first.round, first.position)
        return Check(name, FAIL, f"{len(wrong) or len(late)} of {len(found)} rounds: {said}", figures, where)
    said = f"row 0 of {len(heads)} prompts is (prompt token 1, hidden of position 0) at position 0; "
    said += f"{rows} rows carry the token behind their position"
    return Check(name, PASS if found and heads else INCONCLUSIVE, said, figures)
