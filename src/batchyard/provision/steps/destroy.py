"""The sequences of steps that create, prune and destroy a platform, and the resources that remain after destroy.

Pruning deletes obsolete objects: those of an earlier version of the platform file that the file no longer defines.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.base.counts import count_with_noun
from batchyard.provision.model import GoogleSettings, PlatformEngine, PlatformModel
from batchyard.provision.render import ENGINE_FOLDER
from batchyard.provision.steps import cluster, google, model, probe_parsers
from batchyard.provision.steps.cluster import WORKLOADS, ClusterConnection, ManifestPart, split_manifests
from batchyard.provision.steps.google import KUBECTL
from batchyard.provision.yaml_output import MANAGED_BY, PART_OF

# Pruning: find objects of earlier versions of a platform's file by label, report them, and delete them.
#
# A deleted namespace includes its objects. RBAC objects are pruned too, so that removed members lose their rights.


STEP_NAME: Final = "obsolete-objects"
#: The kinds of a platform's objects with any engine, queues first to stop admission.
_PRUNED_KINDS: Final = (
    "localqueues.kueue.x-k8s.io",
    "clusterqueues.kueue.x-k8s.io",
    "namespaces",
    "cohorts.kueue.x-k8s.io",
    "resourceflavors.kueue.x-k8s.io",
    "topologies.kueue.x-k8s.io",
    "admissionchecks.kueue.x-k8s.io",
    "provisioningrequestconfigs.kueue.x-k8s.io",
    "workloadpriorityclasses.kueue.x-k8s.io",
    "priorityclasses.scheduling.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "resourcequotas",
    "limitranges",
    "networkpolicies.networking.k8s.io",
)
#: Budgets, a kind that is served only if batchyard's operator manages costs.
_BUDGETS_RESOURCE: Final = "budgets.cost.batchyard.dev"
_NAMESPACE_KIND: Final = "Namespace"
_SHOWN_NAMES_MAX: Final = 8
_DELETE_LIMIT_SECONDS: Final = 900
_PRUNE_PURPOSE: Final = "find objects that an earlier version of the file defined"


class _ObjectKey(NamedTuple):
    kind: str
    name: str


def report_obsolete_step(
    connection: ClusterConnection, platform: PlatformModel, manifest_parts: Sequence[ManifestPart], remedy_note: str
) -> model.PlatformStep:
    """Return a step that only reports objects which the platform file no longer defines.

    `remedy_note` is appended to the report.
    """
    probes = _obsolete_probes(connection, platform, manifest_parts, remedy_note)
    return model.PlatformStep(STEP_NAME, _PRUNE_PURPOSE, probes=probes, is_optional=True)


def prune_step(
    connection: ClusterConnection, platform: PlatformModel, manifest_parts: Sequence[ManifestPart]
) -> model.PlatformStep:
    """Return a step that deletes objects which the platform file no longer defines, if the user consents."""
    return model.PlatformStep(
        STEP_NAME,
        "remove objects that an earlier version of the file defined",
        commands=(_delete_command(connection, "--wait=false"),),
        probes=_obsolete_probes(connection, platform, manifest_parts, ""),
        consent=model.Consent(
            "The file no longer defines:",
            destroys=True,
            details=model.ConsentDetails(_list_workloads_command(connection), _describe_deletion),
        ),
        stdin_from_probes=_references_to_obsolete_objects(manifest_parts),
        is_checked=False,
        is_optional=True,
    )


def delete_obsolete_step(
    connection: ClusterConnection, platform: PlatformModel, manifest_parts: Sequence[ManifestPart]
) -> model.PlatformStep:
    """Return a step of `destroy` that deletes objects which the platform file no longer defines.

    The step must run before the deletion of flavors and kinds, which these objects would block.
    """
    return model.PlatformStep(
        f"delete-{STEP_NAME}",
        "delete objects that an earlier version of the file defined",
        commands=(_delete_command(connection, "--wait"),),
        probes=_obsolete_probes(connection, platform, manifest_parts, ""),
        stdin_from_probes=_references_to_obsolete_objects(manifest_parts),
        retry=model.Retry(5, 10, ("failed calling webhook", "connection refused", "i/o timeout")),
        is_checked=False,
        remedy="finalizers need a running controller: check the pods of the engine",
    )


def _delete_command(connection: ClusterConnection, wait_option: str) -> model.StepCommand:
    command = connection.kubectl(
        "delete", "--ignore-not-found", wait_option, "--filename=-", limit_seconds=_DELETE_LIMIT_SECONDS
    )
    return command.with_tolerated_errors(probe_parsers.NOT_FOUND_ERRORS)


def _obsolete_probes(
    connection: ClusterConnection, platform: PlatformModel, manifest_parts: Sequence[ManifestPart], remedy_note: str
) -> tuple[model.Probe, ...]:
    kinds = [",".join(_PRUNED_KINDS)] + ([_BUDGETS_RESOURCE] if platform.engine is PlatformEngine.BATCHYARD else [])
    selector = f"--selector={MANAGED_BY}=batchyard,{PART_OF}={platform.name}"
    parser = _obsolete_objects_parser(manifest_parts, remedy_note)
    get_options = ("--all-namespaces", selector, "--output=json")
    return tuple(model.Probe(connection.kubectl("get", names, *get_options), parser) for names in kinds)


def _list_workloads_command(connection: ClusterConnection) -> model.StepCommand:
    return connection.kubectl("get", WORKLOADS, "--all-namespaces", "--ignore-not-found", "--output=json")


def _obsolete_objects_parser(manifest_parts: Sequence[ManifestPart], remedy_note: str) -> model.ResultParser:
    def parse(output: model.CommandOutput) -> model.ProbeResult:
        if output.code:
            return probe_parsers.failure_result(output)
        objects = list(_obsolete_objects(output, manifest_parts))
        return model.ProbeResult(not objects, f"{_describe_objects(objects)}{remedy_note}" if objects else "")

    return parse


def _references_to_obsolete_objects(manifest_parts: Sequence[ManifestPart]) -> model.InputFromProbes:
    def compute_input(command_outputs: Sequence[model.CommandOutput]) -> str:
        obsolete_objects = [obj for output in command_outputs for obj in _obsolete_objects(output, manifest_parts)]
        object_references = [
            {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": _name_fields(obj["metadata"])}
            for obj in obsolete_objects
        ]
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": object_references})

    return compute_input


def _name_fields(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    return {field: metadata[field] for field in ("name", "namespace") if field in metadata}


def _obsolete_objects(output: model.CommandOutput, manifest_parts: Sequence[ManifestPart]) -> Iterator[Obj]:
    """Yield the objects in kubectl's output that the manifests do not define and that must still be deleted.

    Objects that are being deleted are left out, and objects that the deletion of their namespace removes.
    """
    defined_keys = {_key(obj) for part in manifest_parts for obj in part.objects}
    objects = [
        obj for obj in probe_parsers.items_of(output.document() or {"items": []}) if _key(obj) not in defined_keys
    ]
    deleted_namespaces = {obj["metadata"]["name"] for obj in objects if obj["kind"] == _NAMESPACE_KIND}
    for obj in objects:
        metadata = obj["metadata"]
        if metadata.get("namespace") not in deleted_namespaces and "deletionTimestamp" not in metadata:
            yield obj


def _key(obj: Mapping[str, Any]) -> _ObjectKey:
    return _ObjectKey(obj["kind"], probe_parsers.name_of(obj))


def _describe_objects(objects: Sequence[Obj]) -> str:
    names_by_kind: dict[str, list[str]] = {}
    for obj in objects:
        names_by_kind.setdefault(obj["kind"], []).append(probe_parsers.name_of(obj))
    return ", ".join(_describe_kind(kind, names) for kind, names in names_by_kind.items())


def _describe_kind(kind: str, names: Sequence[str]) -> str:
    if kind == _NAMESPACE_KIND:
        return f"{kind} {', '.join(names)} with all its objects"
    more_text = f" and {len(names) - _SHOWN_NAMES_MAX} more" if len(names) > _SHOWN_NAMES_MAX else ""
    return f"{kind} {', '.join(names[:_SHOWN_NAMES_MAX])}{more_text}"


def _describe_deletion(output: model.CommandOutput, stdin_text: str) -> str:
    objects = json.loads(stdin_text)["items"]
    description = f" {_describe_objects(objects)}. This deletes these objects."
    if output.code:
        return (
            description
            if probe_parsers.is_not_found_error(output)
            else f"{description} The running Workloads are unknown: {output.main_error}."
        )
    workloads = probe_parsers.items_of(output.document() or {"items": []})
    admitted_workloads = [workload for workload in workloads if probe_parsers.is_admitted_and_unfinished(workload)]
    namespaces, queues = _names_of_kind(_NAMESPACE_KIND, objects), _names_of_kind("ClusterQueue", objects)
    ending_workloads = [
        probe_parsers.name_of(obj) for obj in admitted_workloads if obj["metadata"]["namespace"] in namespaces
    ]
    queue_workloads = [probe_parsers.name_of(obj) for obj in admitted_workloads if _cluster_queue_name(obj) in queues]
    queue_workloads = [name for name in queue_workloads if name not in ending_workloads]
    description += (
        f" These Workloads end: {_shorten_list(ending_workloads)}." if ending_workloads else " No Workload runs there."
    )
    return description + (
        f" Queues are deleted after these Workloads end: {_shorten_list(queue_workloads)}." if queue_workloads else ""
    )


def _names_of_kind(kind: str, objects: Sequence[Obj]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects if obj["kind"] == kind}


def _cluster_queue_name(workload: Obj) -> str:
    return str((workload.get("status", {}).get("admission") or {}).get("clusterQueue", ""))


def _shorten_list(names: Sequence[str]) -> str:
    more_text = f" and {len(names) - _SHOWN_NAMES_MAX} more" if len(names) > _SHOWN_NAMES_MAX else ""
    return f"{len(names)} ({', '.join(names[:_SHOWN_NAMES_MAX])}{more_text})"


# Steps that create a platform, in order: on GKE, or on an existing Kubernetes cluster.


def creation_steps(
    platform: PlatformModel, files: Mapping[str, str], connection: ClusterConnection, *, is_pruning: bool = False
) -> list[model.PlatformStep]:
    """Return the steps that create a platform on its cluster, from the rendered `files` (text by path).

    Objects in the cluster that the platform file no longer defines are reported. With `is_pruning`, they are removed if
    the user consents.
    """
    manifest_parts = split_manifests(platform, files)
    obsolete_step = (
        prune_step(connection, platform, manifest_parts)
        if is_pruning
        else report_obsolete_step(connection, platform, manifest_parts, "; --prune removes these objects")
    )
    steps = [
        *cluster.own_namespaces_steps(connection, platform.name, manifest_parts),
        *_cluster_steps(platform, manifest_parts, connection),
        obsolete_step,
        *_final_check_steps(platform, connection),
    ]
    google_settings = platform.google
    if google_settings is None:
        consent = model.Consent(f"This applies {platform.name} to {describe_cluster(connection)}.")
        admin_step = cluster.require_admin_step(connection, platform.name)
        return [
            KUBECTL.step(),
            cluster.api_server_step(connection),
            admin_step,
            *_with_consent_before_first_change(steps, consent),
        ]
    return [
        *google.tool_steps(),
        *google.account_steps(google_settings.project),
        *google.project_steps(google_settings.project),
        *google.bucket_steps(platform, google_settings),
        google.terraform_init_step(),
        google.terraform_apply_step(),
        google.credentials_step(platform, google_settings, connection.kubeconfig, connection.ready_command),
        cluster.api_server_step(connection),
        *google.image_steps(platform, google_settings, manifest_parts),
        *steps,
    ]


def _cluster_steps(
    platform: PlatformModel, manifest_parts: Sequence[ManifestPart], connection: ClusterConnection
) -> Iterator[model.PlatformStep]:
    flavors = [part.first_of_kind("ResourceFlavor") for part in manifest_parts]
    flavor = next((each for each in flavors if each), None)
    for part in manifest_parts:
        if part.path == ENGINE_FOLDER:
            engine_steps = cluster.install_steps(connection, part, platform, flavor)
            yield from engine_steps if platform.google else _steps_unless_embedded(platform, engine_steps, connection)
        else:
            yield cluster.kubectl_apply_step(connection, part)
    yield from cluster.queues_active_steps(connection, platform.queues)


def _final_check_steps(platform: PlatformModel, connection: ClusterConnection) -> Iterator[model.PlatformStep]:
    local_queues = [row for queue in platform.queues for row in queue.local_queues]
    if local_queues:
        yield cluster.check_job_step(connection, local_queues[0].namespace, local_queues[0].name)


def _steps_unless_embedded(
    platform: PlatformModel, steps: Iterator[model.PlatformStep], connection: ClusterConnection
) -> Iterator[model.PlatformStep]:
    """Return the steps that install batchyard's operator, to be skipped on a cluster of `batchyard up`.

    Such a cluster has its own engine. If the engine is Kueue, the steps are returned unchanged.
    """
    if platform.engine is PlatformEngine.KUEUE:
        return steps
    return (replace(step, only_if=cluster.not_embedded_probe(connection)) for step in steps)


def _with_consent_before_first_change(
    steps: Sequence[model.PlatformStep], consent: model.Consent
) -> list[model.PlatformStep]:
    first_change_index = next(index for index, step in enumerate(steps) if step.commands)
    return [replace(step, consent=consent) if index == first_change_index else step for index, step in enumerate(steps)]


def describe_cluster(connection: ClusterConnection) -> str:
    """Describe the cluster by its kubeconfig context, for messages."""
    context = connection.context
    return f"the cluster of context {context}" if context else "the cluster of kubectl's current context"


#: Objects with cloud resources that outlive the cluster: load balancers, disks.
_CLOUD_RESOURCE_KINDS = ("services", "persistentvolumeclaims")


def destruction_steps(
    platform: PlatformModel, files: Mapping[str, str], connection: ClusterConnection, *, is_unprotecting: bool = False
) -> list[model.PlatformStep]:
    """Return the steps that remove a platform from its cluster, and on GKE also the cluster.

    `is_unprotecting` turns off the deletion protection of a cluster on GKE; otherwise protection stops the removal.
    """
    if platform.google is not None:
        return _google_destroy_steps(
            platform, connection, split_manifests(platform, files), google.protection_step(is_unprotecting)
        )
    manifest_parts = split_manifests(platform, files)
    loss_text = _describe_loss(platform, manifest_parts)
    steps = [
        KUBECTL.step(),
        cluster.api_server_step(connection),
        *cluster.own_namespaces_steps(connection, platform.name, manifest_parts),
        cluster.list_workloads_step(connection),
        report_obsolete_step(connection, platform, manifest_parts, "; destroy deletes these objects too"),
        _confirmation_step(f"This deletes {platform.name} from {describe_cluster(connection)}: {loss_text}."),
        cluster.drain_step(connection, _queue_names(platform)),
        *cluster.empty_namespace_steps(connection, _team_namespaces(platform)),
        delete_obsolete_step(connection, platform, manifest_parts),
    ]
    for part in reversed(manifest_parts):
        step = cluster.delete_step(connection, part)
        steps.append(
            replace(step, only_if=cluster.no_other_platforms_probe(connection)) if part.path == ENGINE_FOLDER else step
        )
    return steps


def _google_destroy_steps(
    platform: PlatformModel,
    connection: ClusterConnection,
    manifest_parts: Sequence[ManifestPart],
    protection_step: model.PlatformStep,
) -> list[model.PlatformStep]:
    """Return the steps that destroy a platform on GKE, from the checks of the tools to `terraform destroy`.

    The Workloads end before Terraform runs, because Terraform does not know their nodes and disks.
    """
    google_settings = platform.google
    assert google_settings is not None, "the caller checks that the platform is on GKE"
    cluster_exists_probe = model.Probe(
        model.command(
            *(
                "gcloud",
                "container",
                "clusters",
                "list",
                f"--project={google_settings.project}",
                f"--location={platform.region}",
            ),
            *(f"--filter=name={platform.name}", "--format=value(name)"),
        ),
        probe_parsers.prints_anything("the cluster does not exist"),
    )
    lookup_steps = [
        google.credentials_step(platform, google_settings, connection.kubeconfig, connection.ready_command),
        cluster.api_server_step(connection),
        cluster.list_workloads_step(connection),
        report_obsolete_step(connection, platform, manifest_parts, "; destroy deletes these objects too"),
    ]
    cleanup_steps = [
        cluster.drain_step(connection, _queue_names(platform)),
        *cluster.empty_namespace_steps(connection, _team_namespaces(platform), _CLOUD_RESOURCE_KINDS),
        delete_obsolete_step(connection, platform, manifest_parts),
        cluster.scale_down_step(connection, _permanent_pools(platform)),
    ]
    deletion_text = f"all its Terraform resources, including the cluster: {_describe_loss(platform, manifest_parts)}"
    return [
        *google.tool_steps(),
        *google.account_steps(google_settings.project),
        google.require_state_bucket_step(platform, google_settings),
        google.terraform_init_step(),
        *([] if protection_step.commands else [protection_step]),
        *(replace(step, only_if=cluster_exists_probe) for step in lookup_steps),
        _confirmation_step(f"This deletes {platform.name} in {google_settings.project}, and {deletion_text}."),
        *(replace(step, only_if=cluster_exists_probe) for step in cleanup_steps),
        *([protection_step] if protection_step.commands else []),
        google.destroy_step(google_settings),
    ]


def _confirmation_step(question: str) -> model.PlatformStep:
    return model.PlatformStep("confirm", "ask for confirmation", consent=model.Consent(question, destroys=True))


def _permanent_pools(platform: PlatformModel) -> list[str]:
    return [pool["name"] for pool in platform.node_pools if _minimum_node_count(pool)]


def _minimum_node_count(pool: Mapping[str, Any]) -> int:
    autoscaling = pool.get("autoscaling")
    node_count = (
        pool.get("nodeCount", 0) if autoscaling is None else autoscaling.get("totalMin", autoscaling.get("min", 0))
    )
    return int(node_count)


def _queue_names(platform: PlatformModel) -> list[str]:
    return [queue.name for queue in platform.queues]


def _team_namespaces(platform: PlatformModel) -> list[str]:
    """Return the namespaces whose pods must have ended before the engine (batchyard or Kueue) is deleted.

    Only the engine removes the finalizers of these pods. The monitoring namespace is left out: its Deployments would
    recreate deleted pods.
    """
    return [team.namespace for team in platform.teams]


def _describe_loss(platform: PlatformModel, manifest_parts: Sequence[ManifestPart]) -> str:
    loss_text = count_with_noun(len(platform.queues), "ClusterQueue")
    names = cluster.deleted_namespaces(manifest_parts)
    return f"{loss_text}, and everything in the namespaces {', '.join(names)}" if names else loss_text


# Resources that remain after destroy: the reason, the cost, and the command that removes them.


_RETAINED_VOLUMES = '{range .items[?(@.spec.persistentVolumeReclaimPolicy=="Retain")]}{.metadata.name}{"\\n"}{end}'


def leftovers(platform: PlatformModel, connection: ClusterConnection, folder: str) -> Iterator[model.Leftover]:
    """Yield the kinds of resources that `destroy` can leave behind, each with the command that removes them."""
    if platform.google is None:
        yield model.Leftover(
            "volumes",
            "PersistentVolumes that outlive their claims (reclaim policy Retain), and their disks",
            connection.kubectl("get", "persistentvolumes", f"--output=jsonpath={_RETAINED_VOLUMES}"),
            connection.kubectl("delete", "persistentvolume", "NAME").argv,
        )
    else:
        yield from _bucket_leftovers(platform, platform.google)
        yield from _compute_leftovers(platform.google)
        yield from _project_leftovers(platform, platform.google)
    description = f"the rendered files, the journal and the logs in {folder}"
    yield model.Leftover("folder", description, None, ("rm", "-r", folder))


def _bucket_leftovers(platform: PlatformModel, google_spec: GoogleSettings) -> Iterator[model.Leftover]:
    name = google.state_bucket(platform, google_spec)
    yield model.Leftover(
        "state bucket",
        f"gs://{name}: Terraform's state, with old versions; the storage is billed",
        _bucket_query(name),
        ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
    )
    if google_spec.has_build_files:
        name = f"{google_spec.project}_cloudbuild"
        yield model.Leftover(
            "sources of builds",
            f"gs://{name}: sources uploaded to Cloud Build; the storage is billed",
            _bucket_query(name),
            ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
        )
        yield model.Leftover(
            "build account",
            "the service account and rights of Cloud Build, if terraform/build was applied; they cost nothing",
            None,
            ("terraform", f"-chdir={google.TERRAFORM_FOLDER}/build", "destroy"),
        )


def _bucket_query(name: str) -> model.StepCommand:
    return model.command("gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=value(name)")


def _compute_leftovers(google_spec: GoogleSettings) -> Iterator[model.Leftover]:
    project, columns = f"--project={google_spec.project}", "--format=value(name,zone)"
    yield model.Leftover(
        "disks",
        "unused disks of volumes (reclaim policy Retain), also from other clusters; billed by size",
        model.command("gcloud", "compute", "disks", "list", project, "--filter=name~^pvc- AND -users:*", columns),
        ("gcloud", "compute", "disks", "delete", "NAME", "--zone=ZONE", project),
    )
    yield model.Leftover(
        "reservations",
        "reservations that Terraform did not create; billed even if they are unused",
        model.command("gcloud", "compute", "reservations", "list", project, columns),
        ("gcloud", "compute", "reservations", "delete", "NAME", "--zone=ZONE", project),
    )
    if google_spec.submitted_reservations:
        yield model.Leftover(
            "future reservations",
            "submitted future reservations; billed for their window, and Google may refuse to delete them",
            model.command("gcloud", "compute", "future-reservations", "list", project, columns),
            ("gcloud", "compute", "future-reservations", "delete", "NAME", "--zone=ZONE", project),
        )


def _project_leftovers(platform: PlatformModel, google_spec: GoogleSettings) -> Iterator[model.Leftover]:
    project, location = f"--project={google_spec.project}", f"--location={platform.region}"
    yield model.Leftover(
        "images",
        "image repositories that Terraform did not create or had to keep; billed by size",
        model.command("gcloud", "artifacts", "repositories", "list", project, location, "--format=value(name)"),
        ("gcloud", "artifacts", "repositories", "delete", "NAME", location, project),
    )
    yield model.Leftover(
        "APIs",
        "the enabled APIs; they cost nothing, and other programs may use them",
        None,
        ("gcloud", "services", "disable", "NAME", project),
    )
    yield model.Leftover(
        "logs and metrics",
        "logs and metrics of the cluster until their retention ends",
        None,
        ("gcloud", "logging", "logs", "delete", "NAME", project),
    )
