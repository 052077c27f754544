"""In which layers a stage fails, in words."""

from __future__ import annotations

import pytest

from parity.compare.siblings import layers_in_common


@pytest.mark.parametrize(
    ("failing", "judged", "says"),
    [
        ([3], range(8), "layer 3 only (1 of 8)"),
        (range(8), range(8), "every layer (8 of 8)"),
        ([1, 3, 5, 7], range(8), "odd layers only (4 of 8)"),
        ([0, 2, 4, 6], range(8), "even layers only (4 of 8)"),
        ([5, 6, 7], range(8), "from layer 5 on (3 of 8)"),
        ([0, 1], range(8), "up to layer 1 (2 of 8)"),
        ([0, 3], range(8), "layers 0 and 3 (2 of 8)"),
        ([1, 4, 7], range(8), "every third layer from 1 on (3 of 8)"),
        ([0, 4], range(8), "every fourth layer from 0 on (2 of 8)"),
        ([4, 7], range(8), "every third layer from 4 on (2 of 8)"),
        ([2, 3, 4], range(8), "layers 2 to 4 (3 of 8)"),
        ([1, 2, 5], range(8), "layers 1, 2 and 5 (3 of 8)"),
        ([12, 14], [11, 12, 13, 14], "even layers only (2 of 4)"),
        ([3], [3], ""),
        ([], range(8), ""),
    ],
)
def test_failing_layers_are_told_by_what_they_have_in_common(failing, judged, says):
    assert layers_in_common([*failing], [*judged]) == says
