"""Steps that remove a platform, in order, and what they leave behind."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.provision.model import Google, PlatformEngine, PlatformModel
from batchyard.provision.render import ENGINE
from batchyard.provision.steps import cluster, google
from batchyard.provision.steps.cluster import WORKLOADS, ClusterConnection, ManifestPart, parts
from batchyard.provision.steps.google import KUBECTL
from batchyard.provision.steps.model import (
    CommandOutput,
    Consent,
    ConsentDetails,
    InputFromProbes,
    Leftover,
    PlatformStep,
    Probe,
    ProbeResult,
    ResultParser,
    Retry,
    StepCommand,
    run,
)
from batchyard.provision.steps.probe_parsers import (
    NOT_THERE,
    has_quota,
    is_gone,
    items_of,
    name_of,
    observe_failure,
    prints_anything,
)
from batchyard.provision.yaml_output import MANAGED_BY, PART_OF

# --- pruning ---
#
# Pruning: objects of earlier versions of a platform's file, found by label, reported and deleted.
#
# Objects in a deleted namespace are deleted with it. RBAC objects are included: removed members keep no rights.


NAME: Final = "no-longer-said"
#: The kinds of a platform's objects with any engine. Queues first: then nothing more is admitted.
_KINDS: Final = (
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
#: Served only if our engine manages costs.
_BUDGETS: Final = "budgets.cost.batchyard.dev"
_NAMESPACE: Final = "Namespace"
_SHOWN_MAX: Final = 8
_DELETE_LIMIT: Final = 900
_PURPOSE: Final = "look for objects of earlier files that this one no longer defines"


class _Key(NamedTuple):
    """Kind and name of an object."""

    kind: str
    name: str


def report_step(
    reached: ClusterConnection, platform: PlatformModel, all_parts: Sequence[ManifestPart], remedy: str
) -> PlatformStep:
    """Return a step that only reports them."""
    return PlatformStep(NAME, _PURPOSE, probes=_probes(reached, platform, all_parts, remedy), is_optional=True)


def removed(reached: ClusterConnection, platform: PlatformModel, all_parts: Sequence[ManifestPart]) -> PlatformStep:
    """Return a step that reports them, asks, and starts the deletion. Queues wait for their last Workloads."""
    return PlatformStep(
        NAME,
        "remove objects of earlier files that this one no longer defines",
        commands=(_delete(reached, "--wait=false"),),
        probes=_probes(reached, platform, all_parts, ""),
        consent=Consent(
            "The file says no longer:", destroys=True, asking=ConsentDetails(_running(reached), _what_goes)
        ),
        sends=_sending(all_parts),
        is_checked=False,
        is_optional=True,
    )


def destroyed(reached: ClusterConnection, platform: PlatformModel, all_parts: Sequence[ManifestPart]) -> PlatformStep:
    """Return a step that deletes them with the platform, before the flavors and kinds that they would block."""
    return PlatformStep(
        f"delete-{NAME}",
        "delete objects of earlier files that this one no longer defines",
        commands=(_delete(reached, "--wait"),),
        probes=_probes(reached, platform, all_parts, ""),
        sends=_sending(all_parts),
        retry=Retry(5, 10, ("failed calling webhook", "connection refused", "i/o timeout")),
        is_checked=False,
        remedy="finalizers need a running controller: does the engine run?",
    )


def _delete(reached: ClusterConnection, waiting: str) -> StepCommand:
    command = reached.kubectl("delete", "--ignore-not-found", waiting, "--filename=-", limit_seconds=_DELETE_LIMIT)
    return command.tolerating(NOT_THERE)


def _probes(
    reached: ClusterConnection, platform: PlatformModel, all_parts: Sequence[ManifestPart], remedy: str
) -> tuple[Probe, ...]:
    kinds = [",".join(_KINDS)] + ([_BUDGETS] if platform.engine is PlatformEngine.BATCHYARD else [])
    selector = f"--selector={MANAGED_BY}=batchyard,{PART_OF}={platform.name}"
    reading = _reading(all_parts, remedy)
    return tuple(
        Probe(reached.kubectl("get", names, "--all-namespaces", selector, "--output=json"), reading) for names in kinds
    )


def _running(reached: ClusterConnection) -> StepCommand:
    return reached.kubectl("get", WORKLOADS, "--all-namespaces", "--ignore-not-found", "--output=json")


def _reading(all_parts: Sequence[ManifestPart], remedy: str) -> ResultParser:
    """Holds if nothing is found; else the description lists objects by kind."""

    def read(answer: CommandOutput) -> ProbeResult:
        if answer.code:
            return observe_failure(answer)
        found = list(_found(answer, all_parts))
        return ProbeResult(not found, f"{_in_words(found)}{remedy}" if found else "")

    return read


def _sending(all_parts: Sequence[ManifestPart]) -> InputFromProbes:
    """Compute the List object that kubectl deletes."""

    def send(answers: Sequence[CommandOutput]) -> str:
        found = [obj for answer in answers for obj in _found(answer, all_parts)]
        rows = [
            {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": _identity(obj["metadata"])}
            for obj in found
        ]
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": rows})

    return send


def _identity(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    return {field: metadata[field] for field in ("name", "namespace") if field in metadata}


def _found(answer: CommandOutput, all_parts: Sequence[ManifestPart]) -> Iterator[Obj]:
    """Yield objects that the file no longer defines, except those in a deleted namespace or already being deleted."""
    defined = {_key(obj) for part in all_parts for obj in part.objects}
    objects = [obj for obj in items_of(answer.document() or {"items": []}) if _key(obj) not in defined]
    going = {obj["metadata"]["name"] for obj in objects if obj["kind"] == _NAMESPACE}
    for obj in objects:
        metadata = obj["metadata"]
        if metadata.get("namespace") not in going and "deletionTimestamp" not in metadata:
            yield obj


def _key(obj: Mapping[str, Any]) -> _Key:
    return _Key(obj["kind"], name_of(obj))


def _in_words(objects: Sequence[Obj]) -> str:
    """`Namespace team-a with all that is in it, ClusterQueue cq-team-a-lp`."""
    by_kind: dict[str, list[str]] = {}
    for obj in objects:
        by_kind.setdefault(obj["kind"], []).append(name_of(obj))
    return ", ".join(_kind_in_words(kind, names) for kind, names in by_kind.items())


def _kind_in_words(kind: str, names: Sequence[str]) -> str:
    if kind == _NAMESPACE:
        return f"{kind} {', '.join(names)} with all that is in it"
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{kind} {', '.join(names[:_SHOWN_MAX])}{more}"


def _what_goes(answer: CommandOutput, sent: str) -> str:
    """Describe what would be deleted, and the running Workloads in those namespaces and queues."""
    objects = json.loads(sent)["items"]
    words = f" {_in_words(objects)}. This deletes it."
    if answer.code:
        return words if is_gone(answer) else f"{words} What runs there is not known: {answer.last_word}."
    running = [obj for obj in items_of(answer.document() or {"items": []}) if has_quota(obj)]
    ended = [name_of(obj) for obj in running if obj["metadata"]["namespace"] in _named(_NAMESPACE, objects)]
    others = [name_of(obj) for obj in running if _queue(obj) in _named("ClusterQueue", objects)]
    others = [name for name in others if name not in ended]
    words += f" What runs there ends: {_cut(ended)}." if ended else " Nothing runs there."
    return words + (f" Queues go when these have ended: {_cut(others)}." if others else "")


def _named(kind: str, objects: Sequence[Obj]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects if obj["kind"] == kind}


def _queue(workload: Obj) -> str:
    return str((workload.get("status", {}).get("admission") or {}).get("clusterQueue", ""))


def _cut(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{len(names)} ({', '.join(names[:_SHOWN_MAX])}{more})"


# --- create ---
#
# Steps that create a platform, in order: on GKE, or on an existing Kubernetes cluster.


def create(
    platform: PlatformModel, files: Mapping[str, str], reached: ClusterConnection, *, is_pruning: bool = False
) -> list[PlatformStep]:
    """Return the steps that create a platform from rendered files (text by path); `reached`: access to its cluster.

    Objects of earlier files that this one no longer defines are reported, and with `is_pruning` removed.
    """
    all_parts = parts(platform, files)
    old = (
        removed(reached, platform, all_parts)
        if is_pruning
        else report_step(reached, platform, all_parts, "; --prune removes it")
    )
    steps = [*_on_cluster(platform, all_parts, reached), old, *_last(platform, reached)]
    made = platform.google
    if made is None:
        consent = Consent(f"This applies {platform.name} to {where(reached)}.")
        rights = cluster.may_write(reached, platform.name)
        return [KUBECTL.step(), cluster.api_server(reached), rights, *_confirm_first(steps, consent)]
    return [
        *google.tools(),
        *google.account_steps(made.project),
        *google.project_is_ready(made.project),
        *google.bucket_steps(platform, made),
        google.initialized(),
        google.applied(),
        google.credentials(platform, made, reached.kubeconfig, reached.ask),
        cluster.api_server(reached),
        *google.images(platform, made, all_parts),
        *steps,
    ]


def _on_cluster(
    platform: PlatformModel, all_parts: Sequence[ManifestPart], reached: ClusterConnection
) -> Iterator[PlatformStep]:
    """Yield the steps on the cluster once it is reachable."""
    flavor = next((found for part in all_parts if (found := part.first("ResourceFlavor"))), None)
    for part in all_parts:
        if part.path == ENGINE:
            engine = cluster.installed(reached, part, platform, flavor)
            yield from engine if platform.google else _unless_embedded(platform, engine, reached)
        else:
            yield cluster.applied(reached, part)
    yield from cluster.queues_active(reached, platform.queues)


def _last(platform: PlatformModel, reached: ClusterConnection) -> Iterator[PlatformStep]:
    """Yield the final check."""
    local_queues = [row for queue in platform.queues for row in queue.local_queues]
    if local_queues:
        yield cluster.job_would_queue(reached, local_queues[0].namespace, local_queues[0].name)


def _unless_embedded(
    platform: PlatformModel, steps: Iterator[PlatformStep], reached: ClusterConnection
) -> Iterator[PlatformStep]:
    """Skip the operator's steps if the cluster is a `batchyard up`, which has its own engine."""
    if platform.engine is PlatformEngine.KUEUE:
        return steps
    return (replace(step, only_if=cluster.runs_batchyard(reached)) for step in steps)


def _confirm_first(steps: Sequence[PlatformStep], consent: Consent) -> list[PlatformStep]:
    """Ask before the first step that writes."""
    first = next(index for index, step in enumerate(steps) if step.commands)
    return [replace(step, consent=consent) if index == first else step for index, step in enumerate(steps)]


def where(reached: ClusterConnection) -> str:
    """Describe the cluster."""
    return f"the cluster of context {reached.context}" if reached.context else "the cluster of kubectl's own context"


#: Objects with cloud resources that outlive the cluster: load balancers, disks.
_OUTLIVES = ("services", "persistentvolumeclaims")


def destroy(
    platform: PlatformModel, files: Mapping[str, str], reached: ClusterConnection, *, is_unprotecting: bool = False
) -> list[PlatformStep]:
    """Return the steps that remove a platform; `reached`: access to its cluster.

    `is_unprotecting` turns off the deletion protection of a cluster on GKE; otherwise protection stops the removal.
    """
    if platform.google is not None:
        return _on_google(platform, reached, parts(platform, files), google.protection(is_unprotecting))
    all_parts = parts(platform, files)
    steps = [
        KUBECTL.step(),
        cluster.api_server(reached),
        cluster.running_workloads(reached),
        report_step(reached, platform, all_parts, "; it goes too"),
        _confirmation(f"This deletes {platform.name} from {where(reached)}: {_doomed(platform, all_parts)}."),
        cluster.drained(reached, _queue_names(platform)),
        *cluster.emptied(reached, namespaces(all_parts)),
        destroyed(reached, platform, all_parts),
    ]
    for part in reversed(all_parts):
        step = cluster.deleted(reached, part)
        steps.append(replace(step, only_if=cluster.no_other_platforms(reached)) if part.path == ENGINE else step)
    return steps


def _on_google(
    platform: PlatformModel, reached: ClusterConnection, all_parts: Sequence[ManifestPart], protection: PlatformStep
) -> list[PlatformStep]:
    """Delete workloads first, since Terraform does not know their nodes and disks; then Terraform's resources."""
    made = platform.google
    assert made is not None, "it is on GKE"
    there = Probe(
        run(
            *("gcloud", "container", "clusters", "list", f"--project={made.project}", f"--location={platform.region}"),
            *(f"--filter=name={platform.name}", "--format=value(name)"),
        ),
        prints_anything("the cluster does not exist"),
    )
    seen = [
        google.credentials(platform, made, reached.kubeconfig, reached.ask),
        cluster.api_server(reached),
        cluster.running_workloads(reached),
        report_step(reached, platform, all_parts, "; it goes too"),
    ]
    emptied = [
        cluster.drained(reached, _queue_names(platform)),
        *cluster.emptied(reached, namespaces(all_parts), _OUTLIVES),
        destroyed(reached, platform, all_parts),
        cluster.scaled_down(reached, _pools_that_stay(platform)),
    ]
    doomed = f"all its Terraform resources, including the cluster: {_doomed(platform, all_parts)}"
    return [
        *google.tools(),
        *google.account_steps(made.project),
        google.state_bucket_exists(platform, made),
        google.initialized(),
        *([] if protection.commands else [protection]),
        *(replace(step, only_if=there) for step in seen),
        _confirmation(f"This deletes {platform.name} in {made.project}, and {doomed}."),
        *(replace(step, only_if=there) for step in emptied),
        *([protection] if protection.commands else []),
        google.destroyed(made),
    ]


def _confirmation(question: str) -> PlatformStep:
    """Return a step that only asks for confirmation, before anything is deleted and after each restart."""
    return PlatformStep("confirm", "ask whether to delete it", consent=Consent(question, destroys=True))


def _pools_that_stay(platform: PlatformModel) -> list[str]:
    """Return the pools that never scale to zero."""
    return [pool["name"] for pool in platform.node_pools if _least_nodes(pool)]


def _least_nodes(pool: Mapping[str, Any]) -> int:
    scaling = pool.get("autoscaling")
    least = pool.get("nodeCount", 0) if scaling is None else scaling.get("totalMin", scaling.get("min", 0))
    return int(least)


def _queue_names(platform: PlatformModel) -> list[str]:
    return [queue.name for queue in platform.queues]


def namespaces(all_parts: Sequence[ManifestPart]) -> list[str]:
    """Return the teams' namespaces. The engine's is not included: finalizers need its controllers."""
    return [name for part in all_parts if part.path != ENGINE for name in part.named("Namespace")]


def _doomed(platform: PlatformModel, all_parts: Sequence[ManifestPart]) -> str:
    """Describe the objects that are lost."""
    count = len(platform.queues)
    lost = f"{count} ClusterQueue{'' if count == 1 else 's'}"
    names = namespaces(all_parts)
    return f"{lost}, and everything in the namespaces {', '.join(names)}" if names else lost


# --- leftovers ---
#
# What a destroyed platform leaves behind, why, its cost, and the command that removes it.


_RETAINED = '{range .items[?(@.spec.persistentVolumeReclaimPolicy=="Retain")]}{.metadata.name}{"\\n"}{end}'


def leftovers(platform: PlatformModel, reached: ClusterConnection, folder: str) -> Iterator[Leftover]:
    """Yield what remains after all steps, with the command that removes it."""
    if platform.google is None:
        yield Leftover(
            "volumes",
            "PersistentVolumes that outlive their claims (reclaim policy Retain), and their disks",
            reached.kubectl("get", "persistentvolumes", f"--output=jsonpath={_RETAINED}"),
            reached.kubectl("delete", "persistentvolume", "NAME").argv,
        )
    else:
        yield from _buckets(platform, platform.google)
        yield from _machines(platform.google)
        yield from _of_the_project(platform, platform.google)
    yield Leftover("folder", f"the rendered files, the journal and the logs in {folder}", None, ("rm", "-r", folder))


def _buckets(platform: PlatformModel, made: Google) -> Iterator[Leftover]:
    name = google.state_bucket(platform, made)
    yield Leftover(
        "state bucket",
        f"gs://{name}: Terraform's state, with old versions; billed as stored",
        _bucket(name),
        ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
    )
    if made.build:
        name = f"{made.project}_cloudbuild"
        yield Leftover(
            "sources of builds",
            f"gs://{name}: sources uploaded to Cloud Build; billed as stored",
            _bucket(name),
            ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
        )
        yield Leftover(
            "build account",
            "the service account and rights of Cloud Build, where terraform/build was applied; they cost nothing",
            None,
            ("terraform", f"-chdir={google.FOLDER}/build", "destroy"),
        )


def _bucket(name: str) -> StepCommand:
    return run("gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=value(name)")


def _machines(made: Google) -> Iterator[Leftover]:
    """Yield leftovers in Compute Engine."""
    project, columns = f"--project={made.project}", "--format=value(name,zone)"
    yield Leftover(
        "disks",
        "disks of volumes that no machine uses (reclaim policy Retain), of other clusters too; billed by size",
        run("gcloud", "compute", "disks", "list", project, "--filter=name~^pvc- AND -users:*", columns),
        ("gcloud", "compute", "disks", "delete", "NAME", "--zone=ZONE", project),
    )
    yield Leftover(
        "reservations",
        "reservations that Terraform did not make; billed whether they are used or not",
        run("gcloud", "compute", "reservations", "list", project, columns),
        ("gcloud", "compute", "reservations", "delete", "NAME", "--zone=ZONE", project),
    )
    if made.submitted:
        yield Leftover(
            "future reservations",
            "submitted future reservations; billed for their window, and Google may refuse to delete them",
            run("gcloud", "compute", "future-reservations", "list", project, columns),
            ("gcloud", "compute", "future-reservations", "delete", "NAME", "--zone=ZONE", project),
        )


def _of_the_project(platform: PlatformModel, made: Google) -> Iterator[Leftover]:
    project, place = f"--project={made.project}", f"--location={platform.region}"
    yield Leftover(
        "images",
        "repositories of images that Terraform did not create or had to keep; billed as stored",
        run("gcloud", "artifacts", "repositories", "list", project, place, "--format=value(name)"),
        ("gcloud", "artifacts", "repositories", "delete", "NAME", place, project),
    )
    yield Leftover(
        "APIs",
        "the APIs that were enabled; they cost nothing by themselves, and others may use them",
        None,
        ("gcloud", "services", "disable", "NAME", project),
    )
    yield Leftover(
        "logs and metrics",
        "logs and metrics of the cluster, until their time of retention is over",
        None,
        ("gcloud", "logging", "logs", "delete", "NAME", project),
    )
