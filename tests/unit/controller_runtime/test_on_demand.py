"""Controllers that are created at the first change of their kinds."""

from collections.abc import Iterable

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.controller_runtime.kernel import OnDemandController
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from stage import Stage

POD: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata("p"), "spec": {"containers": []}}


class Watcher:
    """A controller that records the changes that it observes."""

    name = "watcher"
    rank = 0
    kinds = (scheme.CRON_JOB, scheme.POD)

    def __init__(self) -> None:
        self.observed: list[str] = []
        self.reconciled: list[str] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        self.observed.append(event.key.kind)
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        self.reconciled.append(key.kind)
        return ReconcileResult()


def test_controller_is_created_by_the_first_change_of_its_kind_and_then_watches_all_its_kinds() -> None:
    created: list[Watcher] = []

    def create() -> Watcher:
        created.append(Watcher())
        return created[-1]

    stage = Stage(OnDemandController("watcher", (scheme.CRON_JOB,), create))
    stage.put(POD)
    assert created == []
    stage.put({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": make.metadata("c"), "spec": {}})
    stage.put({**POD, "metadata": make.metadata("q")})
    (watcher,) = created
    assert watcher.observed == watcher.reconciled == [scheme.CRON_JOB, scheme.POD]
