"""When a machine was paid for and a pod was on it, and whose pod it is, as their objects tell."""

from typing import NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Instant
from batchyard.core.machines.instances import BOOTING, RUNNING, STOPPING, is_off, phase_of

_PAID = (BOOTING, RUNNING, STOPPING)


class Owner(NamedTuple):
    """Whose a pod is: what its Workload was admitted to. All but the team may be empty."""

    team: str
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    workload: str = ""


def is_paid(instance: Obj) -> bool:
    """Whether a machine costs something: from the moment the cloud found it until it is gone."""
    return phase_of(instance) in _PAID and not is_off(instance)


def paid_from(instance: Obj) -> Instant | None:
    """Since when an Instance is paid; None if it does not tell."""
    return _time((instance.get("status") or {}).get("startedAt"))


def paid_until(instance: Obj) -> Instant | None:
    """When an Instance that is gone, or paid no more, was paid last; None if it does not tell."""
    status = instance.get("status") or {}
    return _time(status.get("stoppedAt") or (None if is_paid(instance) else status.get("since")))


def ready_since(node: Obj) -> Instant | None:
    """Since when a Node is ready, or is not; None if it does not tell."""
    found = find_condition(node.get("status") or {}, "Ready")
    return None if found is None else _time(found.get("lastTransitionTime"))


def bound_at(pod: Obj) -> Instant | None:
    """When a pod came to its node; None if it does not tell."""
    found = find_condition(pod.get("status") or {}, "PodScheduled")
    if found is not None and found["status"] == "True" and found.get("lastTransitionTime"):
        return _time(found["lastTransitionTime"])
    return _time((pod.get("status") or {}).get("startTime"))


def ended_at(pod: Obj) -> Instant | None:
    """When the last container of a pod ended; None if it does not tell."""
    states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    ends = [(state.get("terminated") or {}).get("finishedAt") for state in states]
    told = [end for end in ends if end is not None]
    return max(map(parse_time, told)) if told and len(told) == len(ends) else None


def owner_of(pod: Obj, workload: Obj | None, device: str) -> Owner:
    """Whose a pod is. `workload` is what it names as its Workload, `device` how pods ask for its accelerators."""
    metadata = pod["metadata"]
    team, queue = metadata.get("namespace", ""), label(pod, well_known.LOCAL_QUEUE) or ""
    name = annotation(pod, well_known.WORKLOAD) or ""
    if workload is None:
        return Owner(team, "", label(pod, well_known.CLUSTER_QUEUE) or "", queue, name)
    view = workload_view(workload)
    pod_set = label(pod, well_known.POD_SET)
    flavors = next((each.flavors for each in view.holdings if each.name == pod_set), None) or {}
    flavor = flavors.get(device) or flavors.get("cpu") or next(iter(flavors.values()), "")
    return Owner(team, flavor, view.cluster_queue, queue or view.queue.partition("/")[2], name)


def _time(text: str | None) -> Instant | None:
    return None if text is None else parse_time(text)
