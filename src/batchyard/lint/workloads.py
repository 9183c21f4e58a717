"""Work: Jobs, JobSets and bare Workloads, with the Workload that each would get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.admission_plugins.pods import extended_resource_toleration
from batchyard.api import well_known
from batchyard.api.defaults.kubernetes import pod_defaults
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.pod import Toleration
from batchyard.api.views.pods import PodView
from batchyard.api.views.queues import FlavorView
from batchyard.api.views.workload import WorkloadView


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
