"""What a golden or run folder prints as, and the same as plain data for --json; a golden and its second dump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from parity.golden.views import DumpView
from parity.reports.console import STYLE, console
from parity.reproducing import command_line

if TYPE_CHECKING:
    from parity.golden.case import Case
    from parity.golden.manifest import TensorRow
    from parity.golden.verify import Verified
    from parity.plan import GoldenPlan


def print_dump(dump: DumpView, stages: Literal["", "families", "all"] = "") -> dict[str, Any]:
    """What a folder holds, its stages by family or every one; the same as data."""
    out, manifest = console(), dump.manifest
    case = manifest.case
    free = [prompt.generation for prompt in case.prompts if prompt.generation is not None]
    rounds = [length for generation in free for length in generation.acceptance_length]
    drafts = [count for generation in free for count in generation.accepted_drafts]
    variants = sorted(dump.variants())
    data = {
        "folder": str(dump.folder),
        "kind": manifest.kind,
        "producer": manifest.producer.model_dump(exclude={"modules"}),
        "target": manifest.model.target.path,
        "drafter": manifest.model.drafter.path,
        "k": case.k,
        "partial_kv": case.partial_kv,
        "kv_cache": case.kv_cache,
        "schedule": case.schedule,
        "sampling": case.sampling,
        "seed": case.seed,
        "kept": [one.model_dump() for one in case.kept],
        "positions": case.positions,
        "mode": case.mode,
        "precision": case.precision,
        "prompts": len(case.prompts),
        "new_tokens": sum(len(generation.emitted) for generation in free),
        "rounds": len(rounds),
        "acceptance_length": sum(rounds) / len(rounds) if rounds else 0.0,
        "accepted_drafts": sum(drafts) / len(drafts) if drafts else 0.0,
        "tensors": len(manifest.tensors),
        "variants": variants,
        "stages": list(manifest.stages),
    }
    ks = ",".join(map(str, case.ks))
    out.print(Text.assemble((manifest.kind, "bold"), f" {dump.folder}"), soft_wrap=True)
    out.print(f"  producer  {manifest.producer.name}; {_versions(manifest.producer.versions)}", soft_wrap=True)
    kept = f", partial KV {case.partial_kv}" if case.partial_kv else ""
    kept += f", caches in {case.kv_cache}" if case.kv_cache else ""
    pair = f"{data['target']} + {data['drafter']}, K={ks}{kept}"
    out.print(f"  pair      {pair}, {case.mode}, {case.precision}", soft_wrap=True)
    emitted = (
        f"{data['new_tokens']} new tokens, {data['rounds']} verify rounds, acceptance length "
        f"{data['acceptance_length']:.3f} (accepted drafts {data['accepted_drafts']:.3f})"
    )
    out.print(f"  case      {data['prompts']} prompts, {emitted if free else 'nothing generated'}", soft_wrap=True)
    if case.sampling:
        out.print(f"  sampling  {case.sampling}, seed {case.seed}", soft_wrap=True)
    if said := _kept(case):
        out.print(f"  kept      {said}", soft_wrap=True)
    out.print(f"  tensors   {data['tensors']} in {len(manifest.stages)} stages, {', '.join(variants)}")
    if stages:
        out.print(_stage_table(dump, stages == "families"))
    return data


def _kept(case: Case) -> str:
    """What is kept in place of whole tensors, in words; '' where nothing is."""
    forms = {"sketch": "a sketch of {} numbers a row", "top": "the {} best a row"}
    told = [f"{one.stages} as {forms[one.form].format(one.numbers)}" for one in case.kept]
    told += [f"rows at positions {case.positions} of the prompts"] if case.positions else []
    seeds = sorted({one.seed for one in case.kept if one.form == "sketch"})
    return "; ".join(told) + (f"; seed {seeds[0]}" if seeds else "")


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _stage_table(dump: DumpView, families: bool) -> Table:
    """Every declared stage, or family of stages, with its axes, and the shape and dtype of its first tensor."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    for heading in ("stage", "layers", "axes", "first shape", "dtype", "tensors"):
        table.add_column(heading, overflow="fold")
    rows: dict[str, list[TensorRow]] = {}
    main = "float32" if dump.manifest.kind == "golden" else dump.manifest.case.precision
    for row in dump.manifest.tensors:
        if row.variant == main:
            rows.setdefault(row.place[2], []).append(row)
    groups: dict[str, list[str]] = {}
    for stage in dump.manifest.stages:
        named = dump.declared.get(stage)
        groups.setdefault(named.stage.template if named and families else stage, []).append(stage)
    for name, stages in groups.items():
        held = [row for stage in stages for row in rows.get(stage, [])]
        missing, layers = [stage for stage in stages if stage not in rows], _layers(dump, stages)
        if missing:
            table.add_row(name, layers, "", Text(f"none of {', '.join(missing)}", style="red"), "", str(len(held)))
        else:
            shape = "x".join(map(str, held[0].shape))
            table.add_row(name, layers, ",".join(held[0].axes), shape, held[0].dtype, str(len(held)))
    return table


def _layers(dump: DumpView, stages: list[str]) -> str:
    """First and last layer of a family, and how many where some between them are missing."""
    named = [dump.declared[stage].layer for stage in stages if stage in dump.declared]
    numbers = [number for number in named if number is not None]
    if len(numbers) < 2:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}-{numbers[-1]}" + (
        "" if numbers[-1] - numbers[0] + 1 == len(numbers) else f" ({len(numbers)})"
    )


def print_verified(verified: Verified) -> None:
    """All alike in one line; else the first tensor that differs, and what else changed since."""
    out, verdict = console(), "fail" if verified.exit_code else "pass"
    notes = [f"{what} changed" for what in (*verified.sources, *verified.versions)] + list(verified.unknown)
    text = Text(f"golden verdict: {verdict}", style=STYLE[verdict])
    if not verified.exit_code:
        text.append(f"; {verified.golden}: {verified.tensors} tensors alike, byte for byte", style="default")
    else:
        parts = [f"{verified.differing} of {verified.tensors} tensors differ"] if verified.differing else []
        parts += [f"first {verified.first}"] if verified.first else []
        parts += [f"{what} differs" for what in verified.case]
        text.append("; " + "; ".join([verified.golden, *parts]), style="default")
        text.append(f"; reproduce: {command_line('verify-golden', verified.golden)}", style="default")
    for note in notes:
        out.print(f"since the dump: {note}", soft_wrap=True)
    out.print(text, soft_wrap=True)


def print_plan(plan: GoldenPlan, memory: float | None = None) -> None:
    """What a golden will take.

    Args:
        memory: GiB of weights that are kept; all of them where None.
    """
    out, (fewest, most) = console(), plan.rounds
    out.print("pair      " + ", ".join(f"{name} {number}" for name, number in plan.geometry.items()), soft_wrap=True)
    out.print(f"case      {plan.prompts} prompts, {plan.rows} rows, {fewest} to {most} rounds each")
    out.print(f"read      {_size(plan.read)} of weights, {plan.parameters / 1e6:,.0f} million parameters")
    held = f"{_size(plan.memory)} of weights" if memory is None else f"{memory:g} GiB of weights, the rest in its files"
    out.print(f"memory    {held}, and a prompt's stages, {_size(plan.disk[1] // max(plan.prompts, 1))} at the most")
    out.print(f"disk      {_size(plan.disk[0])} to {_size(plan.disk[1])}")


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
