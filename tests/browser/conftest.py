"""Chromium, driven with the network off; axe-core and the Nu HTML checker from build/browser (`make browser`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driven import Browser

BUILD = Path(__file__).parents[2] / "build" / "browser" / "node_modules"
REQUIRED = "PARITY_BROWSER_REQUIRED"


def absent(what: str) -> None:
    """Skip with the reason; a failure where the browser is required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what} is missing and {REQUIRED} is set: make browser", pytrace=False)
    pytest.skip(f"{what} is missing: make browser")


def program(name: str) -> str:
    """The path of an installed program."""
    return shutil.which(name) or absent(name)


def built(path: str) -> Path:
    """A file of the checkers."""
    found = BUILD / path
    return found if found.is_file() else absent(path)


@pytest.fixture(scope="package")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """One browser for the tests of this folder, with an empty profile: left open it draws its last page without end."""
    driven = Browser(program("chromium"), program("chromedriver"), tmp_path_factory.mktemp("profile"))
    yield driven
    driven.quit()


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source."""
    return built("axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def nu():
    """Lines that the Nu HTML checker has to say of each file."""
    jar, java = built("vnu-jar/build/dist/vnu.jar"), program("java")

    def check(*pages: Path) -> list[list[str]]:
        brief = ("-Xss2m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # it runs for seconds: little to compile for
        command = [java, *brief, "-jar", str(jar), "--format", "gnu", *map(str, pages)]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()
        found = [[line for line in lines if page.as_uri().removeprefix("file://") in line] for page in pages]
        assert sum(map(len, found)) == len(lines), lines
        return found

    return check
