"""What a device hands its stage tensors to: the tap, and what one may take beside whole stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Side = Literal["target", "drafter"]


class Offering(type(Protocol)):  # type: ignore[misc]  # the class of protocols has no public name
    """Protocols of what a tap may have beside being called; an attribute of that name which is no method is none."""

    def __instancecheck__(cls, tap: Any) -> bool:
        offered = [name for name in vars(cls) if not name.startswith("_")]
        return all(callable(getattr(tap, name, None)) for name in offered)


class Tap(Protocol):
    """Receives a stage tensor and returns the tensor to continue with.

    A recording tap returns its argument. A forcing tap returns the golden's tensor in the
    argument's dtype and shape, so that the next stage starts from the golden's input: this one
    rule is both teacher forcing (token stages) and local comparison (every stage).
    """

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Take `value` of the stage with this full name; logical rows only, no padding, no B axis."""
        ...


class Unwatched:
    """The tap of a free or a timed run: nobody looks at a stage, and none need be handed over.

    A device that sees `unwatched` may run as it would in service, its stages left where they are; one that does not
    know it hands them over, and is timed with that.
    """

    unwatched = True

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        return value

    def ranks(self, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Sequence[np.ndarray]:
        """Ranks that differ continue so, as they do in service."""
        return shards


UNWATCHED = Unwatched()
"""What free runs and a bench hand to a device's verbs."""


@runtime_checkable
class RankTap(Protocol, metaclass=Offering):
    """A tap that takes the stages of a tensor-parallel device rank by rank, merges them itself and sees where they
    part.

    A device hands it a stage in this way where its ranks hold tensors of their own; any other stage, and
    any other tap, gets the one whole tensor.
    """

    def ranks(self, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Sequence[np.ndarray]:
        """Take each rank's tensor of a stage; return what each continues with.

        Args:
            shards: in rank order, each with all axes of the stage.
            sharding: how they make one tensor: an axis letter of the stage (side by side along it), a letter with
                the number of neighbouring ranks that hold the same (`G/2`), `sum` (partial sums) or `replicated`.
        """
        ...


@runtime_checkable
class RowTap(Protocol, metaclass=Offering):
    """A tap that takes a stage whose rows come in several passes of one round: a chain of drafter steps.

    A device or reference that drafts step by step hands such a stage over pass by pass, so that each pass can be
    made to start from the golden; any other tap gets the whole stage with its last rows.
    """

    def rows(self, stage: str, value: np.ndarray, first: int, total: int) -> np.ndarray:
        """Take the next rows of a stage; return those to continue with.

        Args:
            value: some rows, with all axes of the stage.
            first: where they stand in the stage; 0 begins it anew.
            total: rows of the whole stage, known from the first pass on.
        """
        ...


@runtime_checkable
class SketchTap(Protocol, metaclass=Offering):
    """A tap that takes sketches in place of tensors: a device makes them where its tensors are, and reads those back.

    A stage handed over in this way is a product with a table that the tap has, and the sums of squares, both in
    float32 whatever the device computes in; any other tap, and any other stage, gets the tensor.
    """

    def projection(self, stage: str, width: int) -> np.ndarray | None:
        """What rows of a stage are multiplied with, float32 [width, N + 1]; None where the stage is handed over whole.

        Args:
            width: numbers of a row, all axes but the first.
        """
        ...

    def sketch(
        self, stage: str, products: np.ndarray, squares: np.ndarray, shape: tuple[int, ...], dtype: str
    ) -> np.ndarray | None:
        """Take a stage's sketch; the tensor to continue with, or None to continue with the device's own.

        Args:
            products: of the rows with the table, [R, N + 1].
            squares: the sum of each row's squares, [R].
            shape, dtype: of the tensor; R is the length of its first axis.
        """
        ...
