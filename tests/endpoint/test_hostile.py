"""Servers that answer anything but what was asked: one sentence each, in time, and never a pass."""

from __future__ import annotations

import base64
import json
import time

import pytest

from parity.endpoint import connection, dialects
from parity.endpoint.answers import expert_ids
from parity.endpoint.connection import Connection
from parity.endpoint.server import Server
from parity.errors import Inconclusive, UsageError
from tests.endpoint.serving import serving

IDS = (5, 6, 7)
MODELS = {"data": [{"id": "tiny", "owned_by": "vllm"}]}
CHOICE = {"token_ids": [8, 9], "finish_reason": "length", "prompt_token_ids": [5, 6, 7]}


def vllm(**changes):
    return {"choices": [CHOICE | changes], "usage": {"prompt_tokens": 3}}


def replying(answer):
    """A server that lists a model, and answers a completion so: bytes, JSON, or a function of the handler."""

    def reply(handler, body):
        if handler.path == "/v1/models":
            handler.send_json(MODELS)
        elif callable(answer):
            answer(handler)
        else:
            handler.send(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    return reply


def refused(answer, timeout=20.0, budget=2, scored=True):
    with serving(replying(answer)) as url, pytest.raises(Inconclusive) as raised:
        Server(Connection(url, timeout)).complete(IDS, budget, scored)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    return str(raised.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html><body>It works!</body></html>", "is no JSON"),
        (b"", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"choices": 1, "choices": 2}', "is there twice"),
        ([], "returns no token ids"),
        ({"choices": []}, "returns no token ids"),
        ({"choices": [None]}, "returns no token ids"),
        (vllm(token_ids=None), "returns no token ids"),
        (vllm(token_ids=["a", "b"]), "are no token ids"),
        (vllm(token_ids=[True, 1]), "are no token ids"),
        (vllm(token_ids=[-1, 2**40]), "are no token ids"),
        (vllm(token_ids=[1, 2, 3]), "3 tokens where 2 were asked for"),
        (vllm(token_ids=[1]), "1 tokens of 2, ended by 'length'"),
        (vllm(token_ids=[1], finish_reason="abort\x1b[2J"), "ended by"),
        (vllm(prompt_token_ids=[1, 5, 6, 7]), "others from position 0 on"),
        (vllm(prompt_token_ids=[5, 6]), "others from position 2 on"),
        ({**vllm(prompt_token_ids=None), "usage": {"prompt_tokens": 4}}, "read 4 prompt tokens where 3 ids"),
        ({**vllm(), "usage": {"completion_tokens": 999}}, "says that it generated 999 tokens and returns 2"),
        ({**vllm(), "usage": {"completion_tokens": 1}}, "says that it generated 1 tokens and returns 2"),
        (vllm(prompt_logprobs=[None, {"6": {"logprob": -1.0}}]), "returns 2 prompt log-probabilities for 3 tokens"),
        (vllm(prompt_logprobs="none"), "returns no list of prompt log-probabilities"),
        (vllm(prompt_logprobs=[None, {"6": {"logprob": -1.0}}, {"8": {"logprob": -1.0}}]), "scores another token"),
        (vllm(prompt_logprobs=[None, {"6": {"logprob": "-1"}}, {"7": {"logprob": -1}}]), "'-1' as a log-probability"),
        (vllm(prompt_logprobs=[None, {"6": {"logprob": float("nan")}}, {"7": {"logprob": -1}}]), "NaN as a log-prob"),
        (
            vllm(prompt_logprobs=[None, {"6": {"logprob": float("-inf")}}, {"7": {"logprob": -1}}]),
            "'-inf' as a log-prob",
        ),
        (vllm(routed_experts="?"), "routed experts that cannot be read"),
        (vllm(routed_experts=[1, 2]), "routed experts that cannot be read"),
    ],
)
def test_garbage_is_refused(answer, said):
    assert said in refused(answer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler: handler.send(b"out of\nmemory", 500), "answers 500: out of memory"),
        (lambda handler: handler.send(b"", 302, Location="http://elsewhere/"), "redirects to 'http://elsewhere/'"),
        (lambda handler: handler.send(b"x", 200, Content_Encoding="gzip"), "an encoding that was not asked for"),
        (lambda handler: handler.wfile.write(b"\0\0 garbage\r\n\r\n"), "broke its answer off"),
        (lambda handler: handler.connection.close(), "broke its answer off"),
    ],
)
def test_http_that_says_nothing_is_refused(answer, said):
    def reply(handler):
        handler.close_connection = True
        answer(handler)

    assert said in refused(reply)


def test_a_body_cut_short_is_refused():
    def reply(handler):
        handler.close_connection = True
        whole = json.dumps(vllm()).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(whole) + 10))
        handler.end_headers()
        handler.wfile.write(whole)

    assert "broke its answer off" in refused(reply)


def test_a_huge_body_is_not_read(monkeypatch):
    monkeypatch.setattr(connection.limits, "RECORD_BYTES", 2**20)

    def reply(handler):
        handler.close_connection = True
        handler.send_response(200)
        handler.end_headers()
        for _ in range(64):
            handler.wfile.write(b" " * 2**20)

    assert "answers with more than 1 MiB" in refused(reply)


def test_a_server_that_hangs_or_drips_ends_in_time():
    def hang(handler):
        time.sleep(1.2)

    def drip(handler):  # no pause is as long as the time it has; only all of them together are
        handler.close_connection = True
        handler.send_response(200)
        handler.end_headers()
        for _ in range(40):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    for answer in (hang, drip):
        assert "did not answer within 0.3 s" in refused(answer, timeout=0.3)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://a:b@c", "http://x:y", "http://[", "http://x y"]
)
def test_what_is_no_url_is_a_wrong_usage(url):
    with pytest.raises(UsageError, match="is no URL of a server"):
        Connection(url)


def test_nobody_listening_is_a_wrong_usage(parity, shallow_golden):
    with serving(replying({})) as url:
        pass
    found = parity("endpoint", url, "--golden", shallow_golden.folder)
    assert found.code == 2 and "cannot be reached" in found.err
    assert parity("endpoint", url, "--golden", shallow_golden.folder, "--key-env", "NO_SUCH_KEY").code == 2


@pytest.mark.parametrize(
    ("models", "error"), [({}, Inconclusive), ({"data": []}, Inconclusive), ({"data": 3}, Inconclusive)]
)
def test_a_server_without_models_is_refused(models, error):
    with serving(lambda handler, body: handler.send_json(models)) as url, pytest.raises(error):
        Server(Connection(url))


def test_several_models_want_a_name():
    two = {"data": [{"id": "a"}, {"id": "b", "owned_by": "sglang"}]}
    with serving(lambda handler, body: handler.send_json(two)) as url:
        with pytest.raises(UsageError, match="serves a, b"):
            Server(Connection(url))
        assert Server(Connection(url), model="b").dialect.name == "sglang"
        assert Server(Connection(url), "trtllm", "a").dialect.name == "trtllm"
        with pytest.raises(UsageError, match="there is vllm, sglang"):
            Server(Connection(url), "tgi", "a")


def test_models_without_a_name_are_none():
    odd = {"data": [{"id": None}, {"id": 7}, {"id": "a"}]}
    with serving(lambda handler, body: handler.send_json(odd)) as url:
        assert Server(Connection(url)).model == "a"
        with pytest.raises(UsageError, match=f"--model b: {url} serves a$"):
            Server(Connection(url), model="b")
    two = {"data": [{"id": "a"}, {"id": "b"}]}
    with (
        serving(lambda handler, body: handler.send_json(two)) as url,
        pytest.raises(UsageError, match=f"{url} serves a, b: name one with --model"),
    ):
        Server(Connection(url))


def test_the_key_and_a_path_in_front_arrive():
    seen = []

    def reply(handler, body):
        seen.append((handler.path, handler.headers["Authorization"]))
        handler.send_json(MODELS)

    with serving(reply) as url:
        Server(Connection(f"{url}/proxy/v1/", key="secret"))
    assert seen == [("/proxy/v1/models", "Bearer secret")]


def read(kind, answer):
    return dialects.DIALECTS[kind].read(answer, IDS)


def npy(header: str, data: bytes = b"") -> str:
    head = header.encode() + b" " * 20 + b"\n"
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data).decode()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1152921504606846976,)}",  # more than any memory
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "__import__('os')",
    ],
)
def test_an_array_of_experts_is_no_more_than_it_holds(header):
    with pytest.raises(Inconclusive, match="routed experts"):
        expert_ids(npy(header, b"\0\0\0\0"))


def test_sglangs_answer_is_read():
    scores = [[None, 5, None], [-0.5, 6, None], [-1.5, 7, None]]
    meta = {"prompt_tokens": 3, "finish_reason": {"type": "length", "length": 2}, "input_token_logprobs": scores}
    meta |= {"spec_verify_ct": 1, "spec_num_correct_drafts": 1, "spec_num_proposed_drafts": 4}
    found = read("sglang", {"output_ids": [8, 9], "meta_info": meta})
    assert (found.tokens, found.finish, found.prompt[1:].tolist()) == ((8, 9), "length", [-0.5, -1.5])
    assert (found.rounds, found.accepted, found.drafted) == (1, 1, 4)
    scores[0][1] = 4
    with pytest.raises(Inconclusive, match="others from position 0"):
        read("sglang", {"output_ids": [8, 9], "meta_info": meta})


def test_llamacpps_answer_is_read():
    timings = {"draft_n": 8, "draft_n_accepted": 1}
    found = read("llamacpp", {"tokens": [8, 9, 10], "stop_type": "limit", "tokens_evaluated": 3, "timings": timings})
    assert (found.tokens, found.finish, found.rounds, found.drafted) == ((8, 9, 10), "length", 1, 8)


def test_more_accepted_than_came_out_is_refused():
    with pytest.raises(Inconclusive, match="7 accepted drafts among 2 tokens"):
        read("llamacpp", {"tokens": [8, 9], "stop_type": "limit", "timings": {"draft_n_accepted": 7}})


def test_tensorrts_answer_is_read():
    answer = {"choices": [{"token_ids": [8, 9], "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    assert read("trtllm", answer).tokens == (8, 9)
