"""The drafter's taps are the target's residual streams, and each token is paired with the hidden before it.

A chained run is judged: in a local one every tap is the golden's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.compare.rows import Clock
from parity.errors import Inconclusive, NotShown
from parity.families import BLOCK, MODEL, TAPS, family_of
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.golden.fields import Variant
from parity.golden.views import DumpView, TrustedGolden
from parity.stages import DRAFT_TOKENS, DRAFTER_INPUT_IDS, DRAFTER_POSITIONS, DRAFTER_TAPS, TARGET_EMBED


def checks(context: GateContext) -> Iterator[Check]:
    """Both over the context's chained run."""
    golden, run = context.golden, context.run("chained")
    family = family_of(golden.manifest.model.family)
    if TAPS in family.has:
        streams = tapped_streams(golden)
        yield tap_contents(golden, run, streams)
    else:
        streams = []
        yield Check("taps", NOT_JUDGED, f"a {family.name} drafter has none", undeclared=True)
    if MODEL in family.has:
        yield token_pairs(golden, run, streams)


def tap_contents(golden: TrustedGolden, run: DumpView, streams: Sequence[str]) -> Check:
    """Every chunk of every committed row against the run's own stream."""
    rounds = list(committed_taps(golden, run, streams))
    wrong = [feed for feed in rounds if feed.wrong]
    rows, chunks = sum(len(feed.taps) for feed in rounds), len(streams)
    bad = sum(feed.wrong for feed in rounds)
    numbers = stream_numbers(streams)
    figures = {
        "in_of": numbers,
        "rows": rows,
        "chunks": rows * chunks,
        "wrong": bad,
        "rounds": len(rounds),
    }
    name = f"{chunks} taps, in_of {numbers} = out_of {[number - 1 for number in numbers]}"
    if wrong:
        first = min(wrong, key=lambda feed: (feed.round, feed.prompt))
        place = Place(DRAFTER_TAPS, None, first.prompt, first.round, first.position)
        said = f"{bad} of {rows * chunks} chunks are another tensor; {explain_wrong_chunk(run, first, streams)}"
        return Check(name, FAIL, said, figures, place)
    said = f"bit for bit the run's own stream in all {rows} rows of {len(rounds)} rounds"
    return Check(name, PASS, said, figures)


def token_pairs(golden: TrustedGolden, run: DumpView, streams: Sequence[str]) -> Check:
    """Ids, positions and hiddens of every row; of the first one above all."""
    paired = bool(streams) and BLOCK not in family_of(golden.manifest.model.family).has
    name = "pairs (next token, hidden of the position before it)" if paired else "tokens at their own positions"
    mistaken = next((pair for pair in token_pairings(golden, golden, "float32") if pair.wrong), None)
    if mistaken is not None:
        raise Inconclusive(f"the golden's own {mistaken.wrong} (prompt {mistaken.prompt}, round {mistaken.round})")
    hidden = [stage for stage in (DRAFTER_INPUT_IDS, DRAFTER_POSITIONS) if not run.view.shows(stage)]
    pairs = [] if hidden else list(token_pairings(golden, run, run.manifest.case.precision))
    wrong = [pair for pair in pairs if pair.wrong]
    heads = [feed for feed in committed_taps(golden, run, streams) if feed.round == 0] if streams else []
    late = [feed for feed in heads if not feed.same[0].all()]
    rows = sum(pair.rows for pair in pairs)
    figures = {"rows": rows, "rounds": len(pairs), "wrong_rounds": len(wrong), "first_rows": len(heads)}
    if wrong or late:
        both: tuple[TokenPairing | CommittedTaps, ...] = (*wrong, *late)
        first = min(both, key=lambda round_: (round_.round, round_.prompt))
        if isinstance(first, CommittedTaps):
            stage, said = (
                DRAFTER_TAPS,
                f"row 0 is not paired with its hidden: {explain_wrong_chunk(run, first, streams)}",
            )
        else:
            stage, said = DRAFTER_INPUT_IDS, first.wrong
        where = Place(stage, None, first.prompt, first.round, first.position)
        return Check(
            name, FAIL, f"{len(wrong) or len(late)} of {len(pairs) or len(heads)} rounds: {said}", figures, where
        )
    if hidden:
        said = (
            f"the device does not show {hidden[0]}: with which token a hidden is paired is seen in what follows alone"
        )
        return Check(name, INCONCLUSIVE, said, figures)
    if not paired:
        said = f"{rows} rows of {len(pairs)} rounds carry the token at their position"
        return Check(name, PASS if pairs else INCONCLUSIVE, said, figures)
    said = f"row 0 of {len(heads)} prompts is (prompt token 1, hidden of position 0) at position 0; "
    said += f"{rows} rows carry the token behind their position"
    return Check(name, PASS if pairs and heads else INCONCLUSIVE, said, figures)


@dataclass(frozen=True)
class CommittedTaps:
    """The committed rows of one round: taps [C, T * H] and where the target computed them.

    `source` is the round of the target pass, `first` its row that belongs to row 0 here; `same` [C, T] says
    which chunks are the stream they should be, bit for bit; `position` is the first wrong row's.
    """

    prompt: int
    round: int
    source: int
    first: int
    start: int
    taps: np.ndarray
    same: np.ndarray

    @property
    def wrong(self) -> int:
        """Chunks that are another tensor."""
        return int((~self.same).sum())

    @property
    def position(self) -> int:
        """Position of the first row with a wrong chunk."""
        return self.start + int((~self.same).any(axis=1).argmax())


def tapped_streams(golden: TrustedGolden) -> list[str]:
    """The target stage that each chunk of the golden's taps equals, bit for bit, in every row.

    Raises:
        Inconclusive: the golden lacks a stage that this takes, or a chunk equals none or several.
    """
    streams = [name for name in golden.manifest.stages if _stream(name)]
    layers = golden.manifest.model.num_layers
    if len(streams) != layers + 1 or DRAFTER_TAPS not in golden.manifest.stages:
        raise Inconclusive(f"{golden.folder} lacks {DRAFTER_TAPS} or residual streams; dump it without --stage")
    left: list[list[str]] = []
    for feed in committed_taps(golden, golden, (), "float32"):
        held = {name: _rows(golden, "float32", feed, name) for name in streams}
        chunks = np.split(feed.taps, _count(feed.taps, held[TARGET_EMBED]), axis=1)
        left = left or [list(streams) for _ in chunks]
        left = [
            [name for name in names if _equal(chunk, held[name]).all()]
            for names, chunk in zip(left, chunks, strict=True)
        ]
    for number, names in enumerate(left):
        if len(names) != 1:
            said = (
                f"is none of the golden's streams: {DRAFTER_TAPS} is wrong"
                if not names
                else f"could be {' or '.join(names)}"
            )
            raise Inconclusive(f"chunk {number} of the golden's {DRAFTER_TAPS} {said}; no tap can be judged by it")
    return [names[0] for names in left]


def committed_taps(
    golden: TrustedGolden, dump: DumpView, streams: Sequence[str], variant: Variant | None = None
) -> Iterator[CommittedTaps]:
    """Every round's committed rows of a dump over this golden, against these streams of its own.

    Raises:
        Inconclusive: the dump lacks taps or a stream in some round.
    """
    variant = variant or dump.manifest.case.precision
    for prompt, case in enumerate(golden.manifest.case.prompts):
        clock = Clock.of(case, golden.manifest)
        for round_ in range(clock.rounds):
            source = max(round_ - 1, 0)
            start = clock.first(DRAFTER_TAPS, round_, 0)
            taps = dump.stored(variant, prompt, round_, DRAFTER_TAPS)
            committed = clock.committed(round_)
            if taps is None or len(taps) != committed:
                count = "no" if taps is None else len(taps)
                where = f"round {round_} of prompt {prompt}"
                raise Inconclusive(f"{dump.folder} has {count} rows of {DRAFTER_TAPS} in {where}, not {committed}")
            first = start - clock.first(TARGET_EMBED, source, 0)
            feed = CommittedTaps(prompt, round_, source, first, start, taps, np.ones((0, 0), bool))
            held = [_rows(dump, variant, feed, name) for name in streams]
            yield _judged(feed, held) if held else feed


def stream_numbers(streams: Sequence[str]) -> list[int]:
    """`in_of` numbers of streams: 0 is the embedding, k the output of layer k - 1."""
    return [0 if name == TARGET_EMBED else int(name.split(".")[2]) + 1 for name in streams]


def explain_wrong_chunk(run: DumpView, feed: CommittedTaps, streams: Sequence[str]) -> str:
    """What the first wrong chunk is instead, if it is anything of the target's at all."""
    chunk = int((~feed.same).any(axis=0).argmax())
    values = np.split(feed.taps, len(streams), axis=1)[chunk]
    said = f"chunk {chunk} should be {streams[chunk]}"
    for shift, name in ((shift, name) for shift in (0, 1, -1) for name in _candidates(run)):
        held = _shifted(run, feed, name, shift)
        count = min(len(values), len(held))
        if count and _equal(values[:count], held[:count]).all():
            where = {0: "", 1: " of the position after", -1: " of the position before"}[shift]
            return f"{said}, it is {name}{where}"
    return f"{said}, it is no tensor of the target's"


def _judged(feed: CommittedTaps, held: list[np.ndarray]) -> CommittedTaps:
    count = _count(feed.taps, held[0])
    if count != len(held):
        raise Inconclusive(f"{DRAFTER_TAPS} is {feed.taps.shape[1]} wide, which is {count} streams and not {len(held)}")
    chunks = np.split(feed.taps, count, axis=1)
    same = np.stack([_equal(chunk, rows) for chunk, rows in zip(chunks, held, strict=True)], axis=1)
    return CommittedTaps(feed.prompt, feed.round, feed.source, feed.first, feed.start, feed.taps, same)


def _stream(name: str) -> bool:
    return name == TARGET_EMBED or (name.startswith("target.layers.") and name.endswith(".out"))


def _candidates(run: DumpView) -> list[str]:
    """Every stage of the target that has a hidden's axes, the streams first."""
    wide = [named.name for named in run.declared.values() if named.stage.axes == ("S", "H")]
    return sorted((name for name in wide if name in run.manifest.stages), key=lambda name: not _stream(name))


def _rows(dump: DumpView, variant: Variant, feed: CommittedTaps, name: str) -> np.ndarray:
    """A stage's rows [C, H] that a feed should hold."""
    whole = dump.stored(variant, feed.prompt, feed.source, name)
    rows = None if whole is None else whole[feed.first : feed.first + len(feed.taps)]
    if rows is None or len(rows) != len(feed.taps):
        if not dump.view.shows(name):
            raise NotShown(f"the device does not show {name}, of which its taps are made")
        raise Inconclusive(f"{dump.folder} lacks rows of {name} in round {feed.source} of prompt {feed.prompt}")
    return rows


def _shifted(run: DumpView, feed: CommittedTaps, name: str, shift: int) -> np.ndarray:
    whole = run.stored(run.manifest.case.precision, feed.prompt, feed.source, name)
    first = feed.first + shift
    return np.empty((0, 0)) if whole is None or first < 0 else whole[first : first + len(feed.taps)]


def _count(taps: np.ndarray, stream: np.ndarray) -> int:
    """T: how many streams wide the taps are.

    Raises:
        Inconclusive: no whole number of them.
    """
    count, rest = divmod(taps.shape[1], stream.shape[1])
    if rest or not count:
        raise Inconclusive(
            f"{DRAFTER_TAPS} is {taps.shape[1]} wide, which is no multiple of the hidden size {stream.shape[1]}"
        )
    return int(count)


def _equal(chunk: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Rows [C] that agree bit for bit; a stream kept in a wider dtype is rounded to the tap's first."""
    if chunk.shape != stream.shape:
        return np.zeros(len(chunk), dtype=bool)
    wanted = np.ascontiguousarray(stream.astype(chunk.dtype, copy=False)).view(np.uint8)
    equal: np.ndarray = (np.ascontiguousarray(chunk).view(np.uint8) == wanted).all(axis=1)
    return equal


@dataclass(frozen=True)
class TokenPairing:
    """The rows of one round: how many, what is wrong ('' where nothing is), and the first wrong row's position."""

    prompt: int
    round: int
    rows: int
    wrong: str
    position: int


def token_pairings(golden: TrustedGolden, dump: DumpView, variant: Variant) -> Iterator[TokenPairing]:
    """Every round of a dump against the prompts' own tokens and what the golden emitted."""
    for prompt, case in enumerate(golden.manifest.case.prompts):
        clock = Clock.of(case, golden.manifest)
        tokens = np.array([*case.ids, *case.generated.emitted])
        block = BLOCK in clock.family.has
        for round_ in range(1 if block else 0, clock.rounds):
            start = clock.first(DRAFTER_INPUT_IDS, round_, 0)
            begin = start + clock.family.ahead
            due = tokens[begin : begin + (1 if block else clock.committed(round_))]
            k = golden.manifest.case.drafts(round_) if round_ else 0
            if block and not k:
                continue  # the context alone: no row has a token
            masked = k - (0 if block else 1) if k else 0
            if masked and clock.family.chain:
                due, masked = np.append(due, _chained(golden, dump, variant, prompt, round_)[:masked]), 0
            places = clock.first(DRAFTER_POSITIONS, round_, 0)
            width = start + len(due) + masked - places
            stored = [dump.stored(variant, prompt, round_, stage) for stage in (DRAFTER_INPUT_IDS, DRAFTER_POSITIONS)]
            wrong, row = _wrong_ids(stored[0], due, masked, start, clock.family.ahead)
            if not wrong:
                wrong, row = _wrong_positions(stored[1], places, width)
                row += places - start
            yield TokenPairing(prompt, round_, len(due) + masked, wrong, start + row)


def _chained(golden: TrustedGolden, dump: DumpView, variant: Variant, prompt: int, round_: int) -> np.ndarray:
    """The drafts that a round's chain rows carry: the golden's where they were forced.

    Raises:
        Inconclusive: they are not there.
    """
    own = dump is not golden and DRAFT_TOKENS not in dump.manifest.case.forced
    drafts = (dump if own else golden).stored(variant if own else "float32", prompt, round_, DRAFT_TOKENS)
    if drafts is None:
        raise Inconclusive(f"without {DRAFT_TOKENS} of prompt {prompt}, round {round_} nobody knows its chain's ids")
    return drafts


def _wrong_ids(ids: np.ndarray | None, due: np.ndarray, masked: int, start: int, ahead: int) -> tuple[str, int]:
    """What is wrong with the ids of one round, and its row: those due from position `start` on, then placeholders."""
    width = len(due) + masked
    if ids is None or ids.shape != (width,):
        return f"{DRAFTER_INPUT_IDS} has not the {width} rows that are due", 0
    differ, where = np.flatnonzero(ids[: len(due)] != due), "behind" if ahead else "at"
    if len(differ):
        row = int(differ[0])
        return f"row {row} carries token {ids[row]}, the one {where} position {start + row} is {due[row]}", row
    if len(set(ids[len(due) :].tolist())) > 1:
        return "masked rows carry several placeholder ids", len(due)
    return "", 0


def _wrong_positions(positions: np.ndarray | None, start: int, width: int) -> tuple[str, int]:
    """What is wrong with the positions of one round, and its row: `width` of them from `start` on."""
    if positions is None or positions.shape != (width,):
        return f"{DRAFTER_POSITIONS} has not the {width} rows that are due", 0
    astray = np.flatnonzero(positions != start + np.arange(width))
    if len(astray):
        row = int(astray[0])
        return f"row {row} sits at position {positions[row]}, not {start + row}", row
    return "", 0
