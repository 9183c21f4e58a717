"""Jobs, JobSets and bare Workloads for lint rules, each with its Workload, pod sets and assigned flavors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.admission_plugins.built_in import with_extended_tolerations
from batchyard.api import well_known
from batchyard.api.defaults import pod_defaults
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.node import FlavorView, Toleration
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import PodSet, WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_assigner import FlavorAssigner, PodSetAssignment
from batchyard.scheduling.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class LintedJob:
    """A manifest's Job, JobSet or bare Workload, with the Workload that Kueue would create for it."""

    manifest: Manifest
    #: The Workload that Kueue creates for the job.
    workload: Obj
    view: WorkloadView
    #: The field path of the pod template of each pod set.
    paths: Sequence[str]
    #: The kind and name of the priority class; empty without a class.
    class_kind: str = ""
    class_name: str = ""

    @property
    def obj(self) -> Obj:
        """The Job, JobSet or Workload object in the manifest."""
        return self.manifest.obj

    @property
    def is_job(self) -> bool:
        """Whether the object is a Job or JobSet, whose label names its queue, and not a bare Workload."""
        return bool(self.manifest.obj["kind"] != "Workload")

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self.view.namespace

    @property
    def queue(self) -> str:
        """The name of the job's LocalQueue; '' if it names none."""
        name: str = self.workload["spec"].get("queueName") or ""
        return name

    @property
    def templates(self) -> Sequence[Mapping[str, Any]]:
        """The pod template of each pod set, in order."""
        return [pod_set["template"] for pod_set in self.workload["spec"]["podSets"]]

    def pod(self, index: int, flavors: Sequence[FlavorView] = (), *, with_queued_toleration: bool = False) -> PodView:
        """Return a pod of pod set `index` with the node selector and tolerations that admission in `flavors` adds.

        With `with_queued_toleration`, the pod also tolerates the taint of machines from queued provisioning.
        """
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
        spec = with_extended_tolerations(pod_defaults(obj))["spec"]
        labels: dict[str, str] = {}
        tolerations = list(spec.get("tolerations") or ())
        if with_queued_toleration:
            tolerations.append({"key": well_known.QUEUED, "operator": "Exists"})
        for flavor in flavors:
            labels.update(flavor.labels)
            tolerations += [_toleration_as_dict(toleration) for toleration in flavor.tolerations]
        node_selector = {**labels, **(spec.get("nodeSelector") or {})}
        return PodView({**obj, "spec": {**spec, "nodeSelector": node_selector, "tolerations": tolerations}})


def _toleration_as_dict(toleration: Toleration) -> dict[str, str]:
    return {field: value for field, value in toleration._asdict().items() if value}


@dataclass(frozen=True, slots=True, eq=False)
class LintedPodSet:
    """A pod set of a linted job, with its ClusterQueue and the flavors that the scheduler would assign."""

    job: LintedJob
    index: int
    queue: ClusterQueue
    assignment: PodSetAssignment

    @property
    def path(self) -> str:
        """The field path of the pod set's pod spec in the manifest."""
        return f"{self.job.paths[self.index]}.spec"

    @property
    def subject(self) -> str:
        """The pod set as messages name it: `the job` if the job has no other pod set, else `pod set NAME`."""
        all_pod_sets = self.job.view.pod_sets
        return "the job" if len(all_pod_sets) == 1 else f"pod set {all_pod_sets[self.index].name}"


def assign_flavors(
    jobs: Sequence[LintedJob],
    queue_of: Callable[[LintedJob], ClusterQueue | None],
    snapshot: Snapshot,
    charged_pod_sets_of: Callable[[LintedJob], Sequence[PodSet]],
) -> Iterator[LintedPodSet]:
    """Yield each pod set of jobs with a known ClusterQueue, with the flavors that its pods would get.

    The flavors are those for the minimum pod count, or without one, for the full pod count.
    """
    for job in jobs:
        queue = queue_of(job)
        if queue is None:
            continue
        for index, pod_set in enumerate(job.workload["spec"]["podSets"]):
            single_pod_set = WorkloadView({"metadata": job.workload["metadata"], "spec": {"podSets": [pod_set]}})
            single_pod_set.pod_sets = (charged_pod_sets_of(job)[index],)
            min_count = single_pod_set.pod_sets[0].min_count
            pod_count = single_pod_set.pod_sets[0].count if min_count is None else min_count
            assigner = FlavorAssigner(single_pod_set, queue, snapshot, None, None)
            yield LintedPodSet(job, index, queue, assigner.assign([pod_count]).pod_sets[0])
