"""Acceptance over position of two EAGLE-3 drafters that differ in their RoPE alone.

    python benchmarks/positions.py [--out docs/acceptance-position.svg] [--json FILE] [--kept build/positions.pt]

The target goes on greedily behind the first tokens of running text; at every position of every text a round of K drafts
is begun. The mean of its accepted drafts is shown by position, with 95 % intervals from resampling whole texts, and so
is the difference of the two drafters on the same texts. A minute of one core, most of it for the texts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity.fixtures.recipe import SEED, eagle3_evaluate, eagle3_rope, text, tokenizer
from parity.fixtures.recipe.continuations import Continuation, continue_all, load_target
from parity.references.eagle3 import Eagle3

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "fixtures" / "tiny"
DRAFTERS = {eagle3_rope.MATCHED: "YaRN, as the target's", eagle3_rope.PLAIN: "plain, the same base"}
K, PROMPT = 4, 16
WIDTH = 32
"""Positions of one bin."""
RESAMPLED = 2000


def written(texts: int, end: int, kept: Path) -> list[Continuation]:
    """What the target writes behind the beginnings of running text, up to position `end`; kept for the next time."""
    if kept.exists():
        return [Continuation(**fields) for fields in torch.load(kept, weights_only=True)]
    words = tokenizer.load(TINY / "target")
    windows = [ids for ids in (words(one)["input_ids"] for one in text.raw_texts()) if len(ids) >= PROMPT]
    chosen = np.linspace(0, len(windows) - 1, texts).astype(int)
    prompts = {str(number): windows[number][:PROMPT] for number in chosen}
    found = continue_all(load_target(TINY / "target"), prompts, end - PROMPT)
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save([vars(one) for one in found], kept)
    return found


def accepted(drafter: Eagle3, found: Continuation) -> np.ndarray:
    """Drafts accepted of a round that begins behind each position [S], NaN where no whole round fits."""
    table = eagle3_evaluate.drafts_everywhere(drafter, found, K)
    ahead = found.tokens.unfold(0, K, 1)[2:]
    agreed = (table[: len(ahead)] == ahead).int().cumprod(1).sum(1).double()
    rows = np.full(len(found.tokens), np.nan)
    rows[PROMPT : len(agreed)] = agreed[PROMPT:].numpy()
    return rows


def binned(rows: list[np.ndarray], end: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts [texts, bins]."""
    padded = np.full((len(rows), end), np.nan)
    for number, one in enumerate(rows):
        padded[number, : len(one)] = one
    split = padded.reshape(len(rows), -1, WIDTH)
    return np.nansum(split, -1), np.isfinite(split).sum(-1)


def interval(sums: np.ndarray, counts: np.ndarray) -> dict[str, list[float]]:
    """Mean of each bin, and its 95 % interval by resampling texts."""
    picked = np.random.default_rng(SEED).integers(0, len(sums), (RESAMPLED, len(sums)))
    with np.errstate(invalid="ignore"):
        drawn = sums[picked].sum(1) / counts[picked].sum(1)
        low, high = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
        return {"mean": (sums.sum(0) / counts.sum(0)).tolist(), "low": low.tolist(), "high": high.tolist()}


def measure(drafters: Mapping[str, Path], texts: list[Continuation], end: int) -> dict[str, Any]:
    """The curves of all drafters, and the first one's minus each other's."""
    cells = {}
    for name, folder in drafters.items():
        drafter = Eagle3.load(folder)
        cells[name] = binned([accepted(drafter, one) for one in texts], end)
    first, *others = cells
    curves = {name: interval(*found) for name, found in cells.items()}
    apart = {name: interval(cells[first][0] - cells[name][0], cells[name][1]) for name in others}
    return {"starts": list(range(0, end, WIDTH)), "texts": len(texts), "curves": curves, "apart": apart}


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    names = list(found["curves"])
    heads = [*(DRAFTERS.get(name, name) for name in names), "difference"]
    lines = ["| positions | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for number, start in enumerate(found["starts"]):
        curves = [*found["curves"].values(), *found["apart"].values()]
        shown = [f"{one['mean'][number]:.2f} [{one['low'][number]:.2f}, {one['high'][number]:.2f}]" for one in curves]
        lines.append(f"| {max(start, PROMPT)} to {start + WIDTH - 1} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


COLOURS = ("#1b6ca8", "#c0562f", "#4d7d3a")
LEFT, RIGHT, TOP, BOTTOM = 60, 700, 30, 330


def plot(found: dict[str, Any], context: int) -> str:
    """The curves with their intervals as SVG."""
    end = found["starts"][-1] + WIDTH
    most = max(max(curve["high"]) for curve in found["curves"].values()) * 1.05

    def x(position: float) -> float:
        return LEFT + (RIGHT - LEFT) * position / end

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / most

    def text(at: float, height: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{at:.0f}" y="{height:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    middles = [start + WIDTH / 2 for start in found["starts"]]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 400" font-family="sans-serif" font-size="12">',
        '<rect width="740" height="400" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#333"/>',
        f'<path d="M{x(context):.1f} {TOP}V{BOTTOM}" stroke="#888" stroke-dasharray="4 3"/>',
        text(x(context) + 4, TOP + 10, "the target's original context", "start", "#666"),
        text((LEFT + RIGHT) / 2, BOTTOM + 36, "position where the round begins"),
        text(LEFT, TOP - 10, f"accepted drafts of a round, K = {K}; bands: 95 %, {found['texts']} texts", "start"),
    ]
    parts += [text(x(at), BOTTOM + 16, str(at)) for at in range(0, end + 1, 2 * WIDTH)]
    parts += [text(LEFT - 8, y(at / 5) + 4, f"{at / 5:.1f}", "end") for at in range(int(most * 5) + 1)]
    for number, (name, curve) in enumerate(found["curves"].items()):
        line = [f"{x(at):.1f} {y(mean):.1f}" for at, mean in zip(middles, curve["mean"], strict=True)]
        edge = [f"{x(at):.1f} {y(low):.1f}" for at, low in zip(middles, curve["low"], strict=True)]
        edge += [f"{x(at):.1f} {y(high):.1f}" for at, high in reversed(list(zip(middles, curve["high"], strict=True)))]
        colour = COLOURS[number]
        parts.append(f'<path d="M{"L".join(edge)}Z" fill="{colour}" fill-opacity="0.2"/>')
        parts.append(f'<path d="M{"L".join(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(LEFT + 10 + 260 * number, BOTTOM + 58, DRAFTERS.get(name, name), "start", colour))
    return "\n".join(part for part in (*parts, "</svg>") if part) + "\n"


def main() -> None:
    """Measure, print the table, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "acceptance-position.svg")
    parser.add_argument("--json", type=Path, help="the figures as well")
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "positions.pt", help="the texts, written once")
    parser.add_argument("--drafters", type=Path, default=TINY, help=f"where {' and '.join(DRAFTERS)} are")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--end", type=int, default=384, help=f"the last position, a multiple of {WIDTH}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    texts = written(asked.texts, asked.end, asked.kept)
    found = measure({name: asked.drafters / name for name in DRAFTERS}, texts, asked.end)
    context = json.loads((TINY / "target" / "config.json").read_text())["rope_parameters"]
    asked.out.write_text(plot(found, context["original_max_position_embeddings"]))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
