"""Kubelets and node lifecycle together: machines crash, stop and recover while the platform crashes."""

from collections.abc import Callable, Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition, key_of, with_metadata
from batchyard.base.instant import Instant
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Delete, EventType, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import Controller
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.nodes.conditions import readiness
from batchyard.nodes.health import NodeHealth, TaintEviction
from batchyard.nodes.pods import PodGarbageCollector
from batchyard.sim.faults import FaultyClient, WriteFaults
from stage import Stage
from unit.kubelet.simulated.kubelet_make import slow
from unit.nodes.node_make import instance, node, pod, toleration

TOLERANT = [toleration("node.kubernetes.io/unreachable", 300), toleration("node.kubernetes.io/not-ready", 300)]


def controllers() -> Sequence[Controller]:
    return SimulatedKubelets(slow(3)), NodeAgents(), NodeHealth(), TaintEviction(), PodGarbageCollector()


def long_pod(name: str, on: str = "node", **spec: Any) -> Any:
    containers = [{"name": "c", "image": "busybox", "command": ["sleep", "2000"]}]
    return pod(name, node=on, containers=containers, tolerations=TOLERANT, **spec)


class CrashingStage(Stage):
    """A stage whose platform crashes after one of its writes and restarts."""

    def __init__(self, crash_after: int = 0) -> None:
        super().__init__()
        self.faults = WriteFaults()
        self.writes = 0
        self._crash_after = crash_after
        self.faults.on_write = self._on_write
        self._start()

    def _start(self) -> None:
        self._wire = FaultyClient(self.client, self.faults)
        self._platform = Runner(self.kernel, self._wire, controllers(), self._record)

    def _on_write(self, count: int) -> None:
        self.writes = count
        if count == self._crash_after:
            self._wire.crash()
            self._platform.stop()
            self.kernel.call_soon(self._restart)

    def _restart(self) -> None:
        self._start()
        kinds = (scheme.INSTANCE, scheme.LEASE, scheme.NODE, scheme.POD)
        there = [obj for kind in kinds for obj in self.client.list(kind)]
        self._platform.observe([WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0) for obj in there])

    def at(self, seconds: float, work: Callable[[], None]) -> None:
        """Schedules a call at an instant."""
        when: Instant = make.at(seconds)
        self.kernel.call_at(when, work)

    def delete_object(self, kind: str, name: str, namespace: str = "") -> None:
        """Deletes an object without waiting for the consequences."""
        self.client.submit([Delete(Key(kind, namespace, name))], lambda _: None)

    def set_phase(self, name: str, phase: str, since: float, stop_at: float | None = None) -> None:
        """Sets the phase of a machine without waiting for the consequences."""
        self.client.submit([UpdateStatus(instance(name, phase, since, stop_at))], lambda _: None)


def run_scenario(crash_after: int = 0, conflicts: float = 0) -> CrashingStage:
    """One machine is lost, one recovers, one stops; meanwhile pods end, fail and are deleted."""
    stage = CrashingStage(crash_after)
    stage.faults.conflict_rate = conflicts
    for name in ("lost", "back", "spot", "well"):
        stage.put(instance(name), node(name))
    fails: Any = {"metadata": {"annotations": {"batchyard.dev/exit-code": "3"}}, "restartPolicy": "OnFailure"}
    stage.put(with_metadata(long_pod("a", "lost"), finalizers=["test/keep"]), long_pod("b", "lost"))
    stage.put(long_pod("c", "back"), long_pod("d", "back", restartPolicy="OnFailure"))
    stage.put(with_metadata(long_pod("e", "spot"), finalizers=["test/keep"]))
    stage.put(pod("f", node="well", **fails), pod("g", node="well"), long_pod("h", "well"))
    stage.at(47, lambda: stage.set_phase("lost", "Crashed", 47))
    stage.at(60, lambda: stage.set_phase("back", "Crashed", 60))
    stage.at(70, lambda: stage.delete_object(scheme.POD, "h", "team"))
    stage.at(80, lambda: stage.set_phase("spot", "Stopping", 80, 110))
    stage.at(110, lambda: stage.delete_object(scheme.NODE, "spot"))
    stage.at(200, lambda: stage.set_phase("back", "Running", 200))
    stage.at(600, lambda: stage.delete_object(scheme.NODE, "lost"))
    stage.run(900)
    return stage


def final_state(stage: CrashingStage) -> dict[str, Any]:
    """The final state of pods and nodes."""
    result: dict[str, Any] = {n["metadata"]["name"]: readiness(n) for n in stage.client.list(scheme.NODE)}
    for obj in stage.client.list(scheme.POD):
        status = obj["status"]
        disruption = find_condition(obj, "DisruptionTarget")
        container = status["containerStatuses"][0]
        words = (status["phase"], status.get("reason"), disruption and disruption["reason"])
        result[obj["metadata"]["name"]] = (*words, container["restartCount"], container["state"])
    return result


def test_node_failures_lead_to_expected_pod_and_node_status() -> None:
    result = final_state(run_scenario())
    assert {name: result[name] for name in ("back", "well")} == {"back": "True", "well": "True"}
    assert result["a"][:3] == ("Failed", None, "DeletionByPodGC")
    assert result["c"][:3] == ("Failed", None, None)
    assert result["d"][:4] == ("Running", None, None, 1)
    assert result["e"][:3] == ("Failed", "Terminated", "TerminationByKubelet")
    assert (result["f"][0], result["f"][3]) == ("Running", 7)
    assert result["g"][0] == "Succeeded"
    assert not {"lost", "spot", "b", "h"} & set(result)


def test_pod_of_crashed_node_is_deleted_after_toleration_seconds() -> None:
    stage = Stage(*controllers())
    stage.put(node("well"), instance(), node(), long_pod("a"))
    stage.kernel.call_at(make.at(47), lambda: None)
    stage.run(47)
    stage.put(instance(phase="Crashed", since=47))
    stage.run(89.9)
    assert readiness(stage.get(scheme.NODE, "node", "")) == "True"
    stage.run(389.9)
    assert readiness(stage.get(scheme.NODE, "node", "")) == "Unknown"
    assert "deletionTimestamp" not in stage.get(scheme.POD, "a")["metadata"]
    stage.run(10**6)
    assert stage.get(scheme.POD, "a")["metadata"]["deletionTimestamp"] == make.stamp(420)
    assert stage.get(scheme.POD, "a")["status"]["phase"] == "Running"


def test_crash_after_any_write_does_not_change_final_state() -> None:
    whole = run_scenario()
    expected = final_state(whole)
    assert whole.writes > 40
    assert [count for count in range(1, whole.writes + 1) if final_state(run_scenario(count)) != expected] == []


def test_conflicts_do_not_change_final_state() -> None:
    assert final_state(run_scenario(conflicts=0.3)) == final_state(run_scenario())
