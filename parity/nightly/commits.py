"""Commits of the working directory's repository, as git tells them: subject, author, and a page to read them on."""

from __future__ import annotations

import re
import subprocess
from urllib.parse import urlsplit

from parity.nightly.records import Commit

MOST = 20
"""Commits between two nights that are listed."""
NAME = re.compile(r"[0-9a-f]{7,64}")
LAST_LINE = re.compile(r"[0-9a-f]{7,64}\x1f[^\x1f\n]*\x1f[^\n]*")


def head() -> tuple[str, bool]:
    """The commit, and whether tracked files differ from it; ('', False) outside a repository."""
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "", False


def commit(name: str) -> Commit | None:
    """One commit; None where this is no repository, or not its."""
    return next(iter(_log("-1", name)), None) if NAME.fullmatch(name) else None


def between(before: str, behind: str) -> tuple[Commit, ...]:
    """The commits behind the first up to the second, newest first; none where git does not know both."""
    if not (NAME.fullmatch(before) and NAME.fullmatch(behind)):
        return ()
    return _log(f"-{MOST}", f"{before}..{behind}")


def _log(*arguments: str) -> tuple[Commit, ...]:
    try:
        lines = _git("log", "--format=%H%x1f%an%x1f%s", *arguments, "--").split("\n")
    except (OSError, subprocess.SubprocessError):
        return ()
    page = _page()
    told = (line.split("\x1f", 2) for line in lines if LAST_LINE.fullmatch(line))
    return tuple(
        Commit(name=name, subject=subject, author=author, address=f"{page}/{name}" if page else "")
        for name, author, subject in told
    )


def _page() -> str:
    """Where the commits of `origin` are read, '' where it has no such page."""
    try:
        return commits_page(_git("config", "--get", "remote.origin.url"))
    except (OSError, subprocess.SubprocessError):
        return ""


def commits_page(remote: str) -> str:
    """The web address below which commits lie, of a remote's address; '' for one that is no host's.

    `git@host:group/name.git`, `ssh://git@host/…` and `https://user:token@host/…` become `https://host/…/commit`: what
    stands before the host is never told.
    """
    scp = re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+):(?!/)([\w./~-]+)", remote)
    if scp:
        host, path = scp.groups()
    else:
        try:
            parts = urlsplit(remote)
        except ValueError:
            return ""
        if parts.scheme not in ("https", "http", "ssh", "git"):
            return ""
        host, path = parts.hostname or "", parts.path
    path = path.strip("/").removesuffix(".git")
    if "." not in host or not re.fullmatch(r"[\w.-]+", host) or not re.fullmatch(r"[\w.~-]+(/[\w.~-]+)+", path):
        return ""
    return f"https://{host}/{path}/{'commits' if 'bitbucket' in host else 'commit'}"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, timeout=30, errors="replace"
    ).stdout.strip()
