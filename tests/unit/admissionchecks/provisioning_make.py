"""A queue with a provisioning check: AdmissionChecks, configs, and the conditions that the provisioner writes."""

from collections.abc import Mapping
from typing import Any

import make
from batchyard.admissionchecks.provisioning import ProvisioningChecks, ProvisioningController
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_condition
from batchyard.base.instant import SECOND
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from stage import Stage
from yard import queue

CLASS = "queued-provisioning.gke.io"


def config(name: str = "config", **spec: Any) -> Obj:
    """A ProvisioningRequestConfig."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ProvisioningRequestConfig",
        "metadata": make.metadata(name, None),
        "spec": {"provisioningClassName": CLASS, **spec},
    }


def check(name: str = "prov", config: str = "config", **spec: Any) -> Obj:
    """An AdmissionCheck of the provisioning controller."""
    reference = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": config}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": make.metadata(name, None),
        "spec": {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": reference, **spec},
    }


def provisioning_stage(*objects: Obj, checks: Mapping[str, Any] | None = None, **spec: Any) -> Stage:
    """All controllers, with one queue `lq` that requires check `prov`; the keywords are the spec of the config."""
    index = SchedulerCache()
    stage = Stage(
        Scheduler(index, SchedulingPolicy()),
        WorkloadLifecycle(),
        JobReconciler(JobIntegration()),
        JobReconciler(JobSetIntegration()),
        ProvisioningChecks(),
        ProvisioningController(),
        QueueStatusController(index, fair_sharing=False),
    )
    strategy = {"admissionChecks": [{"name": "prov"}, *(checks or {}).values()]}
    flavor = make.flavor("spot", labels={"pool": "dws"})
    stage.put(make.namespace(), flavor, config(**spec), check(), *objects)
    stage.put(queue("cq", 8, admissionChecksStrategy=strategy), make.local_queue("lq", cluster_queue="cq"))
    return stage


def requests(stage: Stage) -> list[Obj]:
    """All ProvisioningRequests."""
    return list(stage.client.list(scheme.PROVISIONING_REQUEST))


def only_request(stage: Stage) -> Obj:
    """The only ProvisioningRequest."""
    (request,) = requests(stage)
    return request


def templates(stage: Stage) -> list[Obj]:
    """All PodTemplates."""
    return list(stage.client.list(scheme.POD_TEMPLATE))


def set_request_condition(stage: Stage, kind: str, message: str = "", *, status: bool = True, **fields: Any) -> None:
    """Set a condition of the only request, as the provisioner does."""
    request = only_request(stage)
    conditions = with_condition(
        (request.get("status") or {}).get("conditions") or [],
        type=kind,
        status=status,
        reason=kind,
        message=message,
        now=stage.kernel.now(),
    )
    stage.put({**request, "status": {**(request.get("status") or {}), **fields, "conditions": conditions}})


def check_state(stage: Stage, name: str = "prov") -> tuple[str, str]:
    """Return state and message of a check of the only Workload."""
    result = next(each for each in checks_of(stage.only_workload()) if each["name"] == name)
    return result["state"], result["message"]


def run_to(stage: Stage, seconds: float) -> None:
    """Run until this many seconds after the start."""
    stage.kernel.call_at(make.NOW + int(seconds * SECOND), lambda: None)
    stage.run(seconds)
