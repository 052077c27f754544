"""Predicted and measured speed-up over K as one drawing, SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from parity.bench.records import BenchReport, Predicted
from parity.reports.page.plots import Scale, round_steps

COLOURS = ("#1b6ca8", "#c0562f", "#4d7d3a", "#7a4fa3", "#8a6d1c", "#5b6670")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 740, 420, 60, 500, 30, 350
FONT = 'font-family="sans-serif" font-size="11"'


def speed_up_plot(report: BenchReport) -> str:
    """A line for each device and workload: measured with its limits, predicted dashed, the roofline dotted.

    Without a prediction there are axes and no line.
    """
    curves: dict[str, list[Predicted]] = {}
    for one in report.predictions:
        curves.setdefault(one.cell.rsplit("/", 2)[0], []).append(one)
    most = max((_most(one) for one in report.predictions), default=1.0)
    ks = sorted({one.k for one in report.predictions}) or [0, 1]
    x, y = Scale(min(ks) - 0.5, max(ks) + 0.5, RIGHT - LEFT, 0), Scale(0.0, max(most, 1.0) * 1.1, BOTTOM - TOP, 0)
    parts = [*_frame(x, y, ks)]
    for number, (name, rows) in enumerate(curves.items()):
        parts += _curve(x, y, sorted(rows, key=lambda one: one.k), COLOURS[number % len(COLOURS)])
        parts.append(_text(RIGHT + 14, TOP + 16 + 18 * number, name, "start", COLOURS[number % len(COLOURS)]))
    legend = ("whole: measured, bars its limits", "dashed: predicted by the model", "dotted: what peaks allow")
    parts += [_text(RIGHT + 14, BOTTOM - 34 + 17 * at, words, "start") for at, words in enumerate(legend)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>", ""])


def _most(one: Predicted) -> float:
    """Where its marks end; limits that are far beyond the rest do not stretch the scale."""
    return max(one.predicted, min(one.measured.high or 0.0, 2 * one.measured.estimate), one.roofline or 0.0)


def _frame(x: Scale, y: Scale, ks: Sequence[int]) -> Iterator[str]:
    yield f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#333"/>'
    yield f'<path d="M{LEFT} {BOTTOM - y(1.0):.1f}H{RIGHT}" stroke="#888" stroke-dasharray="4 3"/>'
    for k in ks:
        yield _text(LEFT + x(k), BOTTOM + 16, str(k))
    for value in round_steps(y.low, y.high):
        yield _text(LEFT - 8, BOTTOM - y(value) + 4, f"{value:g}", "end")
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 38, "K, drafts of a round")
    yield _text(LEFT, TOP - 10, "tokens per second over plain decoding of the same device", "start")


def _curve(x: Scale, y: Scale, rows: Sequence[Predicted], colour: str) -> Iterator[str]:
    def line(values: Sequence[float], style: str) -> str:
        points = "L".join(f"{LEFT + x(row.k):.1f} {BOTTOM - y(v):.1f}" for row, v in zip(rows, values, strict=True))
        return f'<path d="M{points}" fill="none" stroke="{colour}" {style}/>'

    yield line([row.measured.estimate for row in rows], 'stroke-width="2"')
    yield line([row.predicted for row in rows], 'stroke-dasharray="6 4"')
    if all(row.roofline is not None for row in rows):
        yield line([row.roofline or 0.0 for row in rows], 'stroke-dasharray="1 3"')
    for row in rows:
        if row.measured.low is not None and row.measured.high is not None:
            ends = f"{BOTTOM - y(row.measured.low):.1f}V{BOTTOM - y(row.measured.high):.1f}"
            yield f'<path d="M{LEFT + x(row.k):.1f} {ends}" stroke="{colour}"/>'
        at = f'cx="{LEFT + x(row.k):.1f}" cy="{BOTTOM - y(row.measured.estimate):.1f}"'
        yield f'<circle {at} r="2.5" fill="{colour}"/>'


def _text(at: float, height: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
    return f'<text x="{at:.0f}" y="{height:.0f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
