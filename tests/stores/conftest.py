"""One S3 server a session, a way to it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

REASON = "needs moto[s3], flask, flask-cors and s3fs: pip install -c constraints.txt -e '.[test]'"

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
ELSEWHERE = (
    *PROXIES,
    *map(str.lower, PROXIES),
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
)
"""What a machine may have set that leads to another store."""


@pytest.fixture(scope="session")
def server():
    """The server, with a bucket."""
    for name in ("moto", "flask", "flask_cors", "s3fs"):
        pytest.importorskip(name, reason=REASON)
    from tests.stores.server import Server

    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def shared_way(server):
    """A way to the server."""
    from tests.stores.server import Way

    return Way(server.port)


@pytest.fixture
def way(shared_way, monkeypatch, tmp_path) -> Iterator:
    """A good way to an S3 server, which this process and those it starts take; `$PARITY_HOME` is fresh."""
    import s3fs

    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", shared_way.url)
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    shared_way.clear()
    s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
    yield shared_way
    shared_way.clear()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(way, tmp_path) -> str:
    """The URL of a folder of this test's own."""
    return f"s3://bucket/{tmp_path.name}"
