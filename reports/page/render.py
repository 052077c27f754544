"""The night as one HTML file: templates filled in, everything escaped, styles and script named by their digest."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from parity.errors import UsageError
from parity.files import put
from parity.reports.page import figures
from parity.reports.page.night import NightView

TEMPLATES = Path(__file__).parent / "templates"


def render(view: NightView) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"marks": figures.MARKS, "count": figures.count}
    forms = (figures.figure, figures.number, figures.percent, figures.signed, figures.seconds)
    environment.filters |= {form.__name__: form for form in forms}
    style, script = (_inline(name) for name in ("page.css", "page.js"))
    sources = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    return environment.get_template("page.html").render(
        view=view, style=Markup(style), script=Markup(script), policy=policy
    )


def write(view: NightView, path: Path) -> None:
    """The page as a file, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from None
    put(path, render(view).encode())


def _inline(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    """A source of a content security policy: the element whose text has this digest, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
