"""A controller that breaks, where somebody is told of it: all else goes on."""

from collections.abc import Iterable
from typing import Any

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import BACKOFF_MIN, Runner
from batchyard.interfaces.client import Create, Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.store.memory import Store

START: Instant = 1_767_225_600_000_000
JOB: Obj = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "team"}}


class Breaking:
    """A controller that breaks so often over a change, and so often when it looks."""

    rank = 0
    kinds = None

    def __init__(self, name: str, *, at_changes: int = 0, at_looks: int = 0) -> None:
        self.name = name
        self._at_changes = at_changes
        self._at_looks = at_looks
        self.looks: list[Instant] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        self._at_changes -= 1
        assert self._at_changes < 0, self.name
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        self.looks.append(now - START)
        assert len(self.looks) > self._at_looks, self.name
        return ReconcileResult()


def told_of(*controllers: Breaking) -> list[Any]:
    """What is told when a Job comes to these controllers."""
    reported: list[Any] = []
    kernel = VirtualEventLoop(START)
    client = LocalClient(Store(), kernel)
    Runner(kernel, client, controllers, defects=lambda error: reported.extend(error.__notes__))
    client.submit([Create(JOB)], lambda _: None)
    kernel.run(until=START + SECOND)
    return reported


def test_whoever_breaks_is_asked_again_later_and_later() -> None:
    broken, whole = Breaking("broken", at_looks=3), Breaking("whole")
    assert told_of(broken, whole)[0] == f'while broken reconciled Job.batch "team/a" at instant {START}'
    assert broken.looks == [0, BACKOFF_MIN, 3 * BACKOFF_MIN, 7 * BACKOFF_MIN]
    assert whole.looks == [0]


def test_whoever_breaks_over_a_change_does_not_keep_it_from_others() -> None:
    broken, whole = Breaking("broken", at_changes=1), Breaking("whole")
    assert told_of(broken, whole) == [f'while broken mapped a change of Job.batch "team/a" at instant {START}']
    assert (broken.looks, whole.looks) == ([], [0])
