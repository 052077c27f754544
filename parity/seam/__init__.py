"""The device seam: what parity asks of an implementation, and the tap it hands over.

An implementation of speculative decoding becomes a *device* by offering the five verbs of `Device` (`device.py`).
Parity drives them round by round; the device hands every stage tensor to the `Tap` it is given (`taps.py`) and
continues with what the tap returns. All else is optional: `hosting.py`, `sampling.py`, `functions.py`.
"""

from parity.operations import Cut as Cut
from parity.operations import Operand as Operand
from parity.operations import Operation as Operation
from parity.seam.device import Description as Description
from parity.seam.device import Device as Device
from parity.seam.device import Rows as Rows
from parity.seam.device import Shown as Shown
from parity.seam.device import VaryingK as VaryingK
from parity.seam.device import When as When
from parity.seam.functions import Gemm as Gemm
from parity.seam.functions import Multiply as Multiply
from parity.seam.functions import Operate as Operate
from parity.seam.functions import Operations as Operations
from parity.seam.functions import Rotary as Rotary
from parity.seam.functions import Work as Work
from parity.seam.functions import Works as Works
from parity.seam.hosting import Batched as Batched
from parity.seam.hosting import ComputesElsewhere as ComputesElsewhere
from parity.seam.hosting import Continuing as Continuing
from parity.seam.hosting import ContinuingInLanes as ContinuingInLanes
from parity.seam.hosting import Inspectable as Inspectable
from parity.seam.hosting import Looping as Looping
from parity.seam.hosting import OnRound as OnRound
from parity.seam.hosting import PlainDecoding as PlainDecoding
from parity.seam.hosting import Poisonable as Poisonable
from parity.seam.hosting import Saving as Saving
from parity.seam.hosting import SavingInLanes as SavingInLanes
from parity.seam.hosting import Synchronizes as Synchronizes
from parity.seam.layered import Layered as Layered
from parity.seam.sampling import DRAWS as DRAWS
from parity.seam.sampling import Decides as Decides
from parity.seam.sampling import Rule as Rule
from parity.seam.sampling import Samples as Samples
from parity.seam.sampling import SamplesInLanes as SamplesInLanes
from parity.seam.sampling import Sampling as Sampling
from parity.seam.taps import UNWATCHED as UNWATCHED
from parity.seam.taps import Offering as Offering
from parity.seam.taps import RankTap as RankTap
from parity.seam.taps import RowTap as RowTap
from parity.seam.taps import Side as Side
from parity.seam.taps import SketchTap as SketchTap
from parity.seam.taps import Tap as Tap
from parity.seam.taps import Unwatched as Unwatched
