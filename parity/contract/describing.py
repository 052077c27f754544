"""What a device says of itself, before it computes anything."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

from parity.contract.lines import Ledger
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.kv_cache import of_drafter
from parity.pair_sizes import PairSizes
from parity.seam import Description, Shown
from parity.shown import View, with_returned
from parity.stages import declared, matches

NUMBERS = ("num_layers", "num_drafter_layers", "k", "max_positions")
GROWING = ("notes", "modules", "versions")
"""What a device may add to while it compiles and imports."""
TUPLES = ("eos", "modules", "shown", "forcible")


def check_description(
    says: Any, again: Any, ledger: Ledger, pair: PairSizes, precision: str, k: int, rows: int, loop: bool
) -> View | None:
    """Hold a description to the contract; what it shows, None where the walk cannot go on.

    Args:
        again: what it says when asked once more.
        rows: that the caches have to hold.
    """
    if not ledger.expect(
        "describe: fields", isinstance(says, Description), f"describe returned a {type(says).__name__}"
    ):
        return None
    for said in _mistyped(says):
        ledger.expect("describe: fields", False, said)
    kept = [one.name for one in fields(says) if one.name not in GROWING]
    differs = [name for name in kept if getattr(says, name) != getattr(again, name, None)]
    ledger.expect("describe: fields", not differs, f"{', '.join(differs)} differs when it is asked again")
    if ledger.breaches:
        return None
    for what, asked, described in (("precision", precision, says.precision), ("K", k, says.k)):
        ledger.expect("describe: case", asked == described, f"{what} is {described!r}; it was called with {asked!r}")
    for what, true, described in (
        ("num_layers", pair.layers, says.num_layers),
        ("num_drafter_layers", pair.drafter_layers, says.num_drafter_layers),
    ):
        ledger.expect("describe: layers", true == described, f"{what} is {described}; config.json says {true}")
    too_few = f"max_positions is {says.max_positions}; this walk needs {rows}"
    ledger.expect("describe: layers", says.max_positions >= rows, too_few)
    _eos(says, ledger, pair)
    _modules(says, ledger)
    _constants(says.constants, ledger)
    return _view(says, ledger, pair, loop)


def _mistyped(says: Description) -> list[str]:
    """Fields that are not of their types."""
    wrong = [f"{name} is a {type(value).__name__}, not a text" for name in ("name", "precision")
             if not isinstance(value := getattr(says, name), str)]  # fmt: skip
    for name in NUMBERS:
        value = getattr(says, name)
        if not _whole(value):
            wrong.append(f"{name} is a {type(value).__name__}, not an int")
    for name in TUPLES:
        value = getattr(says, name)
        if not isinstance(value, tuple | list):
            wrong.append(f"{name} is a {type(value).__name__}, not a tuple" + (": (x,) is one of one" if value else ""))
    if says.family != "" and says.family not in FAMILIES:
        wrong.append(f"family is {says.family!r}, not one of {', '.join(FAMILIES)}, nor empty")
    for name in ("versions", "notes", "constants"):
        if not isinstance(value := getattr(says, name), dict):
            wrong.append(f"{name} is a {type(value).__name__}, not a dict")
    if wrong:
        return wrong
    wrong += [f"eos holds {one!r}, not an int" for one in says.eos if not _whole(one)]
    wrong += [f"modules holds {one!r}, not the name of a module" for one in says.modules if not isinstance(one, str)]
    wrong += [f"shown holds {one!r}, not a parity.seam.Shown" for one in says.shown if not isinstance(one, Shown)]
    wrong += [f"forcible holds {one!r}, not a glob" for one in says.forcible if not isinstance(one, str)]
    for name in ("versions", "notes"):
        wrong += [f"{name} holds {key!r}: {value!r}, not texts" for key, value in getattr(says, name).items()
                  if not (isinstance(key, str) and isinstance(value, str))]  # fmt: skip
    return wrong


def _whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _eos(says: Description, ledger: Ledger, pair: PairSizes) -> None:
    outside = [one for one in says.eos if not 0 <= one < pair.vocab]
    ledger.expect("describe: eos", not outside, f"eos holds {outside[:1]}; the vocabulary has {pair.vocab} ids")
    missing = [one for one in pair.eos if one not in says.eos]
    ledger.expect(
        "describe: eos", not missing, f"eos {list(says.eos)} lacks {missing}, which the target's config names"
    )


def _modules(says: Description, ledger: Ledger) -> None:
    none = "modules names none: nobody can tell whether your maths is the reference's"
    ledger.expect("describe: modules", bool(says.modules), none)
    unknown = [name for name in says.modules if name not in sys.modules]
    ledger.expect("describe: modules", not unknown, f"modules names {', '.join(unknown)}, which nobody has imported")


def _constants(constants: dict[str, Any], ledger: Ledger) -> None:
    line = "describe: constants"
    if not constants:
        return ledger.skip(line, "it says none: config constants are not judged")
    sides = sorted(constants)
    ledger.expect(line, sides == ["drafter", "target"], f"constants has {sides}; `target` and `drafter` are due")
    for side, said in constants.items():
        if not ledger.expect(line, isinstance(said, dict), f"constants[{side!r}] is a {type(said).__name__}"):
            continue
        for key, value in said.items():
            plain = all(
                isinstance(one, int | float | str) for one in (value if isinstance(value, list | tuple) else [value])
            )
            named = isinstance(key, str)
            ledger.expect(line, plain and named, f"{side}: {key!r} is {value!r}: a number, flag, word or list is due")
        eos = said.get("eos_token_id")
        if isinstance(eos, list | tuple):
            ledger.expect(line, list(eos) == sorted(eos), f"{side}: eos_token_id {list(eos)} is not ascending")
    return None


def _view(says: Description, ledger: Ledger, pair: PairSizes, loop: bool) -> View | None:
    kept = bool(says.partial_kv), of_drafter(says.kv_cache)
    names = declared(pair.layers, pair.drafter_layers, says.family, *kept)
    unknown = [glob for glob in says.forcible if not any(matches(glob, name) for name in names)]
    ledger.expect("describe: forcible", not unknown, f"{', '.join(map(repr, unknown))} matches no stage of this pair")
    try:
        view = View(with_returned(says.shown, names, loop), names)
    except UsageError as error:
        ledger.expect("describe: shown", False, str(error))
        return None
    ledger.expect("describe: shown", True, "")
    return view
