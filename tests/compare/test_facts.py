"""What is known of a golden's rows: of their rounds, their choices, and the router before them."""

from __future__ import annotations

import numpy as np

from parity.compare.facts import Facts
from parity.compare.routed import Routed
from parity.compare.rows import stage_rows


def facts_of(golden, stage):
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="chained")
    return rows, Facts.of(golden, rows)


def test_a_row_knows_what_its_round_accepts_and_what_is_left_where_it_begins(shallow_golden):
    _, facts = facts_of(shallow_golden, "verify.logits")
    case = shallow_golden.manifest.case
    for prompt, told in enumerate(case.prompts):
        lengths = told.generated.acceptance_length
        for round_, length in enumerate(lengths, 1):
            own = (facts.prompt == prompt) & (facts.round == round_)
            spent = 1 + sum(lengths[: round_ - 1])
            assert set(facts.accepts[own]) == {length - 1} and set(facts.left[own]) == {case.max_new_tokens - spent}
            assert set(facts.cached[own]) == {len(told.ids) + spent - 1}
            assert facts.known("row")[own].tolist() == [*range(own.sum())]
            assert facts.known("ahead")[own].tolist() == [*range(own.sum())][::-1]


def test_no_rows_have_no_facts(shallow_golden):
    rows, _ = facts_of(shallow_golden, "verify.logits")
    none = Facts.of_places(shallow_golden, rows.take(np.zeros(len(rows.prompt), bool)))
    assert none.left.size == none.cached.size == 0


def test_a_choice_knows_which_id_is_due_and_a_row_of_numbers_its_largest(shallow_golden):
    rows, facts = facts_of(shallow_golden, "verify.tokens")
    assert facts.due.tolist() == rows.golden.tolist() and set(facts.largest) == {-1}
    rows, facts = facts_of(shallow_golden, "verify.logits")
    assert set(facts.due) == {-1} and np.array_equal(facts.largest, np.abs(rows.golden).max(axis=1))


def test_a_choice_knows_whether_the_row_before_has_the_same_id(shallow_golden):
    rows, facts = facts_of(shallow_golden, "verify.tokens")
    same = np.append(False, rows.golden[1:] == rows.golden[:-1])
    assert facts.repeats.tolist() == np.where(facts.index > 0, same, -1).tolist() and 0 in facts.repeats
    assert set(facts_of(shallow_golden, "verify.logits")[1].repeats) == {-1}


def test_a_committed_row_of_the_drafter_knows_the_token_at_its_own_position(shallow_golden):
    """What enters there is the token behind it; masked rows, and the target's, have no other than that."""
    rows, facts = facts_of(shallow_golden, "drafter.fc_out")
    for prompt, case in enumerate(shallow_golden.manifest.case.prompts):
        ids = np.array([*case.ids, *case.generated.emitted, *[-1] * 9])
        here = rows.prompt == prompt
        masked = (facts.committed[here] >= 0) & (facts.index[here] >= facts.committed[here])
        assert facts.own[here].tolist() == np.where(masked, -1, ids[rows.position[here]]).tolist()
        assert facts.token[here][~masked].tolist() == ids[rows.position[here][~masked] + 1].tolist()
    assert set(facts_of(shallow_golden, "target.embed")[1].own) == {-1}


def test_a_row_behind_a_router_knows_its_best_expert_and_how_little_one_counts(shallow_golden):
    _, facts = facts_of(shallow_golden, "target.layers.1.ffn_out")
    assert all(facts.experts[expert][row] for row, expert in enumerate(facts.best.tolist()))
    assert (facts.least_share > 0).all() and facts.least_share.max() <= 0.5
    assert (facts.known("lowest") <= facts.best).all() and (facts.best <= facts.known("highest")).all()
    assert not facts_of(shallow_golden, "target.layers.1.attn_out")[1].experts


def test_weights_of_a_router_are_a_softmax_over_the_chosen_alone():
    found = Routed.of(np.array([[2, 0], [1, 2]]), np.array([[0.0, 9.0, np.log(3)], [0.0, 1.0, 1.0 + np.log(4)]]))
    assert found.best.tolist() == [2, 2] and np.allclose(found.least, [0.25, 0.2])
    assert found.experts[1].tolist() == [False, True]
    assert Routed.of(None, None).experts == {} and Routed.of(np.array([[0, 7]]), np.zeros((1, 3))).best is None
