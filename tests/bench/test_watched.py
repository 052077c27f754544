"""What is timed is what somebody watches: the same tokens, by as many rounds."""

from __future__ import annotations

from typing import ClassVar

import pytest

from parity.bench.measure import run_bench
from parity.errors import UsageError
from tests.bench.fakes import Fake, FakePlain, PlainLoop, Ticks, cells, request


class TwoFaced(FakePlain):
    """Where nobody watches it answers another prompt, with and without drafts alike."""

    def prefill(self, prompt_ids, max_new_tokens, tap):
        return super().prefill([*prompt_ids, getattr(tap, "unwatched", False)], max_new_tokens, tap)

    def decode_plain(self, prompt_ids, max_new_tokens):
        return super().decode_plain([*prompt_ids, 1], max_new_tokens)


@pytest.mark.parametrize("made", [TwoFaced, lambda *given: PlainLoop(TwoFaced(*given))])
def test_a_device_that_answers_otherwise_where_nobody_watches_fails(tiny, made):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: made(ticks, k), ticks))
    assert report.exit_code == 1
    assert "speculative/k4: prompt prompt 0: where nobody watches token 0 is 8, watched it is 7" in report.findings[0]
    assert len(report.findings) == 2  # of each prompt


class Remembering(FakePlain):
    """It drafts what it answered to the same prompt before, as a cache over requests does."""

    answered: ClassVar[set[tuple[int, ...]]] = set()

    def prefill(self, prompt_ids, max_new_tokens, tap):
        self.accepts = (4,) if tuple(prompt_ids) in self.answered else (1, 0)
        self.answered.add(tuple(prompt_ids))
        return super().prefill(prompt_ids, max_new_tokens, tap)


def test_a_device_that_drafts_by_what_it_answered_before_fails(tiny, monkeypatch):
    """Every repeat is of the same prompts: its acceptance is that of no user."""
    ticks = Ticks()
    monkeypatch.setattr(Remembering, "answered", set())
    report = run_bench(request(tiny, lambda k: Remembering(ticks, k), ticks))
    assert report.exit_code == 1
    assert "speculative/k4: 12 rounds where nobody watches, 38 in the first run" in report.findings[0]


def test_an_honest_device_is_watched_once_for_each_prompt_and_no_time_of_it_counts(tiny):
    ticks, watched = Ticks(), []

    class Seen(Fake):
        def prefill(self, prompt_ids, max_new_tokens, tap):
            if not getattr(tap, "unwatched", False):
                watched.append(list(prompt_ids))
                self.ticks.take(1000.0)
            return super().prefill(prompt_ids, max_new_tokens, tap)

    report = run_bench(request(tiny, lambda k: Seen(ticks, k), ticks))
    assert report.exit_code == 0 and watched == [[1, 2, 3], [2, 2, 3]]
    assert [cell.watched for cell in report.cells] == [0, 2]
    assert cells(report)["plain"].overall.first_token_ms.median == pytest.approx(500)


def test_a_device_that_breaks_down_where_somebody_watches_is_missing_evidence(tiny):
    ticks = Ticks()

    class Shy(Fake):
        def verify(self, draft_tokens, tap):
            if not getattr(tap, "unwatched", False):
                raise UsageError("no stage can be shown")
            return super().verify(draft_tokens, tap)

    report = run_bench(request(tiny, lambda k: Shy(ticks, k), ticks))
    assert report.exit_code == 3 and "with somebody watching: no stage can be shown" in report.findings[0]
    assert cells(report)["speculative"].overall
