"""What a golden or run folder prints as, and the same content as plain data for --json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from parity.golden.views import DumpView
from parity.plain import printable


class Plain(Console):
    """Prints foreign text as it is: nothing in it is markup, and no character of it reaches the terminal as a control."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, where a table cannot ask for markup again."""
        return super().render_str(text, **options | {"markup": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments without control characters, but for those that rich itself marks as such."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console() -> Console:
    """Standard output; wide enough for a table where it is no terminal."""
    out = Plain()
    return out if out.is_terminal else Plain(width=140)


def print_dump(dump: DumpView, stages: bool = False) -> dict[str, Any]:
    """What a folder holds; the same as data."""
    out, manifest = console(), dump.manifest
    case = manifest.case
    free = [prompt.generation for prompt in case.prompts if prompt.generation is not None]
    rounds = [length for generation in free for length in generation.acceptance_length]
    drafts = [count for generation in free for count in generation.accepted_drafts]
    data = {
        "folder": str(dump.folder),
        "kind": manifest.kind,
        "producer": manifest.producer.model_dump(exclude={"modules"}),
        "target": manifest.model.target.path,
        "drafter": manifest.model.drafter.path,
        "k": case.k,
        "mode": case.mode,
        "precision": case.precision,
        "prompts": len(case.prompts),
        "new_tokens": sum(len(generation.emitted) for generation in free),
        "rounds": len(rounds),
        "acceptance_length": sum(rounds) / len(rounds) if rounds else 0.0,
        "accepted_drafts": sum(drafts) / len(drafts) if drafts else 0.0,
        "tensors": len(manifest.tensors),
        "variants": sorted(dump.variants()),
        "stages": list(manifest.stages),
    }
    out.print(Text.assemble((manifest.kind, "bold"), f" {dump.folder}"), soft_wrap=True)
    out.print(f"  producer  {manifest.producer.name}; {_versions(manifest.producer.versions)}", soft_wrap=True)
    out.print(
        f"  pair      {data['target']} + {data['drafter']}, K={case.k}, {case.mode}, {case.precision}", soft_wrap=True
    )
    emitted = (
        f"{data['new_tokens']} new tokens, {data['rounds']} verify rounds, acceptance length "
        f"{data['acceptance_length']:.3f} (accepted drafts {data['accepted_drafts']:.3f})"
    )
    out.print(f"  case      {data['prompts']} prompts, {emitted if free else 'nothing generated'}", soft_wrap=True)
    out.print(f"  tensors   {data['tensors']} in {len(manifest.stages)} stages, {', '.join(data['variants'])}")
    if stages:
        out.print(_stage_table(dump))
    return data


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _stage_table(dump: DumpView) -> Table:
    """Every declared stage with its axes, and the shape and dtype of its first tensor."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", "axes", "first shape", "dtype", "tensors"):
        table.add_column(heading, no_wrap=True)
    first, count = {}, {}
    main = "float32" if dump.manifest.kind == "golden" else dump.manifest.case.precision
    for row in dump.manifest.tensors:
        if row.variant == main:
            stage = row.place[2]
            first.setdefault(stage, row)
            count[stage] = count.get(stage, 0) + 1
    for stage in dump.manifest.stages:
        row = first.get(stage)
        if row is None:
            table.add_row(stage, "", Text("none", style="red"), "", "0")
        else:
            table.add_row(stage, ",".join(row.axes), "x".join(map(str, row.shape)), row.dtype, str(count[stage]))
    return table
