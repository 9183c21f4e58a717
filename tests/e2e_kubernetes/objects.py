"""Objects for a cluster."""

from collections.abc import Iterator
from typing import Any

V1BETA2 = "kueue.x-k8s.io/v1beta2"


def kueue(kind: str, name: str, spec: Any, version: str = V1BETA2, **metadata: Any) -> dict[str, Any]:
    """An object of Kueue."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def queue(name: str, **spec: Any) -> Iterator[dict[str, Any]]:
    """A flavor, a ClusterQueue of four CPUs, and a LocalQueue in the default Namespace."""
    resources = [{"name": "cpu", "nominalQuota": "4"}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": resources}]}
    yield kueue("ResourceFlavor", name, {"nodeLabels": {"pool": name}})
    yield kueue("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": [group], **spec})
    yield kueue("LocalQueue", name, {"clusterQueue": name}, namespace="default")


def template(cpu: str, lasts: str = "1s") -> dict[str, Any]:
    """A pod template with requests of CPU and a run time."""
    container = {"name": "main", "image": "python", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"annotations": {"batchyard.dev/runtime": lasts}}
    return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}


def job(name: str, of: str, pods: dict[str, Any], priority: str = "") -> dict[str, Any]:
    """A Job for a queue, without `suspend`."""
    labels = {"kueue.x-k8s.io/queue-name": of, **({"kueue.x-k8s.io/priority-class": priority} if priority else {})}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": pods}}


def job_set(name: str, of: str, pods: dict[str, Any], replicas: int) -> dict[str, Any]:
    """A JobSet for a queue, with a number of Jobs."""
    metadata = {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": of}}
    each = {"spec": {"parallelism": 1, "completions": 1, "template": pods}}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": replicas, "template": each}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
