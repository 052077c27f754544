"""Whether the golden may judge this device: nothing behind it changed, it is not made of the device's source, and what
the device accepts is its drafter's."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.golden.provenance import producer
from parity.golden.synthetic import forced_by, option_in
from parity.golden.trust import changes, device_modules, enumerated, shared


def checks(context: GateContext) -> Iterator[Check]:
    """The golden against what it was dumped from, and against the device."""
    yield unchanged(context)
    yield independent(context)
    yield real_acceptance(context)


def unchanged(context: GateContext) -> Check:
    """Checkpoints, tokenizer, chat template and the references' source are what they were."""
    changed, manifest = changes(context.golden), context.golden.manifest
    figures = {"checkpoints": changed.checkpoints, "sources": changed.sources, "unknown": changed.unknown}
    verdict, said = (
        PASS,
        f"both checkpoints, tokenizer, chat template and {len(manifest.producer.sources)} source files",
    )
    if changed.all:
        verdict, said = (
            FAIL,
            f"{enumerated(changed.all)} changed since {manifest.created}; `parity dump-golden` makes a new one",
        )
    elif changed.unknown:
        verdict, said = INCONCLUSIVE, "; ".join(changed.unknown)
    return Check("golden unchanged", verdict, said, figures)


def independent(context: GateContext) -> Check:
    """No module and no source file of the golden's producer is the device's."""
    golden, name = context.golden.manifest.producer, "shares no source with the device"
    device = context.device()
    says = device.describe()
    seen = producer(says.name, device_modules(device, says.modules, context.device_name, golden), (), 0)
    figures = {"golden": golden.modules, "device": seen.modules}
    if common := shared(golden, seen):
        said = f"{enumerated(common)}: such a golden cannot judge this device"
        return Check(name, FAIL, said, figures | {"shared": common})
    if not golden.modules or not seen.sources:
        who = "device" if golden.modules else "golden"
        return Check(name, INCONCLUSIVE, f"the {who} does not say which source it is made of", figures)
    said = (
        f"none in common of {len(golden.modules)} modules behind the golden and {len(seen.modules)} behind the device"
    )
    return Check(name, PASS, said, figures)


def real_acceptance(context: GateContext) -> Check:
    """Neither the environment nor what the device says of itself forces acceptance."""
    notes = context.device().describe().notes
    said = forced_by() or next(filter(None, (option_in(f"{name}: {value}") for name, value in notes.items())), "")
    name = "acceptance is the drafter's"
    if said:
        return Check(name, FAIL, f"{said}: acceptance is synthetic, and says nothing of the drafter", {"forced": said})
    return Check(name, PASS, "neither the environment nor the device's notes force it")
