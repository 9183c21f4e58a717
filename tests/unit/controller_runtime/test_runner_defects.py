"""A controller that raises errors: defects are reported, and other controllers continue."""

from collections.abc import Iterable
from typing import Any

import pytest

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import InvariantError
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import BACKOFF_MIN, Runner
from batchyard.interfaces.client import Create, Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.store.memory import Store
from unit.controller_runtime.test_runner import RunnerBench, ScriptedController, job

START: Instant = 1_767_225_600_000_000
JOB: Obj = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "team"}}


class FailingController:
    """A controller that fails a number of times in `keys_for` and in `reconcile`."""

    rank = 0
    kinds = None

    def __init__(self, name: str, *, mapping_failures: int = 0, reconcile_failures: int = 0) -> None:
        self.name = name
        self._mapping_failures = mapping_failures
        self._reconcile_failures = reconcile_failures
        self.reconciled: list[Instant] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        self._mapping_failures -= 1
        assert self._mapping_failures < 0, self.name
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        self.reconciled.append(now - START)
        assert len(self.reconciled) > self._reconcile_failures, self.name
        return ReconcileResult()


def reported_defects(*controllers: FailingController) -> list[Any]:
    """The defects reported after a Job is created for these controllers."""
    reported: list[Any] = []
    kernel = VirtualEventLoop(START)
    client = LocalClient(Store(), kernel)
    Runner(kernel, client, controllers, defects=lambda error: reported.extend(error.__notes__))
    client.submit([Create(JOB)], lambda _: None)
    kernel.run(end_time=START + SECOND)
    return reported


def test_failing_controller_is_retried_with_backoff() -> None:
    broken, whole = FailingController("broken", reconcile_failures=3), FailingController("whole")
    assert reported_defects(broken, whole)[0] == f'while broken reconciled Job.batch "team/a" at instant {START}'
    assert broken.reconciled == [0, BACKOFF_MIN, 3 * BACKOFF_MIN, 7 * BACKOFF_MIN]
    assert whole.reconciled == [0]


def test_failing_event_mapping_does_not_block_other_controllers() -> None:
    broken, whole = FailingController("broken", mapping_failures=1), FailingController("whole")
    assert reported_defects(broken, whole) == [
        f'while broken determined the keys to reconcile after a change of Job.batch "team/a" at instant {START}'
    ]
    assert (broken.reconciled, whole.reconciled) == ([], [0])


def test_controller_exception_gets_note_with_controller_and_key() -> None:
    def script(key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        RunnerBench(ScriptedController(script=script)).run(Create(job()))
    assert caught.value.__notes__ == [f'while scripted reconciled Job.batch "team/a" at instant {START}']


def test_runner_rejects_duplicate_controller_names() -> None:
    with pytest.raises(InvariantError, match="a unique name"):
        RunnerBench(ScriptedController(), ScriptedController())
