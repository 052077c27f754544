"""Hostile documents: policies, maps, matrices, prompts, configs, templates, tokenizers, nights, logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

from tests.torture.attempts import ANY, NOT_ACCEPTED, UNREADABLE
from tests.torture.bases import rewrite
from tests.torture.hostile import DIFF, NASTY, case, imported, tiny_with

ROW = (
    'name = "mine"\n'
    '[[row]]\nstages = "*.experts"\njudge = "experts"\nreason = "as it should be"\n'
    '[[row]]\nstages = "*tokens"\njudge = "decision"\nreason = "as it should be"\n'
    '[[row]]\nstages = "drafter.[ips]*s"\njudge = "exact"\nreason = "as it should be"\n'
    '[[row]]\nstages = "accept.*"\njudge = "exact"\nreason = "as it should be"\n'
    '[[row]]\nstages = "kv.*.length"\njudge = "exact"\nreason = "as it should be"\n'
)
LAST = '[[row]]\nstages = "*"\njudge = "{judge}"\n{bounds}\nreason = "as it should be"\n'


def _policy(work: Path, text: str):
    (work / "mine.toml").write_text(text)
    return (*DIFF, "--policy", "mine.toml")


@case("a policy without a bound")
def _boundless(work: Path, rng: Random):
    value = rng.choice(("inf", "1e308", "1e30", "nan", "-inf", "9" * 400 + ".0", "1_000_000"))
    judge = rng.choice(("noise", "relative"))
    names = rng.sample(("l2", "worst_row", "largest", "scale", "bias"), rng.randrange(1, 6))
    bounds = "\n".join(f"{name} = {{ ok = {value}, warn = {value} }}" for name in names)
    return _policy(work, ROW + LAST.format(judge=judge, bounds=bounds))


@case("a policy of endless tolerance")
def _tolerance(work: Path, rng: Random):
    value = rng.choice(("inf", "1e308", "nan"))
    other = rng.choice((value, "1e-3"))
    bounds = (
        "beyond_tolerance = { ok = 1.0, warn = 1.0 }\n" + f"tolerances.bfloat16 = {{ rtol = {value}, atol = {other} }}"
    )
    return _policy(work, ROW + LAST.format(judge="relative", bounds=bounds))


@case("a policy with a dead row")
def _dead(work: Path, rng: Random):
    strict = '[[row]]\nstages = "target.layers.0.out"\njudge = "noise"\nl2 = { ok = 0.001, warn = 0.001 }\n'
    strict += 'reason = "as it should be"\n'
    return _policy(work, ROW + LAST.format(judge="noise", bounds="l2 = { ok = 1.5, warn = 3.0 }") + strict)


@case("a policy that judges nothing", NOT_ACCEPTED)
def _nothing(work: Path, rng: Random):
    return _policy(work, f'name = "mine"\n{LAST.format(judge="none", bounds="")}')


@case("a hostile policy")
def _hostile(work: Path, rng: Random):
    text = rng.choice((
        "[" * 20_000, "a" + ".a" * 20_000 + " = 1", "a = " + "[" * 20_000 + "]" * 20_000,
        "a = " + "{a=" * 20_000 + "1" + "}" * 20_000, "", "\0", "\x1b[31m",
        "name = 1", ROW * 2_000, 'name = "\\u001b[31m[/x]"\nrow = 3', "row = []\nname = 'x'", "x = " + "9" * 5000,
        ROW.replace("*tokens", "\\u001b[2J[/x]"), ROW.replace("*tokens", "[" * 5000),
        ROW + LAST.format(judge="noise", bounds="l2 = { ok = 3, warn = 1 }"),
    ))  # fmt: skip
    return _policy(work, text)


@case("a file in the place of a policy")
def _no_policy(work: Path, rng: Random):
    os.mkfifo(work / "fifo")
    return (
        *DIFF,
        "--policy",
        rng.choice(
            ("fifo", "/dev/zero", "/dev/urandom", ".", "golden", "", "../outside/secret.toml", "\x1b[31m", "no")
        ),
    )


def _map(work: Path, rng: Random, text: str):
    import numpy as np

    np.savez(
        work / "a.npz", **{"x" * 40 + "!": np.zeros((14, 64), np.float32), "a" * 60 + "!": np.zeros(3, np.float32)}
    )
    (work / "map.toml").write_text(text)
    return imported("a.npz", more=("--map", "map.toml"))


@case("a map that takes forever")
def _regex(work: Path, rng: Random):
    pattern = rng.choice(
        (
            r"(x+x+)+y",
            r"(a|a)*b",
            r"(a|aa)+$",
            r"((a*)*)*b",
            r"(.*.*.*.*.*.*.*.*.*.*)z{40}",
            r"(x{0,9999}){0,9999}y",
            r"(?:(?:x?){60}x{60}y)",
        )
    )
    return _map(work, rng, f"[[row]]\nname = '{pattern}'\nstage = 'target.embed'\n")


@case("a hostile map")
def _hostile_map(work: Path, rng: Random):
    row = "[[row]]\nname = '.*'\nstage = '{}'\n"
    text = rng.choice((
        "[" * 20_000, row.format("{step" + "+1" * 9 + "}"),
        row.format("target.embed") + "prompts = [99999999999]\naxes = ['B', 'S', 'H']\n",
        row.format("hf[{step}]"), row.format("{0.__class__}"), row.format("{L+99999999999999999999999}"),
        "[[row]]\nname = '('\nstage = 'x'\n",
        row.format("target.layers.{L}.out"), row.format("target.embed") + "round = '" + "9" * 5000 + "'\n",
        row.format("target.embed") + "rows = '" + "9" * 5000 + ":'\n",
        row.format("[/x]\\u001b"), row.format("target.embed") * 20_000,
        row.format("target.embed") + "sharding = 'H/999999999999999999999'\n",
    ))  # fmt: skip
    return _map(work, rng, text)


def _matrix(work: Path, text: str):
    (work / "matrix.toml").write_text(text)
    return ("nightly", "matrix.toml", "--dry-run")


@case("a matrix of millions")
def _millions(work: Path, rng: Random):
    """Few bytes, many cells."""
    many = ", ".join(str(number) for number in range(1, 4001))
    return _matrix(
        work,
        f"k = [{many}]\ntp = [{many}]\n[cases.one]\ntarget = 't'\ndrafter = 'd'\nprompts = 'p'\nmax_new_tokens = 4\n"
        "[devices]\nnumpy = 'numpy'\n",
    )


@case("a hostile matrix")
def _hostile_matrix(work: Path, rng: Random):
    head = "[cases.one]\ntarget = 't'\ndrafter = 'd'\nprompts = 'p'\nmax_new_tokens = 4\n"
    text = rng.choice((
        "[" * 20_000, "k = [99999999999999999999999999]\n" + head, "k = [-1]\n" + head, "k = [1.5]\n" + head,
        head.replace("one", '"../x"') + "[devices]\nn = 'numpy'\n",
        head.replace("one", '"[/x]"') + "[devices]\nn = 'numpy'\n", head + "[devices]\n'\\u001b' = 'numpy'\n",
        head.replace("4", "inf"), "", head + "[run]\ngates = ['x']\n",
        head + "[run]\ncell_timeout = nan\n[devices]\nn = 'numpy'\n",
        head + "[run]\nretries = 99999999999999999999\n[devices]\nn = 'numpy'\n", "x = 1\n" + head,
        head + "[devices]\n",
    ))  # fmt: skip
    return _matrix(work, text)


def _dump(*more: str):
    return ("dump-golden", "--prompts", "p.jsonl", "--max-new-tokens", "1", "--out", "made", *more)


@case("hostile prompts")
def _prompts(work: Path, rng: Random):
    text = rng.choice((
        '{"ids": [-1]}', '{"ids": [1.5]}', '{"ids": "abc"}', '{"ids": []}', '{"ids": null}',
        '{"ids": [999999999999999999999999]}', "[" * 100_000, "null", '{"ids": [true]}',
        '{"messages": 5}', '{"messages": [{"role": "\\u001b[31m"}]}', '{"text": 7}', '{"ids": {}}',
        '{"messages": [[]]}', "\xff", '{"id": "x"}', '{"ids": [[1]]}', "\n\n", '{"ids": NaN}',
    ))  # fmt: skip
    (work / "p.jsonl").write_bytes(text.encode("latin-1"))
    return _dump()


@case("a file in the place of prompts")
def _no_prompts(work: Path, rng: Random):
    os.mkfifo(work / "fifo")
    (work / "p.jsonl").symlink_to(rng.choice(("fifo", "/dev/zero", "/dev/urandom", "p.jsonl", ".", "no")))
    return _dump()


@case("a config of huge numbers")
def _config(work: Path, rng: Random):
    (work / "p.jsonl").write_text('{"ids": [1, 2, 3]}\n')
    field = rng.choice(
        (
            "num_hidden_layers",
            "hidden_size",
            "vocab_size",
            "num_attention_heads",
            "num_local_experts",
            "intermediate_size",
            "head_dim",
            "num_experts_per_tok",
            "sliding_window",
        )
    )
    value = rng.choice((10**8, 2**40, -1, 0, 1.5, "8", None, [8], 1e308, True))
    if field == "sliding_window" and value in (10**8, 2**40):
        field = "hidden_size"
    return _dump("--target", str(tiny_with(work, **{field: value})))


@case("a chat template that takes forever")
def _template(work: Path, rng: Random):
    (work / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcd")
    text = rng.choice((
        loops + "x" + "{% endfor %}" * 4, "{{ 'x' * 9999999999 }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch canary') }}",
        "{% include '/etc/passwd' %}", "{" * 10_000, "{{ " + "(" * 5_000 + " }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ))  # fmt: skip
    folder = tiny_with(work)
    rewrite(folder / "chat_template.jinja", text)
    return _dump("--target", str(folder))


@case("a tokenizer that brings code", NOT_ACCEPTED)
def _auto_map(work: Path, rng: Random):
    (work / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    folder = tiny_with(work)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["code.Tokens", "code.Tokens"]}, "tokenizer_class": "Tokens"}
    rewrite(folder / "tokenizer_config.json", json.dumps(config))
    (folder / "code.py").write_text(f"open({str(work.parent / 'canary')!r}, 'w')\nclass Tokens: pass\n")
    if rng.random() < 0.5:
        rewrite(
            folder / "config.json",
            json.dumps(
                json.loads((folder / "config.json").read_text())
                | {"auto_map": {"AutoConfig": "code.Tokens", "AutoModelForCausalLM": "code.Tokens"}}
            ),
        )
    return _dump("--target", str(folder))


@case("a hostile night")
def _night(work: Path, rng: Random):
    (work / "night").mkdir()
    (work / "night" / "cells").mkdir()
    text = rng.choice(("[" * 100_000, "{}", "null", '{"name": "\\u001b[31m"}', "\0", '{"cells": ' + "[" * 5000))
    if rng.random() < 0.3:
        os.mkfifo(work / "night" / "night.json")
    else:
        (work / "night" / "night.json").write_text(text)
    return ("report", "night")


@case("a hostile history")
def _history(work: Path, rng: Random):
    folder = work / "history" / "date=2026-01-01"
    folder.mkdir(parents=True)
    path = folder / f"n-{'0' * 32}.parquet"
    kind = rng.randrange(4)
    if kind == 0:
        path.write_bytes(b"PAR1" + rng.randbytes(200) + b"PAR1")
    elif kind == 1:
        path.symlink_to("/dev/zero")
    elif kind == 2:
        os.mkfifo(path)
    else:
        path.mkdir()
    return ("history", "history")


@case("a hostile log", ANY)
def _log(work: Path, rng: Random):
    text = rng.choice(
        (
            "x" * 20_000_000,
            "\x1b[2J[/x]\n" * 1000,
            "a" * 100_000 + "\n" + "WARNING " * 100_000,
            "\0" * 10_000,
            "falling back " * 50_000,
        )
    )
    (work / "a.log").write_text(text)
    return ("scan-log", "a.log")


@case("a file in the place of a log")
def _no_log(work: Path, rng: Random):
    os.mkfifo(work / "fifo")
    return ("scan-log", rng.choice(("fifo", "/dev/zero", "no", ".", "\x1b[31m")))


@case("hostile arguments")
def _arguments(work: Path, rng: Random):
    nasty = rng.choice((*NASTY, "", "\udcff", "-", "--", "0", "1e999"))
    return rng.choice((
        ("diff", f"no{nasty}", "--golden", "golden"), ("diff", "run", "--golden", f"no{nasty}"),
        (*DIFF, f"--stage={nasty}"), (*DIFF, "--json", f"no/{nasty}/x"), (*DIFF, "--json", "."),
        (*DIFF, "--against", f"no{nasty}"), ("diff", "--golden", "golden", "--device", ""),
        ("diagnose", "", "--golden", "golden"), ("gate", "--golden", "golden", "--only", f"x{nasty}"),
        ("inspect", f"no{nasty}"), ("report", f"no{nasty}"), ("history", f"no{nasty}://x"), ("history", ""),
        (f"no{nasty}",), ("import", "--from", "files", "", "--golden", "golden", "--out", "made"),
        ("run", "--golden", "golden", "--out", "golden"), ("export", "run", "golden"), ("verify-golden", f"no{nasty}"),
        ("diff", "", "--golden", "golden"), ("diff", "run", "--golden", ""),
    ))  # fmt: skip


@case("a full device to write to", UNREADABLE)
def _full(work: Path, rng: Random):
    (work / "full").symlink_to("/dev/full")  # never by its own name: a command that renames onto it would replace it
    return (*DIFF, "--json", "full")
