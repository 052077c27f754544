"""Wrong rows that hold zeros or other rows' values are told by the step that they share; nothing is told of others."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare import compare
from parity.compare.origins import held_instead
from parity.policy import read_policy
from parity.reports.terminal import print_report
from tests.meta.dumps import clean, write
from tests.meta.plants import FFN, OUT, POSITIONS, Q, instead, noise, swap, unrelated, values
from tests.meta.worlds import Size

SMALL = Size(prompts=(40, 20))


def held(tmp_path, stage, *plants, size=SMALL):
    pair = clean(size)
    for plant in plants:
        plant(pair)
    golden, run = write(pair, tmp_path)
    return str(held_instead(golden, run, golden.declared[stage]) or "")


def row_before(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:1], x[:-1]])


def zeros_from_16(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(x))[:, None] < 16, x, 0)


def heads_exchanged(x: np.ndarray) -> np.ndarray:
    return x[:, [1, 0, *range(2, x.shape[1])]]


def heads_turned(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=1)


def left_by_the_prefill(pair) -> None:
    """Rows of later passes hold what the buffer has of the prefill; a row more would be the prompt's end."""
    for tensors in pair.run:
        prefill = tensors[0, FFN]
        for place in [place for place in tensors if place[1] == FFN and place[0]]:
            tensors[place] = prefill[: len(tensors[place])].copy()


def read_head_by_head(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[1], len(x), -1).swapaxes(0, 1).copy()


def lying_head_by_head(x: np.ndarray) -> np.ndarray:
    """Of a buffer that is padded by three rows."""
    padded = np.concatenate([x, unrelated(x)[:3]]) if len(x) > 8 else x
    return padded.swapaxes(0, 1).reshape(padded.shape)[: len(x)]


def one_row_elsewhere(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(x))[:, None] == 7, x[3], x) if len(x) > 7 else x


@pytest.mark.parametrize(
    ("stage", "plant", "says"),
    [
        (FFN, values(row_before, FFN), "hold what belongs 1 position before"),
        (FFN, values(zeros_from_16, FFN), "hold zeros"),
        (FFN, values(one_row_elsewhere, FFN), "hold what belongs 4 positions before"),
        (
            FFN,
            values(lambda x: x[::-1], FFN),
            "the one at position 0 of round 0, prompt 0 what belongs at",
        ),
        (Q, values(heads_exchanged, Q), "head 0 what belongs 1 head behind; head 1 what belongs 1 head before"),
        (
            Q,
            values(heads_turned, Q),
            "head 0 what belongs 3 heads behind; head 1 what belongs 1 head before; head 2 what",
        ),
        (Q, values(read_head_by_head, Q), "where a pass lies row by row and is read head by head: a reshape without a"),
        (
            Q,
            values(lying_head_by_head, Q),
            "where a pass lies head by head and is read row by row: a reshape without a",
        ),
        (OUT, instead(OUT, (0, 0), (0, 0, FFN)), f"hold the same row of {FFN}"),
        (FFN, left_by_the_prefill, "hold what belongs at the same place of the prefill"),
        (POSITIONS, values(lambda x: x + 1, POSITIONS), "hold what belongs 1 position behind"),
        (FFN, swap(FFN, (0, 1), (1, 1)), "all 10 wrong rows hold by turns what belongs 1 prompt behind (5), what"),
    ],
)
def test_what_is_held_instead(tmp_path, stage, plant, says):
    assert says in held(tmp_path, stage, plant)


def test_of_one_prompt_no_number_is_told_it_may_be_one_of_many_elsewhere(tmp_path):
    told = held(tmp_path, FFN, values(lambda x: x[::-1], FFN), size=Size(prompts=(40,)))
    assert "the one at position 0 of round 0 what belongs at position" in told and "prompt" not in told, told


@pytest.mark.parametrize(
    "plant", [values(lambda x: x * np.float32(1.1), FFN), noise(FFN, 20.0), values(unrelated, FFN), noise(FFN, 1.0)]
)
def test_what_is_in_no_other_place_is_not_told(tmp_path, plant):
    assert held(tmp_path, FFN, plant) == ""


def test_what_the_device_kept_is_told_where_no_row_of_the_golden_is_held(tmp_path):
    says = "15 of 30 wrong rows hold what belongs 1 prompt before, as the device itself showed it"
    assert held(tmp_path, OUT, doubled_and_kept) == says


def doubled_and_kept(pair) -> None:
    """Every round of the first prompt is twice what it should be, and the second prompt shows the same."""
    for place in [place for place in pair.run[1] if place[1] == OUT and place[0]]:
        pair.run[0][place] = pair.run[1][place] = 2 * pair.run[0][place].astype(np.float32)


def test_the_verdict_tells_it(tmp_path, capsys):
    pair = clean(SMALL)
    values(row_before, FFN)(pair)
    report = compare(*write(pair, tmp_path), read_policy(None, "bfloat16"))
    print_report(report)
    assert report.first.stage == FFN and report.holds in " ".join(capsys.readouterr().out.split())
