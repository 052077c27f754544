"""Commits are told as git tells them, with a page only where the host is known to have one."""

from __future__ import annotations

import subprocess

import pytest
from pydantic import ValidationError

from parity.nightly import commits
from parity.nightly.folder import REPORT, NightFolder
from parity.nightly.records import Commit, Night


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Three commits, the last with a subject that is markup."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def git(*arguments):
        return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("config", "user.name", "Ada L")
    git("config", "user.email", "ada@example.org")
    git("remote", "add", "origin", "https://ada:secret@host.example.org/group/name.git")
    names = []
    for subject in ("first", "second", f"taps: <b>one</b> layer\x1f up\x1e{'f' * 40}\x1fMallory\x1fforged"):
        git("commit", "-q", "--allow-empty", "-m", subject)
        names.append(git("rev-parse", "HEAD"))
    return names


def test_the_commits_between_two_nights_have_subject_author_and_page(repository):
    found = commits.between(repository[0][:10], repository[2][:10])
    assert [(one.name, one.author) for one in found] == [(repository[2], "Ada L"), (repository[1], "Ada L")]
    assert found[1].subject == "second" and found[0].subject.startswith("taps: <b>one</b> layer")
    assert found[1].address == f"https://host.example.org/group/name/commit/{repository[1]}"
    assert commits.commit(repository[0]).subject == "first" and commits.head() == (repository[2], False)


def test_what_git_does_not_know_is_not_told(repository, tmp_path, monkeypatch):
    for pair in (("f" * 40, repository[2]), ("--all", repository[2]), ("", repository[2]), ("unknown", repository[0])):
        assert commits.between(*pair) == ()
    assert commits.commit("HEAD") is None and commits.commit("0" * 40) is None
    (tmp_path / "bare").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path / "bare")
    assert commits.head() == ("", False) and commits.commit(repository[0]) is None


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@github.com:a/b.git", "https://github.com/a/b/commit"),
        ("ssh://git@host.org:2222/a/b/c.git", "https://host.org/a/b/c/commit"),
        ("https://bitbucket.org/a/b", "https://bitbucket.org/a/b/commits"),
        ("/srv/git/b.git", ""),
        ("file:///srv/git/b.git", ""),
        ("javascript:alert(1)//a/b", ""),
        ('https://host.org/a/b"><script>', ""),
        ("https://[broken/a/b", ""),
    ],
)
def test_a_remote_becomes_a_web_page_without_whoever_is_named_in_it(remote, page):
    assert commits.commits_page(remote) == page


def test_an_address_that_is_no_page_is_no_record():
    for address in ("javascript:alert(1)", "http://host.org/a", "https://host.org/a b", 'https://host.org/"'):
        with pytest.raises(ValidationError):
            Commit(name="1", subject="", author="", address=address)


def test_the_nights_beside_are_of_the_same_matrix_and_have_a_page(tmp_path):
    def night(name, matrix="m", page=True):
        plan = dict(
            name=name, started="", commit="", dirty=False, matrix=matrix, matrix_digest="", engine="", machine=""
        )
        folder = NightFolder.start(tmp_path / f"folder-{name}", Night(**plan, cells=()))
        if page:
            (folder.path / REPORT).write_text("")
        return folder

    made = [night("1"), night("2"), night("3", matrix="other"), night("4", page=False), night("5"), night("6")]
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / REPORT).write_text("")
    (tmp_path / "torn" / "night.json").write_text("{")
    before, behind = made[1].beside()
    assert (before.path, behind.path) == (made[0].path, made[4].path)
    assert made[0].beside()[0] is None and made[5].beside()[1] is None
