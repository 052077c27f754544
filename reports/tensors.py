"""What a comparison of two files or folders prints: the worst tensors, what is on one side only, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from parity.plain import echo
from parity.tensors.report import TensorReport, TensorResult

WIDTH = 79
"""Of a line: a terminal of 80 columns shows it whole."""
ROWS, NAMES = 4, 2
"""Tensors in the table, and names in a list: with all else a screen of 24 lines."""
NAME = 48
"""Of a tensor's name in the table: what is longer loses its middle."""


def print_tensors(report: TensorReport, actual: str, expected: str) -> None:
    """One comparison on one screen."""
    for line in _lines(report, actual, expected):
        echo(line)


def _lines(report: TensorReport, actual: str, expected: str) -> Iterator[str]:
    yield _short(f"actual   {actual}", WIDTH)
    yield _short(f"expected {expected}", WIDTH)
    failed = report.failed
    if failed:
        yield from _table(failed)
        yield from _details(failed[0])
    elif report.results:
        yield _nearest(report.results)
    yield from _listed("missing in actual", report.missing)
    yield from _listed("only in actual", report.surplus)
    yield from _ignored(report.ignored)
    yield from (_cut(f"not seen: {what}") for what in report.blind)
    if not report.results:
        yield "no name is on both sides: --map FILE says which is which, --suggest-map FILE"
        yield "writes such a map from what the tensors hold"
    yield _verdict(report)


def _table(failed: Sequence[TensorResult]) -> Iterator[str]:
    shown = f"fails ({ROWS} of {len(failed)}; --json has all)" if len(failed) > ROWS else "fails"
    yield f"{shown:{NAME}} {'rel. L2':>9} {'bound':>8} {'ULP':>10}"
    for result in failed[:ROWS]:
        worst = result.worst or result.first_bad
        l2 = "-" if result.l2 is None else f"{result.l2:.3g}"
        bound = f"{result.bounds.l2:.3g}" if result.bounds else "-"
        ulp = "-" if worst is None or worst.ulp is None else f"{worst.ulp:.3g}" if worst.ulp >= 10**9 else worst.ulp
        yield f"{_short(result.name or 'tensor', NAME):{NAME}} {l2:>9} {bound:>8} {ulp:>10}"


def _details(result: TensorResult) -> Iterator[str]:
    """The worst of the tensors: why it fails, and where."""
    yield _short(f"worst: {result.name or 'tensor'} {result.dtype}{list(result.shape)}", WIDTH)
    yield from _wrapped("; ".join(result.reasons))
    for what, element in (("worst element", result.worst), ("first bad element", result.first_bad)):
        if element:
            yield from _wrapped(f"{what} {element}")


def _nearest(results: Sequence[TensorResult]) -> str:
    """Of tensors that pass the one that is furthest towards a bound."""
    share, _, result = max((_share(result), -number, result) for number, result in enumerate(results))
    if not share:
        return "every element is the same"
    name = _short(result.name or "tensor", NAME - 20)
    return f"nearest to its bounds: {name}, {share:.2g} of one, rel. L2 {result.l2:.3g}"


def _share(result: TensorResult) -> float:
    if result.bounds is None:
        return 0.0
    used = result.bounds
    errors = (result.l2, used.l2), (result.worst_row, used.worst_row), (result.largest, used.largest)
    return max((error or 0.0) / bound for error, bound in errors)


def _listed(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"{what}: {len(names)}" + (", the first" if len(names) > NAMES else "")
        yield from (_short(f"  {name or 'a tensor without a name'}", WIDTH) for name in names[:NAMES])


def _ignored(ignored: Mapping[str, str]) -> Iterator[str]:
    if ignored:
        name, why = next(iter(ignored.items()))
        more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        yield _cut(f"not compared, by the map: {_short(name, NAME - 20)} ({why}){more}")


def _verdict(report: TensorReport) -> str:
    one_sided = len(report.missing) + len(report.surplus)
    parts = [f"{len(report.results)} compared"]
    parts += [f"{len(report.failed)} out of bounds"] if report.failed else []
    parts += [f"{one_sided} on one side only"] if one_sided else []
    parts += [f"{len(report.ignored)} ignored"] if report.ignored else []
    return f"verdict: {report.verdict}; tensors: {', '.join(parts)}"


def _wrapped(text: str) -> list[str]:
    """Two lines at the most."""
    made = wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return made if len(made) < 3 else [made[0], _cut(f"{made[1]} {made[2].strip()}")]


def _cut(text: str) -> str:
    """Without its end where it is longer than a line."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1].rstrip()}…"


def _short(text: str, most: int) -> str:
    """Without its middle where it is longer."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"
