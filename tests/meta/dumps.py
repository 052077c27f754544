"""A golden and a run of a synthetic world, in memory to plant a defect in, and on disk to be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.golden.case import Case, Generation, PromptCase
from parity.golden.checkpoints import Checkpoint, Model
from parity.golden.producer import Producer
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter
from parity.stages import Named
from parity.trace import Tensors
from tests.meta.worlds import ACCEPTED, NAMES, OFFSET, VD, K, Size, made


@dataclass
class Pair:
    """A golden and a run in memory, to plant one defect in; `golden[variant][prompt]`, `run[prompt]`."""

    size: Size
    golden: dict[str, list[Tensors]]
    run: list[Tensors]
    golden_stages: list[str]
    run_stages: list[str]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    after: Callable[[Path], None] | None = None
    precision: str = "bfloat16"


def clean(size: Size) -> Pair:
    """A fresh pair without a defect; tensors may be changed in place."""
    golden, run = made(size)
    copies = {variant: [_copy(one) for one in prompts] for variant, prompts in golden.items()}
    return Pair(size, copies, [_copy(one) for one in run], list(size.stages), list(size.stages))


def _copy(tensors: Tensors) -> Tensors:
    return {place: value.copy() for place, value in tensors.items()}


def write(pair: Pair, folder: Path) -> tuple[Dump, Dump]:
    """Both sides on disk."""
    variants = {"golden": pair.golden, "run": {pair.precision: pair.run}}
    for kind, sides in variants.items():
        with DumpWriter(folder / kind) as writer:
            for variant, prompts in sides.items():
                for number, tensors in enumerate(prompts):
                    writer.add(number, variant, _named(pair, kind, tensors), tensors)
            stages = pair.golden_stages if kind == "golden" else pair.run_stages
            case = _case(kind, pair)
            writer.finish(kind=kind, stages=stages, created="", producer=_producer(kind), model=_model(), case=case)
    if pair.after:
        pair.after(folder)
    return Dump(folder / "golden"), Dump(folder / "run")


def _named(pair: Pair, kind: str, tensors: Tensors) -> list[Named]:
    """Stages by name, with the axes a defect declares; a name that no table has gets those of a stage with as many."""
    found = []
    for name in {name for _, name in tensors}:
        axes = next(value.ndim for (_, one), value in tensors.items() if one == name)
        like = {1: "target.tokens", 2: "target.embed"}.get(axes, "target.layers.0.q")
        stage = NAMES[name].stage if name in NAMES else NAMES[like].stage
        axes = pair.axes.get(name, stage.axes) if kind == "run" else stage.axes
        found.append(Named(name, replace(stage, axes=axes)))
    return found


def _producer(kind: str) -> Producer:
    return Producer(name=kind, versions={}, modules=(f"synthetic.{kind}",), source_digest=kind, threads=1, platform="")


def _model() -> Model:
    target, drafter = (Checkpoint(path=name, config_digest=name, weights_digest=name) for name in "td")
    return Model(
        target=target,
        drafter=drafter,
        num_layers=2,
        num_drafter_layers=1,
        draft_vocabulary=tuple(range(OFFSET, OFFSET + VD)),
    )


def _generation(truth: Tensors, size: Size) -> Generation:
    """What the truth emits."""
    accepted = ACCEPTED[: size.rounds]
    first = truth.get((0, "target.tokens"), [0])[-1]
    rest = (token for round_ in range(1, size.rounds + 1) for token in truth[round_, "accept.emitted"])
    return Generation(
        emitted=(int(first), *map(int, rest)),
        acceptance_length=accepted,
        accepted_drafts=tuple(count - 1 for count in accepted),
        finish="length" if size.rounds else "eos",
    )


def _case(kind: str, pair: Pair) -> Case:
    size = pair.size
    truth, _ = made(size)
    prompts = tuple(
        PromptCase(id=str(count), ids=tuple(range(count)), generation=_generation(tensors, size))
        for count, tensors in zip(size.prompts, truth["float32"], strict=True)
    )
    precision, mode = ("float32", "golden") if kind == "golden" else (pair.precision, "chained")
    shared = dict(k=K, max_new_tokens=7, prompts_digest="", forced=("target.layers.{l}.experts",))
    return Case(precision=precision, mode=mode, prompts=prompts, **shared)
