"""Servers that tests talk to: made-up ones in this process, one in front of another, and vLLM's own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

Reply = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Hands every request to the server's `reply`, and writes no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.reply(self, b"")

    def do_POST(self) -> None:
        self.server.reply(self, self.rfile.read(int(self.headers["Content-Length"])))

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        """An answer, whole."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status)


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what some tests are about."""


@contextmanager
def serving(reply: Reply) -> Iterator[str]:
    """The URL of a server that answers so."""
    server = QuietServer(("127.0.0.1", 0), Handler)
    server.reply = reply
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forwarding(url: str, change: Callable[[dict], dict]) -> Reply:
    """Hands requests on to another server, their bodies changed."""

    def reply(handler: Handler, body: bytes) -> None:
        data = json.dumps(change(json.loads(body))).encode() if body else None
        request = urllib.request.Request(url + handler.path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                handler.send(answer.read())
        except urllib.error.HTTPError as error:
            handler.send(error.read(), error.code)

    return reply


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def vllm(folder: Path, target: Path, drafter: Path | None, k: int = 4, dtype: str = "bfloat16") -> Iterator[str]:
    """vLLM's own server on a CPU, with a drafter or without; its log is in the folder.

    Started as a module: the command `vllm` asks for a package of this name, and the build for CPUs has another one.
    """
    port, log = free_port(), folder / f"vllm-{time.time_ns()}.log"
    command = [str(Path(os.environ["PARITY_VLLM_PYTHON"]).absolute()), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(target), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", dtype, "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "2"]
    command += ["--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager", "--seed", "0"]
    if drafter:
        how = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": k, "parallel_drafting": True}
        command += ["--speculative-config", json.dumps(how)]
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **quiet}, start_new_session=True, cwd=folder
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: int = 300) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM's server does not come up: {log.read_text()[-2000:]}")
