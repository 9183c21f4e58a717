"""Which pod sets of a Workload need capacity, and which of them may share a template.

Source: reqIsNeeded and mergePodSets of Kueue's provisioning controller.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.quantity import canonical
from batchyard.api.schema import meaning_of
from batchyard.controllers.provisioning.config import Config
from batchyard.core.lifecycle.workload import admission_of

_SCHEDULING_FIELDS: Final = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")
_CONTAINERS: Final = ("initContainers", "containers")
_NOTHING: Final[Mapping[str, Any]] = {}

PodSet = Mapping[str, Any]


@dataclass(slots=True)
class Group:
    """Pod sets with one template, that of the first."""

    pod_set: PodSet
    assignment: Mapping[str, Any]
    #: How many pods they have together.
    count: int
    #: The names of all of them.
    members: list[str]

    @property
    def name(self) -> str:
        """The name of the first."""
        return str(self.pod_set["name"])


def groups_needed(workload: Obj, config: Config) -> list[Group]:
    """What to ask capacity for; nothing if no pod set needs any."""
    groups: list[Group] = []
    for pod_set, assignment in _admitted(workload):
        count = assignment.get("count", pod_set["count"])
        if pod_set["count"] <= 0 or count <= 0 or not _is_managed(pod_set, config.managed_resources):
            continue
        like = next((g for g in groups if _may_share(g.pod_set, pod_set, config.merge_policy)), None)
        if like is None:
            groups.append(Group(pod_set, assignment, count, [pod_set["name"]]))
        else:
            like.count += count
            like.members.append(pod_set["name"])
    return groups


def _admitted(workload: Obj) -> Iterator[tuple[PodSet, Mapping[str, Any]]]:
    """Its pod sets, each with what it was assigned."""
    assignments = {a["name"]: a for a in admission_of(workload).get("podSetAssignments") or ()}
    for pod_set in workload["spec"]["podSets"]:
        if pod_set["name"] in assignments:
            yield pod_set, assignments[pod_set["name"]]


def _is_managed(pod_set: PodSet, resources: Sequence[str]) -> bool:
    if not resources:
        return True
    asked = [
        container.get("resources") or _NOTHING for kind in _CONTAINERS for container in _spec(pod_set).get(kind) or ()
    ]
    return any(
        name in (each.get(part) or ()) for each in asked for part in ("requests", "limits") for name in resources
    )


def _may_share(first: PodSet, second: PodSet, policy: str) -> bool:
    if policy == "IdenticalPodTemplates":
        return meaning_of(scheme.WORKLOAD).is_same_field("Workload.spec.podSets", "template", first, second)
    return policy == "IdenticalWorkloadSchedulingRequirements" and _requirements(first) == _requirements(second)


def _requirements(pod_set: PodSet) -> list[Any]:
    """What of a pod set bears on where its pods may run."""
    spec = _spec(pod_set)
    requests = [[_requests(container) for container in spec.get(kind) or ()] for kind in _CONTAINERS]
    return [requests, [spec.get(field) or None for field in _SCHEDULING_FIELDS]]


def _requests(container: Mapping[str, Any]) -> dict[str, str]:
    requests = (container.get("resources") or _NOTHING).get("requests") or _NOTHING
    return {name: canonical(amount) for name, amount in requests.items()}


def _spec(pod_set: PodSet) -> Mapping[str, Any]:
    return (pod_set.get("template") or _NOTHING).get("spec") or _NOTHING
