"""A real S3 server in a process of its own on loopback (moto's), and a way to it that is slow, fails or breaks off."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

HOST = "127.0.0.1"


class Server:
    """moto's S3 server; `url` is where it answers."""

    def __init__(self):
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = next(line for line in self._process.stdout if "Running on" in line)
        self.port = int(line.rstrip().rsplit(":", 1)[1])
        self._log = Thread(target=self._process.stdout.read, daemon=True)  # else its log fills the pipe
        self._log.start()
        self.url = f"http://{HOST}:{self.port}"

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.join()
        self._process.stdout.close()


class Way(ThreadingHTTPServer):
    """Hands requests on to a server.

    Attributes:
        fails: whether a request (method, path) is answered 503.
        breaks: whether its answer breaks off in the middle.
        waits: seconds before a request is handed on.
        seen: methods and paths, in order.
    """

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__((HOST, 0), _Handler)
        self.behind, self.url = port, f"http://{HOST}:{self.server_address[1]}"
        self.clear()
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def clear(self) -> None:
        """A good way."""
        self.fails = self.breaks = lambda method, path: False
        self.waits = lambda method, path: 0.0
        self.seen: list[tuple[str, str]] = []

    def handle_error(self, request, client_address) -> None:
        """Clients that are killed break off: no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Way

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = (self.command, self.path)
        self.server.seen.append(asked)
        time.sleep(self.server.waits(*asked))
        if self.server.fails(*asked):
            self._answer(503, {}, b"")
            return
        behind = http.client.HTTPConnection(HOST, self.server.behind)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        self._answer(answer.status, dict(answer.getheaders()), answer.read())
        behind.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        kept = {
            name: value for name, value in headers.items() if name.lower() not in ("connection", "transfer-encoding")
        }
        for name, value in {**kept, "Connection": "close"}.items():
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name in kept}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.server.breaks(self.command, self.path) else body)
        self.close_connection = True

    def log_message(self, *arguments) -> None:
        """Nothing."""
