"""The state of all objects, independent of times and of random names."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchyard.api import scheme

Obj = Mapping[str, Any]
List = Callable[[str], Sequence[Obj]]

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HASH = re.compile(r"-[0-9a-f]{5}\b")
#: A duration; the generated part of a pod's name can look like one.
_LASTED = re.compile(r"(?<!-)\b(?:\d+(?:\.\d+)?(?:ms|us|s|m|h))+\b")
_OWNED = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.PROVISIONING_REQUEST)


def outcome(objects: List) -> dict[str, Any]:
    """Return the current outcome."""
    names = {obj["metadata"]["uid"]: obj["metadata"]["name"] for kind in _OWNED for obj in objects(kind)}

    def stated(text: str) -> str:
        known = _UID.sub(lambda uid: names.get(uid[0], "gone"), text)
        return _LASTED.sub("a while", _HASH.sub("", known))

    def of(obj: Obj) -> str:
        return _HASH.sub("", obj["metadata"]["name"])

    return {
        "workloads": {of(obj): _workload(obj, stated) for obj in objects(scheme.WORKLOAD)},
        "jobs": {of(obj): _job(obj, stated) for obj in objects(scheme.JOB)},
        "jobsets": {of(obj): _jobset(obj, stated) for obj in objects(scheme.JOB_SET)},
        "queues": {of(obj): _queue(obj) for obj in objects(scheme.CLUSTER_QUEUE)},
        "requests": {of(obj): _conditions(obj, stated) for obj in objects(scheme.PROVISIONING_REQUEST)},
        "pods": dict(sorted(Counter(_pod(obj) for obj in objects(scheme.POD)).items())),
    }


def differences(wanted: Any, found: Any, place: str = "") -> Iterator[str]:
    """Return the differences between two outcomes."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in dict.fromkeys((*wanted, *found)):
            yield from differences(wanted.get(name), found.get(name), f"{place}/{name}")
    elif wanted != found:
        yield f"{place}: {wanted} expected, found {found}"


def _conditions(obj: Obj, stated: Callable[[str], str]) -> list[str]:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return sorted(f"{c['type']}={c['status']} {c.get('reason')}: {stated(c.get('message') or '')}" for c in conditions)


def _workload(obj: Obj, stated: Callable[[str], str]) -> dict[str, Any]:
    status = obj.get("status") or {}
    admission = status.get("admission") or {}
    assigned, checks = admission.get("podSetAssignments") or (), status.get("admissionChecks") or ()
    evictions = (status.get("schedulingStats") or {}).get("evictions") or ()
    return {
        "in": admission.get("clusterQueue"),
        "flavors": [(each.get("count"), dict(each.get("flavors") or {})) for each in assigned],
        "checks": [(each["name"], each["state"], stated(each.get("message") or "")) for each in checks],
        "conditions": _conditions(obj, stated),
        "evictions": [(each["reason"], each["count"]) for each in evictions],
    }


def _job(obj: Obj, stated: Callable[[str], str]) -> dict[str, Any]:
    status = obj.get("status") or {}
    counts = {field: status.get(field, 0) for field in ("active", "succeeded", "failed")}
    return {**counts, "suspend": obj["spec"].get("suspend"), "conditions": _conditions(obj, stated)}


def _jobset(obj: Obj, stated: Callable[[str], str]) -> dict[str, Any]:
    status = obj.get("status") or {}
    return {
        "restarts": status.get("restarts", 0),
        "state": status.get("terminalState"),
        "suspend": obj["spec"].get("suspend"),
        "conditions": _conditions(obj, stated),
    }


def _queue(obj: Obj) -> dict[str, Any]:
    status = obj.get("status") or {}
    usage = {
        f"{flavor['name']}/{resource['name']}": (resource["total"], resource.get("borrowed"))
        for flavor in status.get("flavorsUsage") or ()
        for resource in flavor["resources"]
    }
    return {**{field: status.get(field, 0) for field in ("pendingWorkloads", "admittedWorkloads")}, "usage": usage}


def _pod(obj: Obj) -> str:
    labels = obj["metadata"].get("labels") or {}
    job = labels.get("batch.kubernetes.io/job-name", "")
    placed = "placed" if obj["spec"].get("nodeName") else "nowhere"
    return f"{job} {(obj.get('status') or {}).get('phase')} {placed}"
