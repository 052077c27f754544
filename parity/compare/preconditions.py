"""What has to hold before a run is compared: the golden's case and pair, no source in common, a policy that fits."""

from __future__ import annotations

from functools import lru_cache

from parity.errors import UsageError
from parity.golden.synthetic import refuse_synthetic
from parity.golden.trust import refuse_shared
from parity.golden.views import DumpView, TrustedGolden
from parity.policy import Policy
from parity.stages import declared


def comparable(golden: TrustedGolden, run: DumpView) -> None:
    """Same case, same checkpoints, no source in common, and acceptance that is the drafter's."""
    if run.manifest.kind != "run":
        raise UsageError(f"{run.folder} is a golden; the device's side of a comparison is a run folder")
    _refuse_other_case(golden, run)
    _refuse_other_pair(golden, run)
    refuse_shared(golden.manifest.producer, run.manifest.producer)
    if len(run.sides) > 1 and (golden.keeps or any(side.keeps for side in run.sides)):
        raise UsageError("two devices are compared on whole tensors: golden or runs keep less")
    for side in run.sides:
        refuse_synthetic(side.manifest.producer, str(side.folder))


def _refuse_other_case(golden: TrustedGolden, run: DumpView) -> None:
    """Prompts, K, budget, random numbers and caches are the golden's."""
    true, seen = golden.manifest, run.manifest
    asked = [(side.case.k, side.case.max_new_tokens, [one.ids for one in side.case.prompts]) for side in (true, seen)]
    if asked[0] != asked[1]:
        raise UsageError(f"{run.folder} was made over other prompts, K or token budget than {golden.folder}")
    drawn = [(side.case.sampling, [one.uniforms for one in side.case.prompts]) for side in (true, seen)]
    if drawn[0] != drawn[1]:
        raise UsageError(f"{run.folder} was sampled in another way, or by other random numbers, than {golden.folder}")
    if true.case.sampling and len(run.sides) > 1:
        raise UsageError(f"{golden.folder} samples: compare each device with it, two are not compared with each other")
    if seen.case.partial_kv != true.case.partial_kv:
        kept = [side.case.partial_kv or "none" for side in (true, seen)]
        raise UsageError(f"{run.folder} has partial KV {kept[1]}, {golden.folder} has {kept[0]}")
    if seen.case.kv_cache != true.case.kv_cache:
        kept = [side.case.kv_cache or "the dtype of its passes" for side in (true, seen)]
        raise UsageError(f"{run.folder} keeps its caches in {kept[1]}, {golden.folder} in {kept[0]}")


def _refuse_other_pair(golden: TrustedGolden, run: DumpView) -> None:
    """Checkpoints and numbers of layers are the golden's."""
    true, seen = golden.manifest, run.manifest
    for part in ("target", "drafter"):
        ours, theirs = getattr(true.model, part), getattr(seen.model, part)
        if (ours.config_digest, ours.weights_digest) != (theirs.config_digest, theirs.weights_digest):
            raise UsageError(f"{run.folder} ran another {part} checkpoint than {golden.folder} was dumped from")
    layers = [(manifest.model.num_layers, manifest.model.num_drafter_layers) for manifest in (true, seen)]
    if layers[0] != layers[1]:
        raise UsageError(
            f"{run.folder} says that the pair has {layers[1]} layers, {golden.folder} that it has {layers[0]}"
        )


def refuse_unmatched(policy: Policy, golden: TrustedGolden) -> None:
    """A policy row that matches no stage is a mistake, not a comment; one of another family of drafters is none."""
    model = golden.manifest.model
    known = (*_any_stages(model.num_layers, max(model.num_drafter_layers, 1)), *golden.declared)
    if (stages := policy.unmatched(known)) is not None:
        raise UsageError(f"policy {policy.name}: row {stages!r} matches no stage")
    if dead := policy.dead(golden.declared):
        raise UsageError(f"policy {policy.name}: {dead}")


@lru_cache
def _any_stages(num_layers: int, num_drafter_layers: int) -> tuple[str, ...]:
    """The stages of a pair with the most that a drafter on taps can have."""
    return tuple(declared(num_layers, num_drafter_layers, pages=True, quantised=True))
