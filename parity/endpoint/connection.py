"""Asking an HTTP server: one request, one answer, within limits; nothing is followed, unpacked or believed."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event, Timer
from typing import Any
from urllib.parse import urlsplit

from parity import files, limits
from parity.errors import Inconclusive, UsageError
from parity.plain import printable

NOT_SERVED = (401, 403, 404, 405, 501)
ASKED = {"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "parity"}


class NotServed(Inconclusive):
    """The server has nothing at that path, or nothing for us."""


class Connection:
    """A server by its URL; every request has a connection of its own, and a time in which it is answered whole.

    Args:
        url: `http://host:port`, with a path in front of `/v1` where the server has one; `/v1` at its end is dropped.
        timeout: seconds for one answer, from the request to its last byte.
        key: sent as a bearer token where there is one.

    Raises:
        UsageError: that is no such URL.
    """

    def __init__(self, url: str, timeout: float = 120.0, key: str = ""):
        self.url, self.timeout = url.rstrip("/").removesuffix("/v1"), timeout
        try:
            parts = urlsplit(self.url)
            self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{url!r} is no URL of a server: {error}") from None
        wrong = parts.scheme not in ("http", "https") or not self._host or not url.isascii() or not url.isprintable()
        if wrong or " " in url or parts.username is not None or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is no URL of a server: http://HOST:PORT is needed, without user or query")
        if not (key.isascii() and key.isprintable()):
            raise UsageError("the key holds characters that no header can carry")
        self._path, self._headers = parts.path, ASKED | ({"Authorization": f"Bearer {key}"} if key else {})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that answers a JSON body; raises as `get`."""
        return self._parsed(path, self._exchange("POST", path, json.dumps(body).encode()))

    def get_json(self, path: str) -> Any:
        """The JSON there; raises as `get`."""
        return self._parsed(path, self.get(path))

    def get(self, path: str) -> bytes:
        """What is there.

        Raises:
            UsageError: nobody listens at the URL.
            Inconclusive: no whole answer came in time, or one that is no success.
        """
        return self._exchange("GET", path, None)

    def _parsed(self, path: str, data: bytes) -> Any:
        try:
            return files.parsed(data, f"the answer of {self.url}{path}")
        except UsageError as error:
            raise Inconclusive(printable(str(error))[:300]) from None

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        named, late = f"{self.url}{path}", Event()
        connection = self._connected()
        timer = Timer(self.timeout, _hang_up, (connection.sock, late))
        timer.daemon = True
        timer.start()
        try:
            connection.request(method, self._path + path, body, self._headers)
            with connection.getresponse() as response:
                return self._success(named, response, _whole(response, late))
        except (HTTPException, OSError, ValueError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise Inconclusive(f"{named} did not answer within {self.timeout:g} s") from None
            said = printable(str(error))[:200] or type(error).__name__
            raise Inconclusive(f"{named} broke its answer off ({said})") from None
        finally:
            timer.cancel()
            connection.close()

    def _connected(self) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(str(self._host), self._port, timeout=self.timeout)
        try:
            connection.connect()
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error or type(error).__name__
            raise UsageError(f"{self.url} cannot be reached ({said}): is the server up, and is this its URL?") from None
        return connection

    def _success(self, named: str, response: HTTPResponse, data: bytes) -> bytes:
        """The body, where it is one that says something.

        Raises:
            Inconclusive: it is a redirect, an error, packed, or too long.
        """
        if 300 <= response.status < 400:
            where = printable(response.headers.get("Location", ""))[:200]
            raise Inconclusive(f"{named} redirects to {where!r}, which is not followed: name the server itself")
        if response.status != 200:
            said = " ".join(printable(data[:2000].decode(errors="replace")).split())[:200]
            kind = NotServed if response.status in NOT_SERVED else Inconclusive
            raise kind(f"{named} answers {response.status}: {said}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise Inconclusive(f"{named} answers in an encoding that was not asked for")
        if len(data) > limits.RECORD_BYTES:
            raise Inconclusive(f"{named} answers with more than {limits.RECORD_BYTES // limits.MIB} MiB")
        return data


def _whole(response: HTTPResponse, late: Event) -> bytes:
    """The body, up to one byte more than is allowed.

    Raises:
        HTTPException: it ends early.
    """
    data = response.read(limits.RECORD_BYTES + 1)
    if late.is_set() or (response.length and len(data) <= limits.RECORD_BYTES):
        raise HTTPException("it ended early")
    return data


def _hang_up(sock: socket.socket, late: Event) -> None:
    """End a request that takes too long: a server that sends a byte now and then never times out on its own."""
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
