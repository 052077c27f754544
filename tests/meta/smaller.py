"""A synthetic run that keeps less than whole tensors, as a device's would."""

from __future__ import annotations

from pathlib import Path

from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter


def smaller_run(run: Dump, out: Path, asked: Smaller) -> Dump:
    """The same run, of which this is kept."""
    whole, kept = run.manifest, asked.kept()
    case = whole.case.model_copy(update={"kept": kept, "positions": asked.positions})
    lengths = [len(prompt.ids) for prompt in case.prompts]
    with DumpWriter(out, keep=Keeping(kept, asked.positions, run.declared), lengths=lengths) as writer:
        for number in range(len(lengths)):
            places = [place for place in run.rows if place[1] == number]
            tensors = {place[2:]: run.contents(*place) for place in places}
            names = [run.declared[name] for name in {name for _, name in tensors}]
            writer.add(number, case.precision, names, tensors)
        writer.finish(
            kind="run",
            stages=whole.stages,
            created=whole.created,
            producer=whole.producer,
            model=whole.model,
            case=case,
        )
    return Dump(out)
