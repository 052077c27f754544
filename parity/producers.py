"""Where the instrument meets references: by name, when a golden is made or a reference has to run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parity.builders import checkpoints_of
from parity.bundled import tiny
from parity.errors import UsageError
from parity.golden.asked import asked_smaller, refuse_options, refuse_unknown
from parity.golden.producer import Producer
from parity.golden.smaller import Smaller
from parity.golden.store import Dump
from parity.golden.views import DumpView, TrustedGolden
from parity.home import fresh
from parity.oracles import REFERENCES, load_reference, missing
from parity.pair_sizes import read_pair
from parity.plan import GoldenPlan, golden_plan
from parity.progress import Progress, quiet
from parity.schedule import scheduled

if TYPE_CHECKING:
    pass

DRAFTERS = {"eagle": "eagle3"}
"""The tiny drafter of a reference that is not for P-EAGLE."""


def dump_golden(
    target: Path | None = None,
    drafter: Path | None = None,
    prompts: Path | None = None,
    k: int | Sequence[int] = 4,
    max_new_tokens: int = 48,
    stages: Sequence[str] = (),
    threads: int = 1,
    out: Path | None = None,
    reference: str = "own",
    *,
    progress: Progress = quiet,
    **options: Any,
) -> Dump:
    """Run a reference over prompts and write every stage: a golden, opened.

    Args:
        target, drafter: checkpoint folders; the tiny pair's that ships with the project by default.
        prompts: JSON lines with messages, text or ids; the tiny pair's chat prompts by default.
        k: draft tokens a round; or those of each round in turn, from the first one again behind the last.
        max_new_tokens: token budget of each prompt.
        stages: globs over stage names; all where empty.
        threads: of the references; the same number gives the same bits.
        out: a new folder; one below `parity.home.home()` by default.
        reference: one of `REFERENCES`.
        options: what only some references take: `roundings`, `partial_kv`, `kv_cache`, `sample`, `seed`, `batch`,
            `memory`, `resume`, `max_bytes`, `python`, `floor`, `checkout`, `derived`; of what is kept `sketch`,
            `sketch_seed`, `logits`, `positions`.

    Raises:
        UsageError: this reference does not take one of the options, is not installed, or anything else does not fit.
    """
    options |= {"progress": progress}
    producer, request = _asked(reference, target, drafter, prompts, k, max_new_tokens, stages, threads, out, options)
    return Dump(producer.dump_golden(request))


def _asked(
    reference: str,
    target: Path | None,
    drafter: Path | None,
    prompts: Path | None,
    k: int | Sequence[int],
    max_new_tokens: int,
    stages: Sequence[str],
    threads: int,
    out: Path | None,
    options: dict[str, Any],
) -> tuple[ModuleType, Any]:
    """A reference and its `Request`, both of them imported once its options go together; see `dump_golden`."""
    if options.get("resume") and out is None:
        raise UsageError("--resume needs --out: what is done is kept beside it")
    refuse_options(reference, k, max_new_tokens, options)
    producer = load_reference(reference, threads)
    takes = {field.name for field in fields(producer.Request)}
    most, schedule = scheduled(k)
    refuse_unknown(reference, takes, schedule, options)
    more = ({"threads": threads} if "threads" in takes else {}) | ({"schedule": schedule} if schedule else {})
    return producer, producer.Request(
        target=target or tiny("target"),
        drafter=drafter or tiny(DRAFTERS.get(reference, "drafter")),
        prompts=prompts or tiny("prompts/chat.jsonl"),
        k=most,
        max_new_tokens=max_new_tokens,
        stages=stages,
        out=out or fresh("goldens", (target or tiny("target")).name),
        **options,
        **more,
    )


def read_prompts(path: Path, target: Path, drafter: Path) -> list[tuple[str, list[int]]]:
    """The prompts of a JSON-lines file by name, as ids of the target's tokenizer.

    Raises:
        UsageError: transformers is not installed, or the file cannot be read as prompts.
    """
    try:  # no model is loaded: torch would take seconds
        read = import_module("parity.references.prompts").read_prompts
        found: list[tuple[str, list[int]]] = read(path, target, read_pair(target, drafter).vocab)
    except ModuleNotFoundError as error:
        raise missing(error) from None
    return found


def plan_golden(
    target: Path | None,
    drafter: Path | None,
    prompts: Path | None,
    k: int | Sequence[int],
    max_new_tokens: int,
    stages: Sequence[str] = (),
    threads: int = 1,
    out: Path | None = None,
    reference: str = "own",
    **options: Any,
) -> GoldenPlan:
    """What `dump_golden` would take, of the same arguments; weights' files are opened, and not read.

    Raises:
        UsageError: torch or transformers is not installed, a checkpoint or the prompts cannot be read, or `dump_golden`
            would refuse an option before it loads a model.
    """
    _, request = _asked(reference, target, drafter, prompts, k, max_new_tokens, stages, threads, out, options)
    pair = request.target, request.drafter
    lengths = [len(ids) for _, ids in import_module("parity.references.admission").admitted(request)]
    family = import_module("parity.references.drafting").family(request.drafter)
    return golden_plan(pair, family, lengths, request.k, max_new_tokens, stages, asked_smaller(options))


def dump_again(golden: DumpView, out: Path, prompts: Path, progress: Progress = quiet) -> Dump:
    """Dump a golden's case once more: its reference, K, budget, stages, roundings and threads.

    Args:
        out: a new folder.
        prompts: the golden's prompts as a file; see `parity.golden.verify.write_prompts`.

    Raises:
        UsageError: the golden was imported, or its reference cannot make it again here.
    """
    manifest, how = golden.manifest, how_made(golden)
    return dump_golden(
        Path(manifest.model.target.path),
        Path(manifest.model.drafter.path),
        prompts,
        manifest.case.ks,
        manifest.case.max_new_tokens,
        manifest.stages,
        manifest.producer.threads,
        out,
        progress=progress,
        **how,
    )


def how_made(golden: DumpView) -> dict[str, Any]:
    """The reference that made a golden, and the options it was given.

    Raises:
        UsageError: nothing here can make it again.
    """
    producer, case = golden.manifest.producer, golden.manifest.case
    if not producer.modules:
        raise UsageError(f"{golden.folder} was imported: nothing here can dump it once more")
    if "parity.references.eagle_capture" in producer.modules:
        raise UsageError(
            f"{golden.folder} holds the official EAGLE's stages; only `--reference eagle` makes them again"
        )
    if producer.name == "vllm":
        batch, floor = int(producer.notes["prompts at a time"]), "bfloat16" in golden.variants()
        return {"reference": "vllm", "batch": batch, "floor": floor, "roundings": case.roundings}
    kept: dict[str, Any] = {"partial_kv": case.partial_kv} if case.partial_kv else {}
    kept |= {"kv_cache": case.kv_cache} if case.kv_cache else {}
    kept |= {"sample": case.sampling, "seed": case.seed} if case.sampling else {}
    kept |= asdict(Smaller.of(case)) if golden.keeps else {}
    return {"reference": "plain" if is_plain(producer) else "own", "roundings": case.roundings, **kept}


def is_plain(producer: Producer) -> bool:
    """Whether a golden is of `--reference plain`, whose target is a part of its own; nothing is imported."""
    return REFERENCES["plain"] in producer.modules and bool(producer.parts)


def baseline(golden: TrustedGolden, precision: str) -> Callable[[Sequence[int], int], float] | None:
    """Tokens per second of the reference target decoding a golden's checkpoint plainly; None without torch here."""
    try:
        load_reference("own", 1)
    except UsageError:
        return None
    greedy = import_module("parity.references.greedy").greedy
    clocked: Callable[[Sequence[int], int], float] = greedy(Path(golden.manifest.model.target.path), precision)
    return clocked


def counterfactuals(golden: TrustedGolden, threads: int) -> tuple[Callable[[str], Any], Sequence[Any]]:
    """What makes the references under hypotheses, in a precision, on a golden's checkpoints; and those about its
    drafter."""
    load_reference("own", threads)
    module = import_module("parity.references.counterfactual")
    target, drafter = checkpoints_of(golden.manifest.model)
    case = golden.manifest.case
    offered = import_module("parity.references.hypotheses").offered
    kept = case.partial_kv, case.kv_cache
    known = offered(golden.manifest.model.family, *map(bool, kept))
    return lambda precision: module.Counterfactuals(target, drafter, case.ks, precision, *kept), known
