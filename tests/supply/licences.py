"""docs/licences.md: the licence of every package that requirements.lock installs here, as the package itself states it.

`python -m tests.supply.licences > docs/licences.md` prints it anew.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from packaging.markers import Marker

LOCK = Path(__file__).parents[2] / "requirements.lock"
PINNED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+?)(?: ; (?P<marker>.*?))? ?\\?$")
TORCH = "torch"
LONG = 60
"""Characters above which a License field is the licence's text and no name."""

HEAD = """# Licences

This project is under Apache-2.0: [LICENSE](../LICENSE).

What `make test` installs beside this project, with the licence that each package's metadata states. Printed by
`python -m tests.supply.licences`; versions are those of `requirements.lock`, whose packages for other systems are left
out.

| package | version | licence |
|---|---|---|
"""


def locked() -> dict[str, str]:
    """Name to version of what the lock installs on this system."""
    found = (PINNED.match(line) for line in LOCK.read_text().splitlines() if line[:1].strip() not in ("", "#"))
    return {
        one["name"]: one["version"] for one in found if one and (not one["marker"] or Marker(one["marker"]).evaluate())
    }


def installed() -> dict[str, PackageMetadata]:
    """The metadata of each of them that is there, torch's with them."""
    found = {}
    for name in sorted([*locked(), TORCH]):
        try:
            found[name] = metadata(name)
        except PackageNotFoundError:
            continue
    return found


def licence(of: PackageMetadata) -> str:
    """The expression; else the field where it is a name; else the classifiers."""
    field = (of.get("License") or "").strip()
    classed = [
        one.split(" :: ")[-1]
        for one in of.get_all("Classifier") or ()
        if one.startswith("License ::") and one != "License :: OSI Approved"
    ]
    said = (
        of.get("License-Expression")
        or (field if 0 < len(field) < LONG and "\n" not in field else "")
        or " or ".join(classed)
    )
    return " ".join(said.split()).replace("|", "\\|") or "not stated"


def page() -> str:
    """The whole page."""
    rows = (f"| {name} | {one['Version'].partition('+')[0]} | {licence(one)} |\n" for name, one in installed().items())
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
