"""batchyard: a multi-tenant batch platform that decides which workload runs where and when, and explains why.

    from batchyard import job, simulate

`simulate` runs manifests in virtual time and returns a Result. It raises InvalidScenario, with a list of all errors, if
manifests are invalid. `job` makes a Python function that runs as a Job; RemoteJobError is the error of such a Job. All
names are imported on first use, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchyard.cli.submit.function import RemoteJobError, job
    from batchyard.sim.result import Result
    from batchyard.sim.scenario import InvalidScenario
    from batchyard.sim.simulate import simulate

__all__ = ["InvalidScenario", "RemoteJobError", "Result", "job", "simulate"]

_MODULES_BY_NAME = {
    "InvalidScenario": "batchyard.sim.scenario",
    "RemoteJobError": "batchyard.cli.submit.function",
    "Result": "batchyard.sim.result",
    "job": "batchyard.cli.submit.function",
    "simulate": "batchyard.sim.simulate",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES_BY_NAME[name]), name)
