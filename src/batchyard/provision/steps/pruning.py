"""Pruning: objects of earlier versions of a platform's file, found by label, reported and deleted.

Objects in a deleted namespace are deleted with it. RBAC objects are included: removed members keep no rights.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.provision.manifests.rendered import MANAGED_BY, PART_OF
from batchyard.provision.model import PlatformEngine, PlatformModel
from batchyard.provision.steps.cluster import WORKLOADS, ClusterConnection, ManifestPart
from batchyard.provision.steps.model import (
    CommandOutput,
    Consent,
    ConsentDetails,
    InputFromProbes,
    PlatformStep,
    Probe,
    ProbeResult,
    ResultParser,
    Retry,
    StepCommand,
)
from batchyard.provision.steps.probe_parsers import NOT_THERE, has_quota, is_gone, items_of, name_of, observe_failure

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
