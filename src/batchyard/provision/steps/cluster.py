"""Steps on any cluster: connect, apply manifests in order, wait, check, and remove everything again.

Writes are server-side applies with one field manager, so that applying again changes nothing and reverts changes by
others to the platform's file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from batchyard.api.yaml_documents import read_documents
from batchyard.operator_manifests.deployment import WEBHOOK_PORT
from batchyard.provision.engine import KUEUE_WEBHOOK_PORT, deployed
from batchyard.provision.model import PlatformEngine, PlatformModel, Queue
from batchyard.provision.render import MANIFESTS, driver_resources
from batchyard.provision.steps.model import PlatformStep, Probe, Retry, StepCommand, demand, run, waiting
from batchyard.provision.steps.probe_parsers import (
    NOT_THERE,
    all_are,
    diff_is_empty,
    fails,
    has_quota,
    is_not_provided,
    none_is,
    prints_nothing,
    succeeds,
)

# --- manifests ---
#
# The rendered manifests as parts that are applied together, in order, with their objects.


FOLDER: Final = f"{MANIFESTS}/"
KUSTOMIZATION: Final = "kustomization.yaml"


class ManifestPart(NamedTuple):
    """A top-level file or folder of the rendered manifests, and its objects."""

    path: str
    objects: Sequence[Mapping[str, Any]]
    #: Whether it is a kustomization of its own, which may reference remote resources.
    is_kustomized: bool = False

    @property
    def name(self) -> str:
        """The name of its step: `20-teams` for manifests/20-teams or manifests/20-teams.yaml."""
        return self.path.rpartition("/")[2].removesuffix(".yaml")

    @property
    def words(self) -> tuple[str, ...]:
        """The kubectl arguments that select it."""
        return (f"--kustomize={self.path}",) if self.is_kustomized else ("--recursive", f"--filename={self.path}")

    def named(self, kind: str) -> list[str]:
        """Return the names of its objects of a kind."""
        return [obj["metadata"]["name"] for obj in self.objects if obj["kind"] == kind]

    def first(self, kind: str) -> Mapping[str, Any] | None:
        """Return its first object of a kind; None if it has none."""
        return next((obj for obj in self.objects if obj["kind"] == kind), None)

    def images(self) -> list[str]:
        """Return the images of its Deployments and DaemonSets."""
        specs = [obj["spec"]["template"]["spec"] for obj in self.objects if obj["kind"] in ("Deployment", "DaemonSet")]
        return [container["image"] for spec in specs for container in spec["containers"]]


def parts(platform: PlatformModel, files: Mapping[str, str]) -> list[ManifestPart]:
    """Return the parts of the rendered manifests in the order of their names; GPU drivers come last."""
    paths = sorted(path for path in files if path.startswith(FOLDER) and path != FOLDER + KUSTOMIZATION)
    found = []
    for top, grouped in groupby(paths, key=lambda path: "/".join(path.split("/")[:2])):
        of_top = list(grouped)
        objects = [obj for path in of_top if _is_manifest(path) for obj in _objects(files[path])]
        found.append(ManifestPart(top, objects, f"{top}/{KUSTOMIZATION}" in of_top))
    return [*found, *(ManifestPart(url, ()) for url in driver_resources(platform))]


def _is_manifest(path: str) -> bool:
    return path.endswith(".yaml") and not path.endswith(KUSTOMIZATION)


@lru_cache(maxsize=64)
def _objects(text: str) -> Sequence[Mapping[str, Any]]:
    found = [document.value for document in read_documents(text)]
    return [obj for obj in found if isinstance(obj, dict) and "kind" in obj]


#: The field manager.
MANAGER: Final = "batchyard-platform"
_SERVER_SIDE: Final = ("--server-side", "--force-conflicts", f"--field-manager={MANAGER}")
#: Timeouts for changes that the cluster makes itself, in seconds.
API_PATIENCE: Final = 600
KINDS_PATIENCE: Final = 120
ENGINE_PATIENCE: Final = 600
QUEUES_PATIENCE: Final = 300
NODES_PATIENCE: Final = 1200
DELETE_LIMIT: Final = 900
DELETE_PATIENCE: Final = 300
_FINALIZERS: Final = "finalizers need a running controller: does the engine run?"
_QUEUES: Final = "clusterqueues.kueue.x-k8s.io"
_LOCAL_QUEUES: Final = "localqueues.kueue.x-k8s.io"
WORKLOADS: Final = "workloads.kueue.x-k8s.io"
#: On a ClusterQueue: destroy has stopped it.
_STOPPED: Final = "platform.batchyard.dev/stopped-by"
#: Transient errors: an API server or webhook that is starting, kinds that were created recently.
_PASSES: Final = (
    "connection refused",
    "connection reset by peer",
    "TLS handshake timeout",
    "i/o timeout",
    "unexpected EOF",
    "failed calling webhook",
    "no endpoints available",
    "the server is currently unable to handle the request",
    "ensure CRDs are installed first",
    "etcdserver:",
    "Too many requests",
)
_AGAIN: Final = Retry(5, 10, _PASSES)


class ClusterConnection(NamedTuple):
    """How kubectl reaches the cluster; '' uses kubectl's default."""

    kubeconfig: str = ""
    context: str = ""

    def kubectl(self, *words: str, sent: str = "", limit_seconds: int = 600) -> StepCommand:
        """Return a kubectl command for this cluster."""
        where = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        where += [f"--context={self.context}"] if self.context else []
        return run("kubectl", *where, *words, sent=sent, limit_seconds=limit_seconds)

    @property
    def ask(self) -> StepCommand:
        """The command that asks whether the API server is ready."""
        return self.kubectl("get", "--raw=/readyz", "--request-timeout=20s", limit_seconds=60)


def api_server(reached: ClusterConnection) -> PlatformStep:
    """Wait until the API server is ready."""
    return PlatformStep(
        "api-server",
        "wait until the API server answers",
        probes=(Probe(reached.ask, succeeds()),),
        patience_seconds=API_PATIENCE,
        carries=True,
        remedy="does the cluster exist, and can this machine reach its control plane?",
    )


def may_write(reached: ClusterConnection, name: str) -> PlatformStep:
    """Demand cluster-admin. Without Terraform no question has named the cluster yet, so the step does."""
    can_i = ("auth", "can-i", "create", "customresourcedefinitions.apiextensions.k8s.io")
    return demand(
        "rights",
        f"you have the rights to install {name} in the cluster",
        Probe(reached.kubectl(*can_i), succeeds()),
        "cluster-admin is required",
    )


def applied(reached: ClusterConnection, part: ManifestPart) -> PlatformStep:
    """Apply one part of the manifests."""
    return PlatformStep(
        f"apply-{part.name}",
        f"apply {part.path}{_counted(part)}",
        commands=(reached.kubectl("apply", *_SERVER_SIDE, *part.words),),
        probes=(Probe(reached.kubectl("diff", *_SERVER_SIDE, *part.words), diff_is_empty),),
        retry=_AGAIN,
        is_checked=False,
    )


def _counted(part: ManifestPart) -> str:
    """Describe a part's objects: `: 2 ClusterQueue, 1 Cohort`."""
    kinds = [obj["kind"] for obj in part.objects]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f": {counted}" if counted else ""


def installed(
    reached: ClusterConnection, engine: ManifestPart, platform: PlatformModel, flavor: Mapping[str, Any] | None
) -> Iterator[PlatformStep]:
    """Install the engine; wait until its kinds are served, its Deployments are available and its webhooks answer."""
    yield applied(reached, engine)
    if names := engine.named("CustomResourceDefinition"):
        lookup = reached.kubectl("get", "customresourcedefinitions", *names, "--output=json")
        yield waiting(
            "kinds",
            "wait until the API server serves the engine's kinds",
            [Probe(lookup, all_are("Established", names))],
            KINDS_PATIENCE,
        )
    for namespace, name in deployed(platform):
        lookup = reached.kubectl("get", "deployments", name, f"--namespace={namespace}", "--output=json")
        yield waiting(
            f"available-{name}",
            f"wait until {namespace}/{name} is available",
            [Probe(lookup, all_are("Available", (f"{namespace}/{name}",)))],
            ENGINE_PATIENCE,
            f"kubectl --namespace={namespace} describe pods; kubectl --namespace={namespace} logs deployment/{name}",
        )
    if flavor is not None:
        yield webhooks(reached, flavor, _opened(platform))


def runs_batchyard(reached: ClusterConnection) -> Probe:
    """Return a probe that holds if the cluster is not a `batchyard up`, which has its own engine."""
    return Probe(reached.kubectl("get", "--raw=/batchyard/status"), fails("it is a `batchyard up` with its own engine"))


def _opened(platform: PlatformModel) -> str:
    """Return the hint for webhooks that do not answer. On GKE our Terraform opens the port to the control plane."""
    port = WEBHOOK_PORT if platform.engine is PlatformEngine.BATCHYARD else KUEUE_WEBHOOK_PORT
    return f"do the engine's pods run, and can the API server reach their port {port}?"


def webhooks(reached: ClusterConnection, flavor: Mapping[str, Any], remedy: str) -> PlatformStep:
    """Wait until a dry-run apply of a flavor succeeds: then conversion, defaulting and validation work."""
    dry = reached.kubectl("apply", *_SERVER_SIDE, "--dry-run=server", "--filename=-", sent=json.dumps(flavor))
    return waiting(
        "webhooks",
        "wait until the engine's webhooks answer",
        [Probe(dry, succeeds())],
        ENGINE_PATIENCE,
        remedy,
    )


def resumed(reached: ClusterConnection, cluster_queues: Sequence[str], stopped: Sequence[str]) -> PlatformStep:
    """Resume queues that an incomplete destroy has stopped; `stopped`: those that the file stops."""
    going = [name for name in cluster_queues if name not in stopped]
    unmarked = {"metadata": {"annotations": {_STOPPED: None}}}
    patches = ((going, {**unmarked, "spec": {"stopPolicy": "None"}}), (stopped, unmarked))
    return PlatformStep(
        "resume-queues",
        "resume queues that an earlier destroy has stopped",
        commands=tuple(
            reached.kubectl("patch", _QUEUES, *names, "--type=merge", f"--patch={json.dumps(patch)}")
            for names, patch in patches
            if names
        ),
        probes=(Probe(_queues(reached, cluster_queues), none_is(_is_stopped_by_us, "stopped")),),
        retry=_AGAIN,
    )


def _queues(reached: ClusterConnection, names: Sequence[str]) -> StepCommand:
    return reached.kubectl("get", _QUEUES, *names, "--ignore-not-found", "--output=json")


def _is_stopped_by_us(queue: Mapping[str, Any]) -> bool:
    return _STOPPED in (queue["metadata"].get("annotations") or {})


def _is_not_drained(queue: Mapping[str, Any]) -> bool:
    return bool(queue["spec"].get("stopPolicy") != "HoldAndDrain")


def queues_active(reached: ClusterConnection, queues: Sequence[Queue]) -> Iterator[PlatformStep]:
    """Wait until all queues are Active, except those that the platform's file stops."""
    stopped = [queue.name for queue in queues if queue.is_stopped]
    going = [queue for queue in queues if not queue.is_stopped]
    names = [queue.name for queue in going]
    if queues:
        yield resumed(reached, [queue.name for queue in queues], stopped)
    if names:
        yield waiting(
            "cluster-queues",
            f"wait until the ClusterQueues are Active ({len(names)})",
            [Probe(_queues(reached, names), all_are("Active", names))],
            QUEUES_PATIENCE,
            "kubectl describe clusterqueues; `batchyard lint` on manifests/ reports their errors",
        )
    wanted = [f"{row.namespace}/{row.name}" for queue in going for row in queue.local_queues]
    if wanted:
        lookup = reached.kubectl("get", _LOCAL_QUEUES, "--all-namespaces", "--output=json")
        yield waiting(
            "local-queues",
            f"wait until the LocalQueues are Active ({len(wanted)})",
            [Probe(lookup, all_are("Active", wanted))],
            QUEUES_PATIENCE,
            "kubectl describe localqueues --all-namespaces",
        )


def job_would_queue(reached: ClusterConnection, namespace: str, local_queue: str) -> PlatformStep:
    """Check at last that a team's Job would be accepted (dry run)."""
    return waiting(
        "last-check",
        f"a Job in {namespace}, queue {local_queue}, would be accepted (dry run)",
        [
            Probe(
                reached.kubectl(
                    "create", "--dry-run=server", "--filename=-", sent=json.dumps(_job(namespace, local_queue))
                ),
                succeeds(),
            )
        ],
        120,
    )


def _job(namespace: str, local_queue: str) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": requests, "limits": requests}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "platform-check-",
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": local_queue},
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def drained(reached: ClusterConnection, cluster_queues: Sequence[str]) -> PlatformStep:
    """Stop admission, and evict admitted Workloads."""
    patch = {"metadata": {"annotations": {_STOPPED: "destroy"}}, "spec": {"stopPolicy": "HoldAndDrain"}}
    words = ("patch", _QUEUES, *cluster_queues, "--type=merge", f"--patch={json.dumps(patch)}")
    return PlatformStep(
        "stop-queues",
        f"stop the ClusterQueues ({len(cluster_queues)}): admission stops, and running Workloads are evicted",
        commands=(replace(reached.kubectl(*words), tolerates=NOT_THERE),),
        probes=(Probe(_queues(reached, cluster_queues), none_is(_is_not_drained, "not stopped")),),
        retry=_AGAIN,
    )


def emptied(
    reached: ClusterConnection, namespaces: Sequence[str], besides: Sequence[str] = ()
) -> Iterator[PlatformStep]:
    """Delete the teams' jobs and pods, and their objects of the kinds `besides`."""
    kinds = ("jobsets.jobset.x-k8s.io", ",".join(("jobs.batch", "pods", *besides)))
    for namespace in namespaces:
        here = (f"--namespace={namespace}", "--ignore-not-found")
        deletes = [reached.kubectl("delete", kind, "--all", *here, limit_seconds=DELETE_LIMIT) for kind in kinds]
        looks = [reached.kubectl("get", kind, *here, "--output=name") for kind in kinds]
        yield PlatformStep(
            f"empty-{namespace}",
            f"delete what runs in {namespace}",
            commands=tuple(replace(delete, tolerates=NOT_THERE) for delete in deletes),
            probes=tuple(Probe(look, prints_nothing("left")) for look in looks),
            retry=_AGAIN,
            patience_seconds=DELETE_PATIENCE,
            remedy=_FINALIZERS,
        )


def deleted(reached: ClusterConnection, part: ManifestPart) -> PlatformStep:
    """Delete a part of the manifests."""
    delete = reached.kubectl("delete", "--ignore-not-found", "--wait", *part.words, limit_seconds=DELETE_LIMIT)
    return PlatformStep(
        f"delete-{part.name}",
        f"delete {part.path}{_counted(part)}",
        commands=(replace(delete, tolerates=NOT_THERE),),
        probes=(
            Probe(
                reached.kubectl("get", "--ignore-not-found", "--output=json", *part.words),
                none_is(is_not_provided, "left"),
            ),
        ),
        retry=_AGAIN,
        patience_seconds=DELETE_PATIENCE,
        remedy=_FINALIZERS,
    )


def no_other_platforms(reached: ClusterConnection) -> Probe:
    """Return a probe that holds if no queue and no JobSet is left: deleting the engine's kinds deletes all their
    objects.
    """
    kinds = f"{_QUEUES},{_LOCAL_QUEUES},jobsets.jobset.x-k8s.io"
    lookup = reached.kubectl("get", kinds, "--all-namespaces", "--ignore-not-found", "--output=name")
    return Probe(lookup, prints_nothing("objects of other platforms"))


def running_workloads(reached: ClusterConnection) -> PlatformStep:
    """Report the Workloads that are admitted."""
    lookup = reached.kubectl("get", WORKLOADS, "--all-namespaces", "--ignore-not-found", "--output=json")
    return PlatformStep(
        "what-runs",
        "list running Workloads",
        probes=(Probe(lookup, none_is(has_quota, "running Workloads")),),
        is_optional=True,
    )


def scaled_down(reached: ClusterConnection, pools_that_stay: Sequence[str]) -> PlatformStep:
    """Wait until the scaled nodes are gone; Terraform deletes the remaining ones with the cluster."""
    label = "cloud.google.com/gke-nodepool"
    selector = f"{label} notin ({','.join(pools_that_stay)})" if pools_that_stay else label
    return PlatformStep(
        "scaled-down",
        "wait until the nodes that were created for Jobs are gone",
        probes=(
            Probe(reached.kubectl("get", "nodes", f"--selector={selector}", "--output=name"), prints_nothing("nodes")),
        ),
        patience_seconds=NODES_PATIENCE,
        is_optional=True,
    )
