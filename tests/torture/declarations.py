"""Edits of what the manifests say: prompts, rounds, forced stages, precision, mode, layers, ranks."""

from __future__ import annotations

from random import Random

from tests.torture.attempts import ANY, NOT_ACCEPTED, UNREADABLE
from tests.torture.edits import edit
from tests.torture.evidence import Evidence


@edit()
def _prompt_dropped(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A prompt less, its tensors still there."""
    sides = rng.choice(((golden, run), (golden,), (run,)))
    place = rng.randrange(len(golden.prompts()))
    for side in sides:
        del side.prompts()[place]
    return f"{place} of {[side.folder.name for side in sides]}"


@edit()
def _no_prompts(golden: Evidence, run: Evidence, rng: Random) -> str:
    for side in (golden, run):
        side.prompts().clear()
    return "both sides"


@edit()
def _prompts_exchanged(golden: Evidence, run: Evidence, rng: Random) -> str:
    sides = rng.choice(((golden, run), (golden,), (run,)))
    for side in sides:
        side.prompts().reverse()
    return f"{[side.folder.name for side in sides]}"


@edit()
def _ids_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Another number of prompt tokens on both sides than the tensors have rows."""
    prompt = rng.randrange(len(golden.prompts()))
    for side in (golden, run):
        side.prompts()[prompt]["ids"].append(1)
    return f"prompt {prompt}"


@edit()
def _round_dropped(golden: Evidence, run: Evidence, rng: Random) -> str:
    """The last verify round, consistently out of what was emitted, its tensors still there."""
    sides = rng.choice(((golden, run), (golden,)))
    prompt = rng.randrange(len(golden.prompts()))
    for side in sides:
        made = side.prompts()[prompt]["generation"]
        if not made["acceptance_length"]:
            return ""
        last = made["acceptance_length"].pop()
        made["accepted_drafts"].pop()
        del made["emitted"][-last:]
    return f"prompt {prompt} of {[side.folder.name for side in sides]}"


@edit()
def _rounds_merged(golden: Evidence, run: Evidence, rng: Random) -> str:
    """As many tokens in fewer rounds."""
    prompt = rng.randrange(len(golden.prompts()))
    for side in (golden, run):
        made = side.prompts()[prompt]["generation"]
        for counts in (made["acceptance_length"], made["accepted_drafts"]):
            if len(counts) < 2:
                return ""
            counts[-2:] = [sum(counts[-2:])]
    return f"prompt {prompt}"


@edit()
def _acceptance_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """One count another one; in the run alone it contradicts what the run emitted."""
    sides = rng.choice(((golden, run), (golden,), (run,)))
    prompt, what = rng.randrange(len(golden.prompts())), rng.choice(("acceptance_length", "accepted_drafts"))
    step = rng.choice((1, -1, 100, -100))
    for side in sides:
        counts = side.prompts()[prompt]["generation"][what]
        place = rng.randrange(len(counts))
        if sides == (run,) and what == "accepted_drafts" and step == 1 and place == len(counts) - 1:
            return ""  # the budget may have cut that round, and bfloat16 may draft otherwise: nothing contradicts it
        counts[place] += step
    return f"{what} {step:+d} in prompt {prompt} of {[side.folder.name for side in sides]}"


@edit()
def _emitted_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    sides = rng.choice(((golden, run), (golden,)))
    prompt = rng.randrange(len(golden.prompts()))
    for side in sides:
        emitted = side.prompts()[prompt]["generation"]["emitted"]
        emitted[rng.randrange(len(emitted))] += 1
    return f"prompt {prompt} of {[side.folder.name for side in sides]}"


@edit()
def _generation_gone(golden: Evidence, run: Evidence, rng: Random) -> str:
    golden.prompts()[0]["generation"] = None
    return "of the golden"


@edit(ANY)
def _forced_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """On a clean run it may change nothing, or make it stricter."""
    run.data["case"]["forced"] = rng.choice(([], ["*"], ["x"], ["target.tokens"], ["target.layers.{l}.experts"] * 2))
    return f"{run.data['case']['forced']}"


@edit()
def _precision_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A float32 run that holds bfloat16, or rows that say so as well."""
    run.data["case"]["precision"] = "float32"
    if rng.random() < 0.5:
        for row in run.data["tensors"]:
            row["variant"] = "float32"
    return "float32"


@edit()
def _mode_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    run.data["case"]["mode"] = rng.choice(("local", "golden"))
    return run.data["case"]["mode"]


@edit()
def _k_or_budget_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """On both sides: the tensors and what was emitted say otherwise."""
    what, step = rng.choice(("k", "max_new_tokens")), rng.choice((1, -1, 100, -(10**6)))
    for side in (golden, run):
        side.data["case"][what] += step
    return f"{what} {step:+d}"


@edit()
def _layers_of_the_run(golden: Evidence, run: Evidence, rng: Random) -> str:
    what = rng.choice(("num_layers", "num_drafter_layers"))
    run.data["model"][what] += rng.choice((1, 10**6, -1))
    return f"{what} {run.data['model'][what]}"


@edit(NOT_ACCEPTED)
def _layers_lost(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Fewer layers on both sides than the tensors have."""
    for side in (golden, run):
        side.data["model"]["num_layers"] = 0
    return "0 layers"


@edit()
def _stage_undeclared(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A stage that no side declares any more, its tensors still there."""
    stage = rng.choice(run.stages())
    for side in rng.choice(((golden, run), (golden,), (run,))):
        side.data["stages"].remove(stage)
    return stage


@edit()
def _no_stages(golden: Evidence, run: Evidence, rng: Random) -> str:
    for side in (golden, run):
        side.data["stages"] = []
    return "both sides"


@edit()
def _stage_declared_more(golden: Evidence, run: Evidence, rng: Random) -> str:
    """A stage that nobody recorded."""
    for side in (golden, run):
        side.data["stages"].append("drafter.taps" if "drafter.taps" not in side.data["stages"] else "drafter.nothing")
    return golden.data["stages"][-1]


@edit()
def _another_checkpoint(golden: Evidence, run: Evidence, rng: Random) -> str:
    part, what = rng.choice(("target", "drafter")), rng.choice(("config_digest", "weights_digest"))
    run.data["model"][part][what] = "0" * 64
    return f"{part} {what}"


@edit()
def _axes_relabelled(golden: Evidence, run: Evidence, rng: Random) -> str:
    rows = [row for row in run.data["tensors"] if len(row["axes"]) > 1]
    row = rng.choice(rows)
    row["axes"] = row["axes"][::-1]
    return row["key"]


@edit()
def _start_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    """Rows of another round than the cache's own."""
    row = rng.choice([row for row in run.data["tensors"] if "/kv." in row["key"] and len(row["shape"]) > 1])
    row["start"] += rng.choice((1, -1, 2**40, -(2**40)))
    return f"{row['key']} {row['start']}"


@edit()
def _ranks_edited(golden: Evidence, run: Evidence, rng: Random) -> str:
    row = rng.choice(run.data["tensors"])
    row["rank"] = rng.choice((1, -1, 2**40))
    return f"{row['key']} {row['rank']}"


@edit(UNREADABLE)
def _row_twice(golden: Evidence, run: Evidence, rng: Random) -> str:
    side = rng.choice((golden, run))
    side.data["tensors"].append(dict(rng.choice(side.data["tensors"])))
    return side.folder.name
