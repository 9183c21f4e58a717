"""Work: Jobs, JobSets and bare Workloads, with the Workload that each would get, and the pod sets that rules check."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.admission_plugins.built_in import extended_resource_toleration
from batchyard.api import well_known
from batchyard.api.defaults import pod_defaults
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.node import Toleration
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import FlavorView, WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_assigner import FlavorAssigner, PodSetAssignment
from batchyard.scheduling.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class LintedWork:
    """A piece of work. Its pod sets and templates correspond by index."""

    manifest: Manifest
    #: The Workload that is created for it.
    workload: Obj
    view: WorkloadView
    #: The path of the pod template of each pod set.
    paths: Sequence[str]
    #: The kind and name of the class of its priority; empty without a class.
    class_kind: str = ""
    class_name: str = ""

    @property
    def obj(self) -> Obj:
        """The manifest's object."""
        return self.manifest.obj

    @property
    def is_job(self) -> bool:
        """Whether it is queued by labels, as Jobs and JobSets are."""
        return bool(self.manifest.obj["kind"] != "Workload")

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.view.namespace

    @property
    def queue(self) -> str:
        """The name of its LocalQueue; '' if it has none."""
        name: str = self.workload["spec"].get("queueName") or ""
        return name

    @property
    def templates(self) -> Sequence[Mapping[str, Any]]:
        """The pod template of each pod set."""
        return [pod_set["template"] for pod_set in self.workload["spec"]["podSets"]]

    def pod(self, index: int, flavors: Sequence[FlavorView] = (), *, queued: bool = False) -> PodView:
        """A pod of a pod set with these flavors applied; `queued` adds the toleration for requested machines."""
        template = self.templates[index]
        metadata = template.get("metadata") or {}
        obj = {
            "metadata": {
                "name": self.view.name,
                "namespace": self.namespace,
                "labels": metadata.get("labels") or {},
                "annotations": metadata.get("annotations") or {},
            },
            "spec": template.get("spec") or {},
        }
        spec = extended_resource_toleration(pod_defaults(obj))["spec"]
        labels: dict[str, str] = {}
        tolerations = list(spec.get("tolerations") or ())
        if queued:
            tolerations.append({"key": well_known.QUEUED, "operator": "Exists"})
        for flavor in flavors:
            labels.update(flavor.labels)
            tolerations += [_written(toleration) for toleration in flavor.tolerations]
        selector = {**labels, **(spec.get("nodeSelector") or {})}
        return PodView({**obj, "spec": {**spec, "nodeSelector": selector, "tolerations": tolerations}})


def _written(toleration: Toleration) -> dict[str, str]:
    return {field: value for field, value in toleration._asdict().items() if value}


@dataclass(frozen=True, slots=True, eq=False)
class LintedPodSet:
    """A pod set, with its queue and flavor assignment."""

    work: LintedWork
    index: int
    queue: ClusterQueue
    assignment: PodSetAssignment

    @property
    def path(self) -> str:
        """The path of its pod spec."""
        return f"{self.work.paths[self.index]}.spec"

    @property
    def who(self) -> str:
        """Its name in messages."""
        sets = self.work.view.pod_sets
        return "it" if len(sets) == 1 else f"pod set {sets[self.index].name}"


def parts_of(
    works: Sequence[LintedWork], queue_of: Callable[[LintedWork], ClusterQueue | None], snapshot: Snapshot
) -> Iterator[LintedPodSet]:
    """The pod sets whose ClusterQueue is known, each with its minimum count."""
    for work in works:
        queue = queue_of(work)
        if queue is None:
            continue
        for index, pod_set in enumerate(work.workload["spec"]["podSets"]):
            alone = WorkloadView({"metadata": work.workload["metadata"], "spec": {"podSets": [pod_set]}})
            least = alone.pod_sets[0].min_count
            count = alone.pod_sets[0].count if least is None else least
            search = FlavorAssigner(alone, queue, snapshot, None, None)
            yield LintedPodSet(work, index, queue, search.assign([count]).pod_sets[0])
