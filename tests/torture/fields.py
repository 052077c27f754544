"""Every field of both manifests, spoilt in every way that JSON knows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from tests.torture.attempts import NOT_ACCEPTED, SAME_OR_UNREADABLE, UNREADABLE, Attack, Attempt
from tests.torture.bases import Bases, lay_out, manifest, rewrite, sealed

SIDES = ("golden", "run")
KEPT = re.compile(r"case\.(kept.*|positions)")
"""Fields that say what is kept in place of whole tensors: attacked where something is."""
LESS = ("--without", "worst_column,largest")
"""What sketches say nothing of: without it the clean pair is inconclusive, and every attack refused."""
LABELS = re.compile(
    r"created|producer\.(name|threads|platform|versions.*|notes.*|modules.*|sources.*|source_digest|parts.*)|corroborations.*"
    r"|model\.\w+\.(path|tokenizer_digest|chat_template_digest)|derived"
    r"|case\.(prompts_digest|roundings|lanes|forced.*)|case\.prompts\.#\.id"
)
"""Fields that say who, where and how, not what was compared: a clean run with another one may pass or be refused. (What
a forced entry less does to a run that is not clean is tried among the edits.)"""
VOCABULARY = re.compile(r"model\.draft_vocabulary.*")
"""Where a golden does not say it the checkpoint does; another one may speak against right drafts, where a tie asks."""
OWN = re.compile(r"case\.prompts\.#\.generation\.(emitted\.#|finish)")
"""What a device emitted alone: bfloat16 may differ from the golden there, and its own scores may speak against it."""
DRAFTS = re.compile(r"case\.prompts\.#\.generation\.accepted_drafts\.#")

CONSTANTS = re.compile(r"model\.(target|drafter)\.constants.*")

Path_ = tuple[str | int, ...]
Raw = dict[str, str]
HOLE = "@hole@"


def _holed(text: str) -> Callable[[Any], tuple[Any, Raw]]:
    """Text that Python's JSON cannot write, in the place of a value."""
    return lambda value: (HOLE, {f'"{HOLE}"': text})


def _plain(value: Any) -> Callable[[Any], tuple[Any, Raw]]:
    return lambda old: (deepcopy(value), {})


def _changed(value: Any) -> tuple[Any, Raw]:
    """Another value of the same kind, hardly different."""
    match value:
        case bool():
            return not value, {}
        case int() | float():
            return value + 1, {}
        case str() if value:
            return value[:-1] + ("0" if value[-1] != "0" else "1"), {}
        case list() if value:
            return value[:-1], {}
        case dict() if value:
            return dict(list(value.items())[1:]), {}
    return [value], {}


def _twisted(value: Any) -> tuple[Any, Raw]:
    """The same in another order, or doubled."""
    match value:
        case list() | str():
            return value[::-1], {}
        case dict():
            return dict(reversed(value.items())), {}
    return value * 2 if isinstance(value, (int, float)) else [value, value], {}


def _as_text(value: Any) -> tuple[Any, Raw]:
    return (str(value) if isinstance(value, (int, float)) else [value]), {}


MUTATIONS: dict[str, Callable[[Any], tuple[Any, Raw]]] = {
    "null": _plain(None),
    "true": _plain(True),
    "a string": _plain("x"),
    "a list": _plain([1]),
    "an object": _plain({"a": 1}),
    "0": _plain(0),
    "negative": _plain(-1),
    "2^31": _plain(2**31),
    "a million": _plain(10**6),
    "10^300": _plain(10**300),
    "4,400 digits": _holed("9" * 4400),
    "half": _plain(0.5),
    "1e308": _holed("1e308"),
    "1e999": _holed("1e999"),
    "Infinity": _holed("Infinity"),
    "NaN": _holed("NaN"),
    "empty string": _plain(""),
    "empty list": _plain([]),
    "empty object": _plain({}),
    "a lone surrogate": _holed('"\\ud800"'),
    "right to left": _plain("\u202egp.exe"),
    "escape codes": _plain("\x1b[2J\x1b]0;owned\x07\x9b31m"),
    "markup": _plain("[/x][bold red]a[link=file:///etc/passwd]b"),
    "outside": _plain("../outside/secret"),
    "NUL": _plain("a\x00b"),
    "a megabyte": _plain("x" * 2**20),
    "nested 100,000 deep": _holed("[" * 100_000 + "]" * 100_000),
    "text": _as_text,
    "changed": _changed,
    "twisted": _twisted,
    "deleted": lambda value: (None, {"delete": ""}),
    "twice": lambda value: (HOLE, {"twice": ""}),
    "twice the same": lambda value: (HOLE, {"twice": "same"}),
}


def attack(bases: Bases) -> Attack:
    """Systematic: every kind of field (list indices alike) of both sides, by every mutation."""
    kinds = {(base, side): _kinds(manifest(base / side)) for base in (bases.small, bases.less) for side in SIDES}
    fields = [
        (base, side, kind)
        for base, side in kinds
        for kind in kinds[base, side]
        if base == bases.small or KEPT.fullmatch(kind)
    ]

    def prepare(number: int, rng: Random, folder: Path) -> Attempt:
        base, side, kind = fields[number // len(MUTATIONS) % len(fields)]
        how = list(MUTATIONS)[number % len(MUTATIONS)]
        work = lay_out(base, folder)
        before = manifest(work / side)
        path = rng.choice(kinds[base, side][kind])
        text = spoilt(before, path, how)
        resealed = kind != "digest" and rng.random() < 0.8
        rewrite(work / side / "manifest.json", sealed(text) if resealed else text)
        allowed = _allowed(side, kind, how, before, text)
        left_out = () if base == bases.small else LESS
        said = f"{side}: {'.'.join(map(str, path))} {how}" + (" (sketches)" if left_out else "")
        return Attempt(said, allowed, ("diff", "run", "--golden", "golden", *left_out))

    return Attack("fields", len(fields) * len(MUTATIONS), prepare, 500)


def _kinds(whole: Any) -> dict[str, list[Path_]]:
    """Every field by its path with `#` for a list's index, and where it occurs."""
    found: dict[str, list[Path_]] = {}

    def walk(value: Any, path: Path_) -> None:
        if path:
            found.setdefault(".".join("#" if isinstance(step, int) else step for step in path), []).append(path)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, part in items:
            walk(part, (*path, step))

    walk(whole, ())
    return found


def spoilt(whole: dict, path: Path_, how: str) -> str:
    """The manifest's text with one field mutated."""
    whole = deepcopy(whole)
    parent: Any = whole
    for step in path[:-1]:
        parent = parent[step]
    last = path[-1]
    old = parent[last]
    parent[last], raw = MUTATIONS[how](old)
    if "delete" in raw:
        del parent[last]
        return json.dumps(whole)
    if "twice" in raw:
        other = json.dumps(old if raw["twice"] == "same" else _changed(old)[0])
        raw = {
            f'"{HOLE}"': f"{other}, {json.dumps(last)}: {json.dumps(old)}"
            if isinstance(last, str)
            else f"{other}, {json.dumps(old)}"
        }
    text = json.dumps(whole)
    for place, instead in raw.items():
        text = text.replace(place, instead)
    return text


def _allowed(side: str, kind: str, how: str, before: dict, text: str) -> frozenset[int]:
    """By what the text says to a strict reader of JSON: nothing (unreadable), the same as before, or something else."""
    if how == "twice the same" and not kind.endswith("#"):
        return SAME_OR_UNREADABLE
    try:
        after = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return UNREADABLE
    if CONSTANTS.fullmatch(kind):
        return _of_constants(side, before["model"], after["model"], kind.split(".")[1])
    if kind == "producer.modules" and not after["producer"].get("modules"):
        return UNREADABLE if side == "golden" else SAME_OR_UNREADABLE  # a golden of no source judges nobody
    if _same(before, after):
        return SAME_OR_UNREADABLE
    if kind in ("stages", "tensors", "case.kept") and how == "twisted":
        return SAME_OR_UNREADABLE  # lists without an order
    if LABELS.fullmatch(kind):
        return SAME_OR_UNREADABLE
    if VOCABULARY.fullmatch(kind):
        return SAME_OR_UNREADABLE | {1}
    if side == "run" and (OWN.fullmatch(kind) or (DRAFTS.fullmatch(kind) and _cut(before, after))):
        return SAME_OR_UNREADABLE | {1}
    return NOT_ACCEPTED


def _cut(before: dict, after: dict) -> bool:
    """Whether only the last round says another count, one that the budget may have cut behind an accepted draft.

    bfloat16 may draft otherwise there, so that nothing in a run contradicts it.
    """
    for was, now in zip(before["case"]["prompts"], after["case"]["prompts"], strict=True):
        one, other = was["generation"], now["generation"]
        if one["accepted_drafts"][:-1] != other["accepted_drafts"][:-1]:
            return False
        last = other["accepted_drafts"][-1]
        if last != one["accepted_drafts"][-1] and (isinstance(last, bool) or last != other["acceptance_length"][-1]):
            return False
    return True


def _of_constants(side: str, before: dict, after: dict, part: str) -> frozenset[int]:
    """What the reference reads of config.json the device reads too, to the kind of each value.

    A golden may say nothing of a side; a run that says something of the other one only is inconclusive.
    """
    was, now = (model[part].get("constants") for model in (before, after))
    if not now:
        return SAME_OR_UNREADABLE if side == "golden" else UNREADABLE | {3}
    true, seen = (now, was) if side == "golden" else (was, now)
    alike = isinstance(now, dict) and all(name in seen and _exactly(value, seen[name]) for name, value in true.items())
    return SAME_OR_UNREADABLE if alike else NOT_ACCEPTED


def _exactly(a: Any, b: Any) -> bool:
    return json.dumps(a) == json.dumps(b)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _same(a: Any, b: Any) -> bool:
    """The same to a reader that takes 4.0 and "4" for 4, and an absent field for its default."""
    if isinstance(a, dict) and isinstance(b, dict):
        defaults = {
            "rank": 0,
            "sharding": "replicated",
            "corroborations": [],
            "sources": {},
            "notes": {},
            "parts": [],
            "roundings": 1,
            "shown": [],
            "when": "",
            "rows": "all",
            "parted": None,
            "family": "p-eagle",
            "draft_vocabulary": None,
            "schedule": [],
            "partial_kv": "",
            "kv_cache": "",
            "kv_scales": {},
            "settled": [],
            "lanes": 1,
            "layers": None,
            "sampling": "",
            "seed": 0,
            "kept": [],
            "positions": "",
            "uniforms": "",
        }
        defaults |= {"tokenizer_digest": "", "chat_template_digest": "", "schema_version": 1}
        return all(_same(a.get(key, defaults.get(key, HOLE)), b.get(key, defaults.get(key, HOLE))) for key in {*a, *b})
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float, str)):
        try:
            return math.isclose(a, float(b), rel_tol=0)
        except (ValueError, OverflowError):
            return False
    return a == b
