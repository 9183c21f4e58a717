"""A world with the Job controller, where tests set the phases of the pods."""

from collections.abc import Callable, Mapping
from typing import Any

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, key_of, with_path
from batchyard.client.local import AdmissionHooks, LocalClient
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Delete, Listener, Reader, Update, UpdateStatus
from batchyard.interfaces.controller import Controller
from batchyard.jobs.job.controller import JobPodController
from batchyard.store.memory import Store
from stage import Stage

CONDITIONS = ("type", "status", "reason", "message")


class JobStage(Stage):
    """A stage with a Job; tests control its pods."""

    def __init__(
        self,
        job: Obj,
        *controllers: Controller,
        admit: Callable[[Obj], None] | None = None,
        watch: Listener | None = None,
    ) -> None:
        super().__init__(*(controllers or (JobPodController(),)))
        if admit is not None:
            self._use_admission(admit)
        if watch is not None:
            self.client.subscribe(watch)
        self.put(job)

    @property
    def job(self) -> Mapping[str, Any]:
        """The Job."""
        return self.get(scheme.JOB, "job")

    @property
    def status(self) -> Mapping[str, Any]:
        """The status of the Job."""
        status: Mapping[str, Any] = self.job["status"]
        return status

    def conditions(self) -> list[tuple[str, ...]]:
        """The conditions of the Job, without their times."""
        return [tuple(c[field] for field in CONDITIONS) for c in self.status.get("conditions", ())]

    def pods(self, phase: str | None = "Pending") -> list[Obj]:
        """The pods in a phase, or all pods; sorted by name, and thus by index."""
        pods = self.client.list(scheme.POD)
        return [pod for pod in pods if phase is None or _status(pod).get("phase", "Pending") == phase]

    def indexes(self, phase: str | None = "Pending") -> list[str | None]:
        """The indexes of the pods in a phase, or of all pods."""
        return [annotation(pod, well_known.COMPLETION_INDEX) for pod in self.pods(phase)]

    def tracked(self) -> int:
        """The number of pods with the finalizer."""
        return sum(bool(pod["metadata"].get("finalizers")) for pod in self.pods(None))

    def become(self, phase: str, *pods: Obj, ready: bool = False, **status: Any) -> None:
        """Set the phase of pods (by default all pending ones) and settle the world."""
        since = (self.kernel.now() - make.NOW) / 1_000_000
        conditions = [make.condition("Ready", ready, since=since), *status.pop("conditions", ())]
        for pod in pods or self.pods():
            current = self.get(scheme.POD, pod["metadata"]["name"])
            self._submit(UpdateStatus({**current, "status": {"phase": phase, "conditions": conditions, **status}}))
        self.settle()

    def bind(self, *pods: Obj) -> None:
        """Give pods a node, so that they take time to stop."""
        for pod in pods or self.pods():
            current = self.get(scheme.POD, pod["metadata"]["name"])
            self._submit(Update(with_path(current, ("spec", "nodeName"), "n")))
        self.settle()

    def stop(self) -> None:
        """Let the nodes stop the pods that are deleted."""
        for pod in self.pods(None):
            if pod["metadata"].get("deletionGracePeriodSeconds"):
                if _status(pod).get("phase") not in ("Succeeded", "Failed"):
                    self.become("Failed", pod)
                self._submit(Delete(key_of(pod), grace_period_seconds=0))
        self.settle()

    def change(self, **spec: Any) -> None:
        """Change the Job's spec."""
        self.put({name: value for name, value in with_spec(self.job, spec).items() if name != "status"})

    def _use_admission(self, admit: Callable[[Obj], None]) -> None:
        """Use a client whose admission hook checks new pods."""

        def prepare(pod: Obj, reader: Reader) -> Obj:
            admit(pod)
            return pod

        self.client = LocalClient(Store(), self.kernel, admission=AdmissionHooks({scheme.POD: prepare}))
        self.runner = Runner(self.kernel, self.client, [JobPodController()], self._record)

    def pass_time(self, seconds: float) -> None:
        """Let some seconds pass."""
        then = self.kernel.now() + int(seconds * 1_000_000)
        self.kernel.call_at(then, lambda: None)
        self.kernel.run(then)


def with_spec(job: Obj, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The Job with fields of its spec changed."""
    return {**job, "spec": {**job["spec"], **spec}}


def _status(pod: Obj) -> Mapping[str, Any]:
    return pod.get("status") or {}
