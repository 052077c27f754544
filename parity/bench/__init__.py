"""Whether speculation pays: timed runs of devices with and without drafts, and a model of what they should give.

`request` says what is asked for, `session` and `cell` measure it by the contestants of `decoding`, `figures` and
`statistics` make figures of the times, `judge` says what fails, `measure` puts it together; `records` is what is
written down. `compare` compares two benches. `model`, `roofline` and `explained` predict, `controller` chooses K.
"""

from parity.bench.controller import ControllerSettings as ControllerSettings
from parity.bench.controller import DraftLengthController as DraftLengthController
from parity.bench.model import expected_tokens as expected_tokens
from parity.bench.model import speed_up as speed_up
from parity.bench.records import BenchReport as BenchReport
from parity.bench.records import read_bench as read_bench
from parity.bench.request import BenchRequest as BenchRequest
from parity.bench.workload import Workload as Workload
from parity.bench.workload import read_workload as read_workload
