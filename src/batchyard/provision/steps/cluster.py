"""Steps on any Kubernetes cluster: connect, apply the manifests in order, wait, check, and remove everything.

Each step that waits has a time limit. Manifests are applied server-side with one field manager. So a repeated apply
changes nothing, or restores fields of the platform file that another client changed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from batchyard.api.yaml_documents import read_documents
from batchyard.operator_manifests.deployment import WEBHOOK_PORT
from batchyard.provision.engine import KUEUE_WEBHOOK_PORT, engine_deployments
from batchyard.provision.model import PlatformEngine, PlatformModel, Queue
from batchyard.provision.render import ENGINE_FOLDER, MANIFESTS_FOLDER, driver_resources
from batchyard.provision.steps import probe_parsers
from batchyard.provision.steps.model import (
    CommandOutput,
    PlatformStep,
    Probe,
    Retry,
    StepCommand,
    command,
    requirement_step,
    wait_step,
)
from batchyard.provision.yaml_output import labels_of

# The rendered manifests, in parts: each part is a file or folder that one step applies.


FOLDER_PREFIX: Final = f"{MANIFESTS_FOLDER}/"
KUSTOMIZATION: Final = "kustomization.yaml"


class ManifestPart(NamedTuple):
    """A top-level file or folder of the rendered manifests, which one step applies, and the objects in it."""

    #: The path in the rendered folder, or the URL of the GPU driver installer, which has no `objects`.
    path: str
    objects: Sequence[Mapping[str, Any]]
    #: Whether the folder is a kustomization, which may reference remote resources.
    is_kustomized: bool = False

    @property
    def name(self) -> str:
        """The name in step names: `20-teams` for manifests/20-teams and manifests/20-teams.yaml."""
        return self.path.rpartition("/")[2].removesuffix(".yaml")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kubectl arguments that select this file or folder."""
        return (f"--kustomize={self.path}",) if self.is_kustomized else ("--recursive", f"--filename={self.path}")

    def names_of_kind(self, kind: str) -> list[str]:
        """Return the names of the objects of one kind in this file or folder."""
        return [obj["metadata"]["name"] for obj in self.objects if obj["kind"] == kind]

    def first_of_kind(self, kind: str) -> Mapping[str, Any] | None:
        """Return the first object of one kind in this file or folder; None if there is none."""
        return next((obj for obj in self.objects if obj["kind"] == kind), None)

    def images(self) -> list[str]:
        """Return the container images of the Deployments and DaemonSets in this file or folder."""
        specs = [obj["spec"]["template"]["spec"] for obj in self.objects if obj["kind"] in ("Deployment", "DaemonSet")]
        return [container["image"] for spec in specs for container in spec["containers"]]


def split_manifests(platform: PlatformModel, files: Mapping[str, str]) -> list[ManifestPart]:
    """Return the top-level files and folders of the rendered manifests by path, then the GPU driver installer, if any.

    `files` has the text of each rendered file by path.
    """
    paths = sorted(path for path in files if path.startswith(FOLDER_PREFIX) and path != FOLDER_PREFIX + KUSTOMIZATION)
    manifest_parts = []
    for group_path, grouped_paths in groupby(paths, key=lambda path: "/".join(path.split("/")[:2])):
        group_paths = list(grouped_paths)
        objects = [obj for path in group_paths if _is_manifest_path(path) for obj in _parse_objects(files[path])]
        manifest_parts.append(ManifestPart(group_path, objects, f"{group_path}/{KUSTOMIZATION}" in group_paths))
    return [*manifest_parts, *(ManifestPart(url, ()) for url in driver_resources(platform))]


def _is_manifest_path(path: str) -> bool:
    return path.endswith(".yaml") and not path.endswith(KUSTOMIZATION)


@lru_cache(maxsize=64)
def _parse_objects(text: str) -> Sequence[Mapping[str, Any]]:
    documents = [document.value for document in read_documents(text)]
    return [obj for obj in documents if isinstance(obj, dict) and "kind" in obj]


#: The field manager of server-side apply.
FIELD_MANAGER: Final = "batchyard-platform"
_SERVER_SIDE: Final = ("--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}")
#: Timeouts of changes in the cluster, in seconds.
API_PATIENCE_SECONDS: Final = 600
KINDS_PATIENCE_SECONDS: Final = 120
ENGINE_PATIENCE_SECONDS: Final = 600
QUEUES_PATIENCE_SECONDS: Final = 300
NODES_PATIENCE_SECONDS: Final = 1200
DELETE_LIMIT_SECONDS: Final = 900
DELETE_PATIENCE_SECONDS: Final = 300
_FINALIZERS_REMEDY: Final = "finalizers need a running controller: check the pods of the engine"
_CLUSTER_QUEUES: Final = "clusterqueues.kueue.x-k8s.io"
_LOCAL_QUEUES: Final = "localqueues.kueue.x-k8s.io"
WORKLOADS: Final = "workloads.kueue.x-k8s.io"
#: Annotation of a ClusterQueue that `destroy` has stopped.
_STOPPED_ANNOTATION: Final = "platform.batchyard.dev/stopped-by"
#: Transient errors of an API server or webhook that is starting, and of kinds that are not served yet.
_TRANSIENT_ERRORS: Final = (
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
_TRANSIENT_ERROR_RETRY: Final = Retry(5, 10, _TRANSIENT_ERRORS)


class ClusterConnection(NamedTuple):
    """The kubeconfig and context that kubectl uses for the cluster; '' means kubectl's default."""

    kubeconfig: str = ""
    context: str = ""

    def kubectl(self, *arguments: str, stdin_text: str = "", limit_seconds: int = 600) -> StepCommand:
        """Return a kubectl command for this cluster, with its standard input (`stdin_text`) and its time limit."""
        options = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        options += [f"--context={self.context}"] if self.context else []
        return command("kubectl", *options, *arguments, stdin_text=stdin_text, limit_seconds=limit_seconds)

    @property
    def ready_command(self) -> StepCommand:
        """The kubectl command that checks whether the API server is ready."""
        return self.kubectl("get", "--raw=/readyz", "--request-timeout=20s", limit_seconds=60)


def api_server_step(connection: ClusterConnection) -> PlatformStep:
    """Return a step that waits until the cluster's API server is ready."""
    return PlatformStep(
        "api-server",
        "wait until the API server answers",
        probes=(Probe(connection.ready_command, probe_parsers.succeeds()),),
        patience_seconds=API_PATIENCE_SECONDS,
        is_prerequisite=True,
        remedy="check that the cluster exists and that this machine can reach its control plane",
    )


def require_admin_step(connection: ClusterConnection, platform_name: str) -> PlatformStep:
    """Return a step that requires the right to create CustomResourceDefinitions, which a cluster-admin has."""
    can_i_arguments = ("auth", "can-i", "create", "customresourcedefinitions.apiextensions.k8s.io")
    return requirement_step(
        "rights",
        f"you have the rights to install {platform_name} in the cluster",
        Probe(connection.kubectl(*can_i_arguments), probe_parsers.succeeds()),
        "cluster-admin is required",
    )


def own_namespaces_steps(
    connection: ClusterConnection, platform_name: str, manifest_parts: Sequence[ManifestPart]
) -> Iterator[PlatformStep]:
    """Yield a step that fails if a namespace in the manifests exists without the labels of this platform.

    Otherwise `create` would take over a namespace of others, and `destroy` would delete the objects of others in it.
    """
    names, labels = deleted_namespaces(manifest_parts), labels_of(platform_name)

    def is_foreign(namespace: Mapping[str, Any]) -> bool:
        return not labels.items() <= (namespace["metadata"].get("labels") or {}).items()

    if names:
        get_command = connection.kubectl("get", "namespaces", *names, "--ignore-not-found", "--output=json")
        label_arguments = " ".join(f"{label}={value}" for label, value in labels.items())
        yield requirement_step(
            "own-namespaces",
            f"the namespaces of {platform_name} are new or its own",
            Probe(get_command, probe_parsers.none_match(is_foreign, "without the labels of the platform")),
            "use another namespace, or turn off monitoring.stack; to hand over the namespace, which destroy then"
            f" deletes: kubectl label --overwrite namespace NAME {label_arguments}",
        )


def deleted_namespaces(manifest_parts: Sequence[ManifestPart]) -> list[str]:
    """Return the Namespaces of teams and monitoring in the manifests; `destroy` deletes them with all their objects."""
    return [name for part in manifest_parts if part.path != ENGINE_FOLDER for name in part.names_of_kind("Namespace")]


def kubectl_apply_step(connection: ClusterConnection, part: ManifestPart) -> PlatformStep:
    """Return a step that applies one top-level file or folder of the manifests."""
    return PlatformStep(
        f"apply-{part.name}",
        f"apply {part.path}{_describe_kind_counts(part)}",
        commands=(connection.kubectl("apply", *_SERVER_SIDE, *part.arguments),),
        probes=(Probe(connection.kubectl("diff", *_SERVER_SIDE, *part.arguments), probe_parsers.parse_kubectl_diff),),
        retry=_TRANSIENT_ERROR_RETRY,
        is_checked=False,
    )


def _describe_kind_counts(part: ManifestPart) -> str:
    kinds = [obj["kind"] for obj in part.objects]
    counts_text = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return f": {counts_text}" if counts_text else ""


def install_steps(
    connection: ClusterConnection, engine: ManifestPart, platform: PlatformModel, flavor: Mapping[str, Any] | None
) -> Iterator[PlatformStep]:
    """Yield steps that install the engine (batchyard or Kueue) and wait for its Deployments and webhooks.

    If `engine` contains CRDs, a step also waits for these. The step for the webhooks tries them with the ResourceFlavor
    `flavor`; it is left out if `flavor` is None.
    """
    yield kubectl_apply_step(connection, engine)
    if names := engine.names_of_kind("CustomResourceDefinition"):
        get_command = connection.kubectl("get", "customresourcedefinitions", *names, "--output=json")
        yield wait_step(
            "kinds",
            "wait until the API server serves the engine's kinds",
            [Probe(get_command, probe_parsers.all_have_condition("Established", names))],
            KINDS_PATIENCE_SECONDS,
        )
    for namespace, name in engine_deployments(platform):
        get_command = connection.kubectl("get", "deployments", name, f"--namespace={namespace}", "--output=json")
        yield wait_step(
            f"available-{name}",
            f"wait until {namespace}/{name} is available",
            [Probe(get_command, probe_parsers.all_have_condition("Available", (f"{namespace}/{name}",)))],
            ENGINE_PATIENCE_SECONDS,
            f"kubectl --namespace={namespace} describe pods; kubectl --namespace={namespace} logs deployment/{name}",
        )
    if flavor is not None:
        yield webhooks_step(connection, flavor, _webhook_remedy(platform))


def not_embedded_probe(connection: ClusterConnection) -> Probe:
    """Return a probe that fails if `batchyard up` runs the cluster, because it already runs batchyard's controllers."""
    return Probe(
        connection.kubectl("get", "--raw=/batchyard/status"),
        probe_parsers.fails("the cluster is run by `batchyard up`, which has its own engine"),
    )


def _webhook_remedy(platform: PlatformModel) -> str:
    webhook_port = WEBHOOK_PORT if platform.engine is PlatformEngine.BATCHYARD else KUEUE_WEBHOOK_PORT
    return f"check that the engine's pods run and that the API server can reach their port {webhook_port}"


def webhooks_step(connection: ClusterConnection, flavor: Mapping[str, Any], remedy: str) -> PlatformStep:
    """Return a step that waits until a dry-run apply of a ResourceFlavor passes the webhooks of Kueue or batchyard."""
    dry_run_command = connection.kubectl(
        "apply", *_SERVER_SIDE, "--dry-run=server", "--filename=-", stdin_text=json.dumps(flavor)
    )
    probe = Probe(dry_run_command, probe_parsers.succeeds())
    return wait_step("webhooks", "wait until the engine's webhooks answer", [probe], ENGINE_PATIENCE_SECONDS, remedy)


def resume_queues_steps(connection: ClusterConnection, queues: Sequence[Queue]) -> Iterator[PlatformStep]:
    """Yield steps for the ClusterQueues that an incomplete `destroy` has stopped, which have its annotation.

    The first step resumes them. Queues that the platform file stops stay stopped, and another step removes the
    annotation. A queue without the annotation is not changed, also if a user has stopped it.
    """
    annotation_patch = {"metadata": {"annotations": {_STOPPED_ANNOTATION: None}}}
    yield from _patch_marked_queues_step(
        connection,
        ("resume-queues", "resume queues that an earlier destroy has stopped"),
        [queue.name for queue in queues if not queue.is_stopped],
        {**annotation_patch, "spec": {"stopPolicy": "None"}},
    )
    yield from _patch_marked_queues_step(
        connection,
        ("unmark-queues", "remove the annotation of an earlier destroy from queues that the file stops"),
        [queue.name for queue in queues if queue.is_stopped],
        annotation_patch,
    )


def _patch_marked_queues_step(
    connection: ClusterConnection, description: tuple[str, str], names: Sequence[str], patch: Mapping[str, Any]
) -> Iterator[PlatformStep]:
    """Yield a step that patches those of the named ClusterQueues that `destroy` has stopped.

    An annotation marks these ClusterQueues. Nothing is yielded if `names` is empty.
    """
    if not names:
        return
    is_unmarked = probe_parsers.none_match(_is_stopped_by_destroy, "stopped")
    yield PlatformStep(
        *description,
        commands=(connection.kubectl("patch", "--filename=-", "--type=merge", f"--patch={json.dumps(patch)}"),),
        probes=(Probe(_get_queues(connection, names), is_unmarked),),
        stdin_from_probes=_marked_queues,
        retry=_TRANSIENT_ERROR_RETRY,
    )


def _marked_queues(outputs: Sequence[CommandOutput]) -> str:
    """Return a Kubernetes List of the listed ClusterQueues that `destroy` has stopped, with their names only."""
    queues = [queue for output in outputs for queue in probe_parsers.items_of(output.document() or {"items": []})]
    references = [
        {"apiVersion": queue["apiVersion"], "kind": queue["kind"], "metadata": {"name": queue["metadata"]["name"]}}
        for queue in queues
        if _is_stopped_by_destroy(queue)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": references})


def _get_queues(connection: ClusterConnection, names: Sequence[str]) -> StepCommand:
    return connection.kubectl("get", _CLUSTER_QUEUES, *names, "--ignore-not-found", "--output=json")


def _is_stopped_by_destroy(queue: Mapping[str, Any]) -> bool:
    return _STOPPED_ANNOTATION in (queue["metadata"].get("annotations") or {})


def _is_stopped_by_user(queue: Mapping[str, Any]) -> bool:
    """Return whether the stopPolicy stops a ClusterQueue or LocalQueue, and `destroy` has not set it."""
    return queue["spec"].get("stopPolicy", "None") != "None" and not _is_stopped_by_destroy(queue)


def _is_not_drained(queue: Mapping[str, Any]) -> bool:
    return bool(queue["spec"].get("stopPolicy") != "HoldAndDrain")


def queues_active_steps(connection: ClusterConnection, queues: Sequence[Queue]) -> Iterator[PlatformStep]:
    """Yield steps that resume the ClusterQueues, and wait until they and their LocalQueues are Active.

    Queues that the platform file or a user stops stay stopped, and no step waits for them.
    """
    active_queues = [queue for queue in queues if not queue.is_stopped]
    names = [queue.name for queue in active_queues]
    yield from resume_queues_steps(connection, queues)
    if names:
        yield wait_step(
            "cluster-queues",
            f"wait until the ClusterQueues are Active ({len(names)})",
            [Probe(_get_queues(connection, names), probe_parsers.all_active(names, _is_stopped_by_user))],
            QUEUES_PATIENCE_SECONDS,
            "kubectl describe clusterqueues; `batchyard lint` on manifests/ reports their errors",
        )
    local_queue_keys = [f"{row.namespace}/{row.name}" for queue in active_queues for row in queue.local_queues]
    if local_queue_keys:
        kinds = f"{_LOCAL_QUEUES},{_CLUSTER_QUEUES}"
        get_command = connection.kubectl("get", kinds, "--all-namespaces", "--output=json")
        yield wait_step(
            "local-queues",
            f"wait until the LocalQueues are Active ({len(local_queue_keys)})",
            [Probe(get_command, probe_parsers.all_active(local_queue_keys, _is_stopped_by_user))],
            QUEUES_PATIENCE_SECONDS,
            "kubectl describe localqueues --all-namespaces",
        )


def check_job_step(connection: ClusterConnection, namespace: str, local_queue: str) -> PlatformStep:
    """Return a step that checks with a dry run that the API server would accept a Job in a team's LocalQueue."""
    return wait_step(
        "final-check",
        f"a Job in {namespace}, queue {local_queue}, would be accepted (dry run)",
        [
            Probe(
                connection.kubectl(
                    "create",
                    "--dry-run=server",
                    "--filename=-",
                    stdin_text=json.dumps(_queue_check_job(namespace, local_queue)),
                ),
                probe_parsers.succeeds(),
            )
        ],
        120,
    )


def _queue_check_job(namespace: str, local_queue: str) -> dict[str, Any]:
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
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def drain_step(connection: ClusterConnection, cluster_queues: Sequence[str]) -> PlatformStep:
    """Return a step that stops these ClusterQueues: admission stops, and admitted Workloads are evicted."""
    patch = {"metadata": {"annotations": {_STOPPED_ANNOTATION: "destroy"}}, "spec": {"stopPolicy": "HoldAndDrain"}}
    arguments = ("patch", _CLUSTER_QUEUES, *cluster_queues, "--type=merge", f"--patch={json.dumps(patch)}")
    return PlatformStep(
        "stop-queues",
        f"stop the ClusterQueues ({len(cluster_queues)}): admission stops, and running Workloads are evicted",
        commands=(replace(connection.kubectl(*arguments), tolerated_errors=probe_parsers.NOT_FOUND_ERRORS),),
        probes=(
            Probe(_get_queues(connection, cluster_queues), probe_parsers.none_match(_is_not_drained, "not stopped")),
        ),
        retry=_TRANSIENT_ERROR_RETRY,
    )


def empty_namespace_steps(
    connection: ClusterConnection, namespaces: Sequence[str], extra_kinds: Sequence[str] = ()
) -> Iterator[PlatformStep]:
    """For each namespace, yield a step that deletes all JobSets, Jobs, pods and objects of `extra_kinds` in it."""
    kinds = ("jobsets.jobset.x-k8s.io", ",".join(("jobs.batch", "pods", *extra_kinds)))
    for namespace in namespaces:
        namespace_options = (f"--namespace={namespace}", "--ignore-not-found")
        options = ("--all", *namespace_options)
        delete_commands = [
            connection.kubectl("delete", kind, *options, limit_seconds=DELETE_LIMIT_SECONDS) for kind in kinds
        ]
        get_commands = [connection.kubectl("get", kind, *namespace_options, "--output=name") for kind in kinds]
        yield PlatformStep(
            f"empty-{namespace}",
            f"delete jobs and pods in {namespace}",
            commands=tuple(
                replace(delete, tolerated_errors=probe_parsers.NOT_FOUND_ERRORS) for delete in delete_commands
            ),
            probes=tuple(Probe(get_command, probe_parsers.prints_nothing("left")) for get_command in get_commands),
            retry=_TRANSIENT_ERROR_RETRY,
            patience_seconds=DELETE_PATIENCE_SECONDS,
            remedy=_FINALIZERS_REMEDY,
        )


def delete_step(connection: ClusterConnection, part: ManifestPart) -> PlatformStep:
    """Return a step that deletes the objects in one top-level file or folder of the manifests."""
    delete = connection.kubectl(
        "delete", "--ignore-not-found", "--wait", *part.arguments, limit_seconds=DELETE_LIMIT_SECONDS
    )
    return PlatformStep(
        f"delete-{part.name}",
        f"delete {part.path}{_describe_kind_counts(part)}",
        commands=(replace(delete, tolerated_errors=probe_parsers.NOT_FOUND_ERRORS),),
        probes=(
            Probe(
                connection.kubectl("get", "--ignore-not-found", "--output=json", *part.arguments),
                probe_parsers.none_match(probe_parsers.is_not_provided, "left"),
            ),
        ),
        retry=_TRANSIENT_ERROR_RETRY,
        patience_seconds=DELETE_PATIENCE_SECONDS,
        remedy=_FINALIZERS_REMEDY,
    )


def no_other_platforms_probe(connection: ClusterConnection) -> Probe:
    """Return a probe that succeeds if the cluster has no queues or JobSets, which removing the CRDs would delete."""
    kinds = f"{_CLUSTER_QUEUES},{_LOCAL_QUEUES},jobsets.jobset.x-k8s.io"
    get_command = connection.kubectl("get", kinds, "--all-namespaces", "--ignore-not-found", "--output=name")
    return Probe(get_command, probe_parsers.prints_nothing("objects of other platforms"))


def list_workloads_step(connection: ClusterConnection) -> PlatformStep:
    """Return a step that lists the admitted, unfinished Workloads."""
    get_command = connection.kubectl("get", WORKLOADS, "--all-namespaces", "--ignore-not-found", "--output=json")
    return PlatformStep(
        "running-workloads",
        "list running Workloads",
        probes=(
            Probe(get_command, probe_parsers.none_match(probe_parsers.is_admitted_and_unfinished, "running Workloads")),
        ),
        is_optional=True,
    )


def scale_down_step(connection: ClusterConnection, permanent_pools: Sequence[str]) -> PlatformStep:
    """Return a step that waits until the autoscaler has removed the nodes of all pools but `permanent_pools`."""
    node_pool_label = "cloud.google.com/gke-nodepool"
    selector = f"{node_pool_label} notin ({','.join(permanent_pools)})" if permanent_pools else node_pool_label
    return PlatformStep(
        "scaled-down",
        "wait until the nodes that were created for Jobs are removed",
        probes=(
            Probe(
                connection.kubectl("get", "nodes", f"--selector={selector}", "--output=name"),
                probe_parsers.prints_nothing("nodes"),
            ),
        ),
        patience_seconds=NODES_PATIENCE_SECONDS,
        is_optional=True,
    )
