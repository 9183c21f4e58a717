"""Scenes with the same outcome in each environment: applied objects, and durations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from batchyard.api.meta import with_path

Obj = Mapping[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACE = "default"
_LONG = "1000h"
KUEUE = "kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class SceneStep:
    """Applied objects or crashed machines, and the seconds until all controllers are done."""

    objects: Sequence[Obj] = ()
    lasts: float = 10
    crash: str = ""


@dataclass(frozen=True)
class Scene:
    """The steps of a scene, the controllers of the operator, and the speed of time."""

    steps: Sequence[SceneStep]
    controllers: str = "admission"
    speed: int = 60
    fair_sharing: bool = False
    cluster: Path | None = None
    topology: Obj | None = None
    #: Additional options of the operator.
    options: Sequence[str] = field(default=())


def flavor(name: str) -> Obj:
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}}


def queue(name: str, cpu: int | Mapping[str, int], cohort: str = "", **spec: Any) -> list[Obj]:
    """Return a ClusterQueue with CPU quota by flavor, and its LocalQueue."""
    quotas = {"plain": cpu} if isinstance(cpu, int) else cpu
    flavors = [{"name": each, "resources": [{"name": "cpu", "nominalQuota": n}]} for each, n in quotas.items()]
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}], **spec}
    if cohort:
        spec["cohortName"] = cohort
    local = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"clusterQueue": name}}
    return [
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": KUEUE, "kind": "LocalQueue", **local},
    ]


def pod(cpu: int = 1, **spec: Any) -> Obj:
    container = {"name": "main", "image": "python:3.12", "resources": {"requests": {"cpu": str(cpu)}}}
    return {"spec": {"restartPolicy": "Never", "containers": [container], **spec}}


def job(name: str, queue: str, count: int = 1, priority: str = "", **notes: str) -> Obj:
    """Return a Job of `count` CPUs; by default it outlasts the scene."""
    labels = {"kueue.x-k8s.io/queue-name": queue}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    annotations = {f"batchyard.dev/{note}": text for note, text in {"runtime": _LONG, **notes}.items()}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
    spec = {"suspend": True, "parallelism": count, "completions": count, "template": pod()}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def jobset(name: str, queue: str, replicas: int, runtime: str, exit_code: str, **spec: Any) -> Obj:
    """Return a JobSet of Jobs with one pod each."""
    notes = {"batchyard.dev/runtime": runtime, "batchyard.dev/exit-code": exit_code}
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"kueue.x-k8s.io/queue-name": queue},
        "annotations": notes,
    }
    template = {"spec": {"backoffLimit": 0, "parallelism": 1, "completions": 1, "template": pod()}}
    jobs = [{"name": "worker", "replicas": replicas, "template": template}]
    spec = {"suspend": True, "replicatedJobs": jobs, **spec}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def priority(name: str, value: int) -> Obj:
    return {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}


def of_example(*parts: str, runtime: str = "") -> list[Obj]:
    """Return the objects of an example's file without submit times, which the steps define."""
    own = {"batchyard.dev/runtime": runtime} if runtime else {}
    objects: list[Obj] = []
    for obj in yaml.safe_load_all(EXAMPLES.joinpath(*parts).read_text("utf-8")):
        notes = {k: v for k, v in obj["metadata"].get("annotations", {}).items() if k != "batchyard.dev/submit-at"}
        objects.append({**obj, "metadata": {**obj["metadata"], "annotations": {**notes, **own}}})
    return objects


PREEMPTION = Scene(
    [
        SceneStep([flavor("plain"), priority("high", 100), priority("low", 1)]),
        SceneStep(queue("shared", 4, preemption={"withinClusterQueue": "LowerPriority"})),
        SceneStep([job("low-1", "shared", 2, "low")]),
        SceneStep([job("low-2", "shared", 2, "low")]),
        SceneStep([job("waits", "shared", 1, "low")]),
        SceneStep([job("high", "shared", 2, "high", runtime="60s")], 30),
        SceneStep([], 120),
    ]
)
# One flavor: with two, the message of the preempted workload depends on the cycle in which it is requeued, because the
# next cycle continues at the flavor after the one of a lost nomination.
BORROWING = Scene(
    [
        SceneStep([flavor("plain")]),
        SceneStep(queue("red", 2, "all", preemption={"reclaimWithinCohort": "Any"})),
        SceneStep(queue("blue", 2, "all", preemption={"reclaimWithinCohort": "Any"})),
        SceneStep([job("red-1", "red", 2)]),
        SceneStep([job("red-2", "red", 2)]),
        SceneStep([job("red-3", "red", 1)]),
        SceneStep([job("red-4", "red", 2)]),
        SceneStep([job("blue-1", "blue", 2)], 30),
    ]
)
IN_PART = Scene(
    [
        SceneStep([flavor("plain")]),
        SceneStep(queue("shared", 1)),
        SceneStep(
            [
                with_path(
                    job("less", "shared", 3), ("metadata", "annotations", "kueue.x-k8s.io/job-min-parallelism"), "1"
                )
            ]
        ),
    ]
)
FAIR_SHARING = Scene(
    [
        SceneStep([flavor("plain")]),
        *[
            SceneStep(
                queue(name, quota, "all", fairSharing={"weight": weight}, preemption={"reclaimWithinCohort": "Any"})
            )
            for name, quota, weight in (("a", 0, "1"), ("b", 0, "2"), ("lender", 6, "1"))
        ],
        *[SceneStep([job(f"a-{number}", "a")]) for number in range(6)],
        *[SceneStep([job(f"b-{number}", "b")], 20) for number in range(4)],
    ],
    fair_sharing=True,
    options=("--fair-sharing",),
)
FAILING = Scene(
    [
        SceneStep([flavor("plain")]),
        SceneStep(queue("shared", 4)),
        SceneStep([jobset("fails", "shared", 1, "30s", "1", failurePolicy={"maxRestarts": 2})], 40),
        SceneStep([jobset("works", "shared", 3, "60s", "0")], 120),
        SceneStep([], 240),
    ],
    controllers="admission,jobset",
)
PROVISIONING = Scene(
    [
        SceneStep(of_example("dws", "platform.yaml"), 60),
        SceneStep(of_example("dws", "jobs.yaml")[1:2], 1200),
        SceneStep(of_example("dws", "jobs.yaml")[2:3], 1800),
    ],
    controllers="admission,provisioning",
    speed=600,
    cluster=EXAMPLES / "dws" / "cluster.yaml",
)
HOTSWAP = Scene(
    [
        SceneStep(of_example("hotswap", "platform.yaml"), 400),
        SceneStep(of_example("hotswap", "jobsets.yaml", runtime=_LONG)[:1], 200),
        SceneStep(of_example("hotswap", "jobsets.yaml", runtime=_LONG)[1:], 200),
        SceneStep(crash="high-jax-trillium", lasts=1500),
    ],
    controllers="admission,jobset,hotswap",
    speed=200,
    cluster=EXAMPLES / "hotswap" / "cluster.yaml",
)


def placed_jobset(name: str, queue: str) -> Obj:
    """Return a JobSet of two pods that need a rack together, and a machine each."""
    template = {**pod(2), "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}}
    job_template = {"spec": {"parallelism": 1, "completions": 1, "template": template}}
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"kueue.x-k8s.io/queue-name": queue},
        "annotations": {"batchyard.dev/runtime": _LONG},
    }
    spec = {"suspend": True, "replicatedJobs": [{"name": "slice", "replicas": 2, "template": job_template}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


_LEVELS = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
_TOPOLOGY = {"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": _LEVELS}}
_MACHINES = {"cloud.google.com/machine-family": "e2"}
TOPOLOGY = Scene(
    [
        SceneStep([], 400),
        SceneStep([_TOPOLOGY, {**flavor("plain"), "spec": {"nodeLabels": _MACHINES, "topologyName": "racks"}}]),
        SceneStep(queue("placed", 1000)),
        SceneStep([placed_jobset("placed", "placed")], 60),
        SceneStep([placed_jobset("other", "placed")], 60),
    ],
    controllers="admission",
    speed=200,
    cluster=Path(__file__).with_name("racks.yaml"),
    topology=_TOPOLOGY,
)
#: Over HTTP, a new pod may be released onto the failed node before the failure is recorded, and then fails once more.
FAILING_NODE = replace(TOPOLOGY, steps=(*TOPOLOGY.steps, SceneStep(crash="placed", lasts=1000)))
