"""Why a pod or a group of pods in a queue has no Workload: members that are missing or differ, and other causes."""

from collections.abc import Sequence
from typing import Final

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, key_of, label
from batchyard.api.views import pods, queued_pods
from batchyard.api.views.pods import is_terminal
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.interfaces.client import Reader
from batchyard.jobs.pod import group
from batchyard.scheduling.workload import adjustments, lifecycle

_SHOWN_MAX: Final = 5


def workload_of_pod(pod: Obj, reader: Reader) -> Obj | None:
    """Return the Workload of a pod in a queue or of its group; None if it does not exist."""
    namespace, name = pod["metadata"].get("namespace", ""), queued_pods.group_name(pod)
    if name:
        workload = reader.get(Key(scheme.WORKLOAD, namespace, name))
        owners = () if workload is None else workload["metadata"].get("ownerReferences") or ()
        is_owner = any(owner["uid"] == pod["metadata"].get("uid") for owner in owners)
        is_own = workload is not None and (is_owner or lifecycle.is_group_workload(workload))
        return workload if is_own else None
    owned = reader.owned_by(pod["metadata"].get("uid", ""), namespace)
    return next((each for each in owned if each["kind"] == "Workload"), None)


def missing_workload_reason(pod: Obj, reader: Reader) -> str:
    """Return why a pod in a queue has no Workload, and what to do."""
    name = queued_pods.group_name(pod)
    gate_text = f"; it waits with the gate {well_known.ADMISSION_GATE}" if queued_pods.has_admission_gate(pod) else ""
    class_key = adjustments.priority_class_key(pod, pod["spec"].get("priorityClassName") or "")
    if class_key is not None and reader.get(class_key) is None:
        kind = scheme.kind_info(class_key.kind).kind
        return f"the pod has no Workload: {kind} {class_key.name} does not exist; create it{gate_text}"
    if name:
        return f"{_group_problem(pod, name, reader)}{gate_text}"
    if is_terminal(pod):
        return "the pod has ended, and its Workload was deleted"
    return f"the Workload of the pod is not created yet{gate_text}"


def _group_problem(pod: Obj, name: str, reader: Reader) -> str:
    namespace = pod["metadata"].get("namespace", "")
    if reader.get(Key(scheme.WORKLOAD, namespace, name)) is not None:
        return f"group {name} has no Workload: another job has a Workload of this name; rename the group"
    members = [
        each
        for each in reader.list(scheme.POD, namespace)
        if queued_pods.group_name(each) == name and pods.is_in_queue(each)
    ]
    active = [each for each in members if group.is_runnable_or_succeeded(each)]
    total = queued_pods.group_count(pod)
    if total is not None and len(active) < total and not queued_pods.has_fast_admission(pod):
        return _missing_members(name, members, active, total)
    problem = group.group_error(group.PodJob(members or [pod], name, 0), active)
    return f"group {name} has no Workload: {problem}" if problem else f"the Workload of group {name} is not created yet"


def _missing_members(name: str, members: Sequence[Obj], active: Sequence[Obj], total: int) -> str:
    """Return which members of a group exist, how many are missing, which ones if pods have indexes, and since when."""
    missing = total - len(active)
    verb = select_verb(missing, "is", "are")
    names = [key_of(each).name for each in active]
    names_text = f" ({_shown(names)})" if names else ""
    text = f"group {name} has {len(active)} of {count_with_noun(total, 'pod')}{names_text}: {missing} {verb} missing"
    indexes = {meta.parse_integer(value) for each in active if (value := label(each, well_known.POD_GROUP_INDEX))}
    if indexes:
        missing_indexes = [str(index) for index in range(min(total, 10_000)) if index not in indexes]
        more = ", ..." if len(missing_indexes) > _SHOWN_MAX else ""
        text += f", with index {', '.join(missing_indexes[:_SHOWN_MAX])}{more}"
    since = max((each["metadata"].get("creationTimestamp", "") for each in active), default="")
    text += f"; the last pod was created at {since}" if since else ""
    lost = [key_of(each).name for each in members if not group.is_runnable_or_succeeded(each)]
    if lost:
        text += f"; {_shown(lost)} failed or {select_verb(len(lost), 'is', 'are')} being deleted"
    return text


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {len(names) - _SHOWN_MAX} more" * (len(names) > _SHOWN_MAX))


def replacement_text(workload: Obj, members: Sequence[Obj]) -> str:
    """Return which roles of a group lack pods; '' if the group waits for none."""
    if not meta.is_true(workload, group.WAITING_FOR_REPLACEMENT):
        return ""
    counts: dict[str, int] = {}
    for pod in members:
        if group.is_runnable_or_succeeded(pod):
            role = queued_pods.role_of(pod)
            counts[role] = counts.get(role, 0) + 1
    lacks = [
        f"{lacking} of role {each['name']}"
        for each in workload["spec"]["podSets"]
        if (lacking := each["count"] - counts.get(each["name"], 0)) > 0
    ]
    return f"the group lacks pods ({', '.join(lacks)}); create pods that replace them" if lacks else ""
