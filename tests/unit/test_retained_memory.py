"""The memory that a platform retains for finished and deleted Jobs."""

import gc
import tracemalloc
from typing import Any, Final

import pytest

import make
from batchyard.admission_chain import AdmissionChain
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.views import workload
from batchyard.base import primitives
from batchyard.base.instant import SECOND
from batchyard.client import informer
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.events import EventRecorder
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.dashboard.history import HistoryLimits, PlatformHistory
from batchyard.housekeeping import controllers
from batchyard.interfaces.client import Create, WriteResult
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets, container_delays_of
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.store.memory import Store
from batchyard.wiring import PlatformPorts, PlatformSettings, build_platform
from yard import queue

pytestmark = pytest.mark.slow

JOBS: Final = 50
#: Bytes: the variation between runs. The Events of one Job alone take 17 KB, its views 9 KB.
PER_JOB_MAX: Final = 3000


class Platform:
    """A platform in virtual time, with all state that a running one keeps about Jobs, and with small limits."""

    def __init__(self) -> None:
        self.kernel = VirtualEventLoop(make.NOW)
        store, chain = Store(window=100), AdmissionChain(with_nodes=False, with_api=True)
        self.client = LocalClient(store, self.kernel, admission=chain.hooks())
        store.listen(chain.observe)
        runtime = (BareWorkloads(), SimulatedKubelets(container_delays_of(None, 0), with_nodes=False))
        events = EventRecorder(self.client, "here")
        ports = PlatformPorts(self.kernel, self.client, runtime, (), events, self._fail)
        self._platform = build_platform(ports, PlatformSettings(with_api=True, is_endless=True))
        index = self._platform.index
        self._history = PlatformHistory(
            self.kernel.now, index.cluster_queue_of, HistoryLimits(workloads=20, pod_binding_intervals=20)
        )
        self.client.subscribe(self._history.observe)
        self._jobs = 0
        for obj in (
            make.namespace(),
            make.flavor("spot"),
            queue("cq", 100),
            make.local_queue("cq", cluster_queue="cq"),
        ):
            self._create(obj)

    def run_jobs(self, count: int) -> int:
        """Run some Jobs until they are deleted; the bytes that the process then retains."""
        for _ in range(count):
            self._jobs += 1
            self._create(job(f"job-{self._jobs}"))
            self.kernel.run(self.kernel.now() + 2 * SECOND)
        self.kernel.run(self.kernel.now() + 60 * SECOND)
        assert not self.client.list(scheme.JOB)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def _create(self, obj: Obj) -> None:
        def done(result: WriteResult) -> None:
            assert result.error is None, result.error

        self.client.submit([Create(obj)], done)

    @staticmethod
    def _fail(loop: PreemptionLoop) -> None:
        raise AssertionError(loop.message)


def job(name: str) -> dict[str, Any]:
    """A Job that runs for a second and is deleted after one more."""
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
    }
    template = {"metadata": {"annotations": {"batchyard.dev/runtime": "1s"}}, "spec": pod}
    metadata = {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "cq"}}
    spec = {"suspend": True, "ttlSecondsAfterFinished": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def test_deleted_jobs_retain_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "LRU_CACHE_ENTRIES_MAX", 100)
    monkeypatch.setattr(controllers, "EVENTS_MAX", 100)
    monkeypatch.setattr(controllers, "BATCH_MAX", 20)
    monkeypatch.setattr(informer, "KEPT_VIEWS_MAX", 20)
    monkeypatch.setattr(workload, "_POD_SET_CONTENTS_MAX", 20)
    tracemalloc.start()
    try:
        platform = Platform()
        before = platform.run_jobs(JOBS)
        after = platform.run_jobs(JOBS)
    finally:
        tracemalloc.stop()
    assert (after - before) / JOBS < PER_JOB_MAX
