"""Keys and values kept in a narrower form than they are computed in."""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.catalogue import Hypothesis, Mutations

stored = Mutations("stored")

FORMS = ("float8 e4m3", "float8 e5m2", "int8 per row", "float16", "bfloat16")
FIX = "the dtype of the cache, and its scales"


def _storage():
    for side in ("target", "drafter"):
        end = "" if side == "target" else "-drafter"
        for which in ("kv", "k", "v"):
            name = {"kv": "", "k": "-k", "v": "-v"}[which]
            for id_, apply, says, stages in (
                ("cache-narrow", stored.cached, "cached", (f"kv.{side}.*",)),
                ("cache-narrow-read", stored.cached_and_read, "cached and read back", (f"{side}.layers.*.attn_out",)),
            ):
                yield Hypothesis(
                    f"{id_}{name}{end}",
                    f"{side}: {' and '.join(which)} {says} in {{value}}",
                    stages,
                    partial(apply, side=side, which=which),
                    values=FORMS,
                    fix=FIX,
                )


HYPOTHESES = tuple(_storage())
