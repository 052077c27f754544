"""Verbs made whole: one that raises is undone, a second draft starts from what the first one found."""

from __future__ import annotations

import numpy as np
import pytest

from parity.adapters import transactional
from parity.errors import UsageError


class Counter:
    """Each verb adds to `rows`, then hands them over."""

    def __init__(self):
        self.rows = [0]

    def describe(self):
        raise NotImplementedError

    def draft(self, tap):
        self.rows.append(1)
        tap("drafter.draft_tokens", np.array(self.rows))
        return np.array(self.rows)


@pytest.mark.parametrize("own", [False, True])
def test_a_verb_that_raises_is_undone_and_a_second_draft_starts_from_the_same(own):
    inside = Counter()
    if own:
        device = transactional(
            inside, snapshot=lambda: list(inside.rows), restore=lambda kept: setattr(inside, "rows", list(kept))
        )
    else:
        device = transactional(inside, ["rows"])

    def broken(stage, value):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        device.draft(broken)
    assert inside.rows == [0]
    assert [device.draft(lambda stage, value: value).tolist() for _ in range(2)] == [[0, 1], [0, 1]]
    with pytest.raises(RuntimeError):
        device.draft(broken)
    assert inside.rows == [0, 1] and device.draft(lambda stage, value: value).tolist() == [0, 1]


def test_state_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"state 'cache\.keys' of the device"):
        transactional(Counter(), ["cache.keys"])
    with pytest.raises(UsageError, match="needs the attributes"):
        transactional(Counter())


class Serving(Counter):
    """All that a device may offer beside its verbs; what it saves and samples by lies in the state that is undone."""

    def __init__(self):
        super().__init__()
        self.saved, self.settings = {}, None

    def prefill(self, prompt_ids, max_new_tokens, tap):
        return self.prefill_from(0, prompt_ids, max_new_tokens, tap)

    def prefill_from(self, cached, prompt_ids, max_new_tokens, tap):
        self.rows = [*self.rows[:cached], *prompt_ids[cached:]]
        tap("target.tokens", np.array(self.rows))
        return 0

    def commit(self, draft_tokens, verify_tokens, tap):
        self.rows[-1] = 2
        return np.array([2])

    def decode_plain(self, prompt_ids, max_new_tokens):
        self.rows = []
        return [0]

    def speculate(self, prompt_ids, max_new_tokens, tap, on_round):
        self.rows = [9]
        return [9]

    def sample(self, settings, uniforms):
        self.settings = settings

    def save(self, name):
        self.saved[name] = list(self.rows)

    def restore(self, name):
        self.rows = list(self.saved[name])

    def poison(self, value):
        self.rows = [value]
        raise RuntimeError

    def show_caches(self, tap):
        self.rows = [*self.rows, 3]
        tap("kv.target.lengths", np.array(self.rows))


def quiet(stage, value):
    return value


STATE = ["rows", "saved", "settings"]
BEGINS = {
    "prefill": (([7, 8], 4, quiet), [7, 8]),
    "prefill_from": ((1, [5, 6, 7], 4, quiet), [5, 6, 7]),
    "restore": (("kept",), [4, 4]),
    "decode_plain": (([7], 4), []),
    "speculate": (([7], 4, quiet, None), [9]),
    "commit": ((None, None, quiet), [5, 6, 2]),
}


@pytest.mark.parametrize("verb", BEGINS)
def test_what_ends_a_round_is_not_undone_by_the_next_draft(verb):
    device = transactional(Serving(), STATE)
    device.prefill([4, 4], 4, quiet)
    device.save("kept")
    device.prefill([5, 6], 4, quiet)
    device.draft(quiet)
    arguments, rows = BEGINS[verb]
    getattr(device, verb)(*arguments)
    assert device.draft(quiet).tolist() == [*rows, 1]
    assert device.draft(quiet).tolist() == [*rows, 1]


def test_a_draft_undone_takes_back_neither_settings_nor_what_was_saved():
    device = transactional(Serving(), STATE)
    device.prefill([5, 6], 4, quiet)
    device.draft(quiet)
    device.sample("warm", None)
    device.save("kept")
    device.draft(quiet)
    assert device.settings == "warm" and device.saved == {"kept": [5, 6]}


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [("prefill_from", (1, [5, 7], 4)), ("restore", ("nothing",)), ("poison", (0.0,)), ("show_caches", ())],
)
def test_an_optional_verb_that_raises_leaves_sequence_and_round(verb, arguments):
    def broken(stage, value):
        raise RuntimeError

    device = transactional(Serving(), STATE)
    device.prefill([5, 6], 4, quiet)
    device.draft(quiet)
    taps = (broken,) if verb in ("prefill_from", "show_caches") else ()
    with pytest.raises((RuntimeError, KeyError)):
        getattr(device, verb)(*arguments, *taps)
    assert device.rows == [5, 6, 1] and device.draft(quiet).tolist() == [5, 6, 1]


def test_what_a_device_lacks_the_wrapped_one_lacks_and_lanes_are_refused():
    from parity.seam import Continuing, Looping, Saving

    plain = transactional(Counter(), ["rows"])
    assert not any(isinstance(plain, offers) for offers in (Continuing, Looping, Saving))

    class Lanes(Serving):
        prefill_batch = draft_batch = verify_batch = commit_batch = Counter.draft

    with pytest.raises(UsageError, match="one sequence"):
        transactional(Lanes(), ["rows"])
