"""Cycles that run while an API server processes the writes of earlier ones."""

from collections.abc import Callable
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, is_true
from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.controller_runtime.runner import Runner
from batchyard.scheduling.blocked_cycle import DecisionPacing
from batchyard.scheduling.controller import Scheduler, SchedulerSettings
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import WATCHED_KINDS, SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from unit.client.client_and_server import ClientAndServer
from yard import preemption, queue, workload

#: The milliseconds that a request, a response or a watch event takes.
LATENCY_MS = 2


class ServerWithScheduler:
    """An API server with a ClusterQueue of 4 cpu, and a scheduler that is its client."""

    def __init__(self, *, in_flight_max: int = 64, **queue_spec: Any) -> None:
        self.served = ClientAndServer(WATCHED_KINDS)
        self.put(make.flavor("spot"))  # the namespace exists
        self.put(queue("cq", 4, **queue_spec), make.local_queue("cq", cluster_queue="cq"))
        self.served.start()
        cache, pacing = SchedulerCache(), DecisionPacing(in_flight_max)
        scheduler = Scheduler(cache, SchedulingPolicy(), settings=SchedulerSettings(pacing=pacing))
        self.runner = Runner(self.served.kernel, self.served.client, [scheduler, WorkloadLifecycle()])
        self.runner.observe(self.served.client.added_events())
        self.served.run()

    def put(self, *objects: Obj) -> None:
        for obj in objects:
            info = scheme.find_kind(obj["apiVersion"], obj["kind"])
            assert info is not None
            namespace = obj["metadata"].get("namespace")
            folder = f"/namespaces/{namespace}" if namespace else ""
            root = f"/apis/{obj['apiVersion']}" if "/" in obj["apiVersion"] else f"/api/{obj['apiVersion']}"
            self.served.api.post(f"{root}{folder}/{info.plural}", obj)

    def written(self) -> list[str]:
        """The names of the Workloads in the status writes that reached the server, in order."""
        requests = [asked.partition("/workloads/") for asked in self.served.line.asked if asked.startswith("PATCH")]
        return [path.partition("/")[0] for _, found, path in requests if found]

    def workloads_with(self, condition: str) -> list[str]:
        """The names of the Workloads that have this condition on the server."""
        workloads = self.served.api.get("/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads")["items"]
        return sorted(obj["metadata"]["name"] for obj in workloads if is_true(obj, condition))

    def delete_workload(self, name: str) -> None:
        self.served.api.ask("DELETE", f"/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/{name}")

    def conflicts(self) -> int:
        """The number of writes that the server rejected as conflicts."""
        return self.served.client.outbox.response_counts["PATCH", 409]

    def run(self, milliseconds: int = 60_000) -> None:
        kernel = self.served.kernel
        end_time = kernel.now() + milliseconds * MILLISECOND
        kernel.call_at(end_time, lambda: None)  # the clock moves to the end
        kernel.run(end_time=end_time)


def refuse_first(name: str, code: int) -> Callable[[HttpRequest], HttpResponse | None]:
    """Refuse the first status write of a Workload."""
    refused: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpResponse | None:
        if request.method != "PATCH" or f"/workloads/{name}/" not in request.path or refused:
            return None
        refused.append(request)
        return HttpResponse(code, b'{"message": "not now"}')

    return answer


@pytest.mark.parametrize(("in_flight_max", "expected_names"), [(64, ["a", "b", "c"]), (1, ["a", "b"]), (0, ["a"])])
def test_cycles_run_while_writes_are_in_flight(in_flight_max: int, expected_names: list[str]) -> None:
    server = ServerWithScheduler(in_flight_max=in_flight_max)
    server.put(*(workload(name, created=number) for number, name in enumerate("abc")))
    server.run(LATENCY_MS + LATENCY_MS)
    assert server.written() == expected_names
    server.run()
    assert server.written()[:3] == ["a", "b", "c"]
    assert server.workloads_with("Admitted") == ["a", "b", "c"]


def test_quota_is_not_exceeded_by_admissions_in_flight() -> None:
    server = ServerWithScheduler()
    server.put(*(workload(str(number), 3, created=number) for number in range(5)))
    server.run()
    assert len(server.workloads_with("QuotaReserved")) == 1


@pytest.mark.parametrize("code", [403, 409, 422, 500])
def test_rejected_admission_frees_assumed_quota(code: int) -> None:
    server = ServerWithScheduler()
    server.served.line.trouble = refuse_first("a", code)
    server.put(workload("a", 4), workload("b", 4, created=1))
    server.run()
    assert len(server.workloads_with("QuotaReserved")) == 1
    assert server.written().count("a") > 1


def test_target_is_evicted_once() -> None:
    server = ServerWithScheduler(preemption=preemption("LowerPriority"))
    server.put(workload("low", 4, priority=1))
    server.run()
    written_before = len(server.written())
    server.put(workload("high", 4, priority=9, created=1))
    server.run(500)  # no pending reason is written yet
    assert server.written()[written_before:] == ["low"]
    assert server.workloads_with("Evicted") == ["low"]


def test_rejected_eviction_is_repeated() -> None:
    server = ServerWithScheduler(preemption=preemption("LowerPriority"))
    server.put(workload("low", 4, priority=1))
    server.run()
    server.served.line.trouble = refuse_first("low", 403)
    server.put(workload("high", 4, priority=9, created=1))
    server.run()
    assert server.workloads_with("Evicted") == ["low"]


def test_workload_is_preempted_after_its_admission_was_written() -> None:
    """A higher priority that arrives while an admission is in flight waits for its result."""
    server = ServerWithScheduler(preemption=preemption("LowerPriority"))
    server.put(workload("low", 4, priority=1))
    server.run(LATENCY_MS)  # the scheduler has sent the admission
    server.put(workload("high", 4, priority=9, created=1))
    server.run()
    assert server.workloads_with("Evicted") == ["low"]
    assert server.conflicts() == 0


def test_pending_reason_in_flight_delays_admission() -> None:
    """A write on top of the pending reason would be rejected as a conflict."""
    server = ServerWithScheduler()
    server.put(workload("a", 4), workload("b", 4, created=1))
    server.run(SECOND // MILLISECOND + LATENCY_MS)  # the pending reason of `b` is on its way
    server.delete_workload("a")
    server.run()
    assert server.workloads_with("Admitted") == ["b"]
    assert server.conflicts() == 0
