"""Explains finished Workloads and those that hold quota: admission checks, pods without a node, possible preemptors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import TemporarilyForbidden
from batchyard.api.meta import Key, Obj, controller_of, find_condition, is_true
from batchyard.api.times import format_second, format_time
from batchyard.api.views import pods
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.autoscaler.expander import FULL
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import Instant
from batchyard.explain.blockers import occupants_of, selected_nodes
from batchyard.explain.document import BindingLimit, DocumentPart, ExplanationUser, nonempty_fields, pods_of
from batchyard.explain.fixes import awaited_event, propose_check_removal
from batchyard.explain.node_capacity import (
    AUTOSCALER_LIMITS,
    BOOTING,
    CLOUD_QUOTA,
    NODE_CAPACITY,
    STOCK_OUT,
    NodeCapacityView,
    propose_node_changes,
    propose_pod_constraints,
)
from batchyard.explain.topology import placement_part
from batchyard.interfaces.client import Reader
from batchyard.jobframework import shrinking
from batchyard.quotas.resource_quotas import QuotaAdmission
from batchyard.scheduling.preemption.shrinking import (
    PARTIALLY_PREEMPTED,
    allows_shrinking,
    pod_counts_after,
    releasable_part,
)
from batchyard.scheduling.quota import is_within_nominal
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.second_pass import find_obstacle
from batchyard.scheduling.workload.lifecycle import READY, awaits_topology, checks_of, retry_at
from batchyard.topology.ungater import has_topology_gate

# Node capacity: the autoscaler's messages about pods without a node, and the machines and retries that it waits for.


TOPOLOGY: Final = "topology"
TAINT: Final = "taint"
AFFINITY: Final = "affinity"
#: Parts of kube-scheduler's messages from the last filters: the node has enough free resources for the pod.
_FREE_NODE_MESSAGES: Final = (
    "without room for the whole Job",
    "anti-affinity rules",
    "pod affinity rules",
    "topology spread constraints",
)
_FULL_NODE_MESSAGES: Final = ("Insufficient", "Too many pods", FULL)
_SHOWN_MAX: Final = 5
#: What helps if no change of the existing pools, the other Workloads or the pods gives all pods a node.
_OTHER_NODES_NEEDED: Final = "its pods need nodes that no pool has, or a new job with other requests and constraints"
_REMEDY_BY_LIMIT: Final = {
    STOCK_OUT: "the autoscaler tries again by itself; otherwise use a pool of another zone or machine type",
    CLOUD_QUOTA: "raise the project's quota in the cloud; the autoscaler tries again by itself",
    BOOTING: "the pods are placed without a change when the machines are ready",
}


def placement_limit(scheduler_text: str, autoscaler_text: str, *, is_selected: bool) -> str:
    """Return why a pod has no node (such as TAINT), read from the messages of kube-scheduler and the autoscaler.

    `is_selected` is whether at least one node matches the pod's node selector.
    """
    if any(phrase in scheduler_text for phrase in _FREE_NODE_MESSAGES):
        return TOPOLOGY
    if any(phrase in text for phrase in _FULL_NODE_MESSAGES for text in (scheduler_text, autoscaler_text)):
        return NODE_CAPACITY
    if "untolerated taint" in scheduler_text and is_selected:
        return TAINT
    return AFFINITY if "node affinity/selector" in scheduler_text else NODE_CAPACITY


QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
RUNNING: Final = "Running"
EVICTED: Final = "Evicted"
FINISHED: Final = "Finished"
ADMISSION_CHECK: Final = "admissionCheck"
STARTING: Final = "starting"
POD_CREATION: Final = "podCreation"
SCHEDULING_GATES: Final = "schedulingGates"
#: The reason of the Job controller's Events about pods that the API server rejected.
_POD_REJECTED: Final = "FailedCreate"
_QUOTA_PATTERN: Final = re.compile(r"exceeded quota: ([^\s,]+)")
_POD_REMEDY: Final = "correct what rejects the pods, such as a ResourceQuota; the Job controller then creates them"


class AdmittedExplainer:
    """Explains Workloads that hold quota: which admission check, pod or node they wait for, or where they run."""

    def __init__(self, scheduler_cache: SchedulerCache, reader: Reader, node_capacity: NodeCapacityView | None) -> None:
        self._scheduler_cache = scheduler_cache
        self._reader = reader
        self._capacity = node_capacity

    def explain(self, workload: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        """Return the Explanation document's fields of a Workload that holds quota, such as `state` and `summary`."""
        admission = (workload.get("status") or {}).get("admission") or {}
        queue = admission.get("clusterQueue", "")
        part: DocumentPart = nonempty_fields(clusterQueue=queue, admission=_assignment_parts(admission))
        view = workload_view(workload)
        part["priority"] = view.priority
        part |= placement_part(view, self._scheduler_cache.snapshot)
        eviction, admitted_condition = find_condition(workload, "Evicted"), find_condition(workload, "Admitted")
        if eviction is not None and eviction["status"] == "True":
            summary = f"it is being evicted ({eviction['reason']}): {eviction['message']}"
            return {**part, "state": EVICTED, "summary": summary, "facts": {"since": eviction["lastTransitionTime"]}}
        if admitted_condition is None or admitted_condition["status"] != "True":
            return {**part, "state": QUOTA_RESERVED, **self._explain_checks(workload)}
        preemptors = self._describe_possible_preemptors(view)
        part["facts"] = nonempty_fields(
            since=admitted_condition["lastTransitionTime"],
            preemptible=preemptors,
            partiallyPreempted=self._describe_shrinking(workload),
            partialPreemption=self._describe_releasable_part(view) if allows_shrinking(workload) else "",
        )
        return {**part, **self._explain_pods(workload, admitted_condition, now, user)}

    # --- admission checks ---

    def _explain_checks(self, workload: Obj) -> DocumentPart:
        check_states = checks_of(workload)
        checks = [nonempty_fields(name=c["name"], state=c["state"], message=c.get("message", "")) for c in check_states]
        request_parts = [
            nonempty_fields(kind=each["kind"], name=_name_of(each), conditions=_conditions_text(each))
            for each in self._provisioning_requests(workload)
        ]
        document_part = nonempty_fields(checks=checks, requests=request_parts)
        waiting_checks = [check for check in checks_of(workload) if check["state"] != READY]
        if not waiting_checks:
            delayed_part = self._explain_delayed_domains(workload)
            return {**document_part, "summary": "it has quota, and is admitted next", **delayed_part}
        first_check = waiting_checks[0]
        suffix = f": {first_check['message']}" if first_check.get("message") else ""
        text = f"it has quota, and waits for AdmissionCheck {first_check['name']} ({first_check['state']}){suffix}"
        binding_limit = BindingLimit(
            ADMISSION_CHECK, text, "AdmissionCheck", first_check["name"], until=retry_at(workload)
        )
        queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
        changes = [each.document() for each in propose_check_removal(queue, waiting_checks, self._reader)]
        document_part |= nonempty_fields(changes=changes, changesEnd=awaited_event(first_check, self._reader))
        return {**document_part, "summary": text, "binding": binding_limit.document()}

    def _explain_delayed_domains(self, workload: Obj) -> DocumentPart:
        """Return why a Workload with ready AdmissionChecks gets no topology domains; {} if it needs none."""
        view, snapshot = workload_view(workload), self._scheduler_cache.snapshot
        queue = snapshot.queues.get(view.cluster_queue)
        if queue is None or not awaits_topology(workload["status"]):
            return {}
        reason = find_obstacle(view, queue, snapshot)
        if not reason:
            return {"summary": "it has quota, and gets its topology domains next"}
        flavors = [flavor for held in view.admitted_pod_sets for flavor in held.flavors.values()]
        flavor = next((each for each in flavors if each in snapshot.topology.flavors), "")
        topology = snapshot.topology.flavors[flavor].topology if flavor else ""
        binding_limit = BindingLimit(TOPOLOGY, reason, "Topology" if topology else "", topology, flavor)
        summary = f"it has quota, and waits for topology domains: {reason}"
        end = "the scheduler searches again at least every 30 s"
        return {"summary": summary, "binding": binding_limit.document(), "changesEnd": end}

    def _provisioning_requests(self, workload: Obj) -> list[Obj]:
        metadata = workload["metadata"]
        owned_objects = self._reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
        return [each for each in owned_objects if each["kind"] == "ProvisioningRequest"]

    # --- pods and nodes ---

    def _explain_pods(self, workload: Obj, admission: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        job_pods = pods_of(workload, self._reader)
        admitted_at = admission["lastTransitionTime"]
        incomplete_jobs = [job for job in _jobs_of(workload, self._reader) if _lacking_pod_count(job)]
        rejection = self._pod_rejection(incomplete_jobs, now)
        if rejection is not None:
            lacking_count = sum(map(_lacking_pod_count, incomplete_jobs))
            verb = select_verb(lacking_count, "does", "do")
            text = f"admitted, but {lacking_count} of its pods {verb} not exist: {rejection}"
            quota_name = _quota_in_message(rejection)
            kind, name = ("ResourceQuota", quota_name) if quota_name else ("Workload", _name_of(workload))
            binding_limit = BindingLimit(POD_CREATION, text, kind, name)
            return {"state": ADMITTED, "summary": text, "binding": binding_limit.document(), "changesEnd": _POD_REMEDY}
        if not job_pods:
            if is_true(workload, "PodsReady") or not _has_owner(workload):
                return {"state": RUNNING, "summary": f"it has run since {admitted_at}"}
            return {
                "state": ADMITTED,
                "summary": f"admitted at {admitted_at}; its pods are not created yet, or have ended",
            }
        unplaced_pods = [pod for pod in job_pods if not pods.bound_node(pod) and not pods.is_ready(pod)]
        gated_pods = [pod for pod in unplaced_pods if _gate_names(pod)]
        if gated_pods and (len(gated_pods) == len(unplaced_pods) or self._capacity is None):
            return _explain_gated_pods(workload, job_pods, gated_pods)
        if self._capacity is not None and unplaced_pods:
            return self._explain_unplaced_pods(workload, job_pods, now, user)
        starting_pods = [pod for pod in job_pods if not pods.is_ready(pod)]
        nodes = sorted({node: None for pod in job_pods if (node := pods.bound_node(pod))})
        location_suffix = f" on {_shorten_names(nodes)}" if nodes else ""
        if starting_pods:
            pods_text = f"{count_with_noun(len(job_pods), 'pod')} {select_verb(len(starting_pods), 'is', 'are')}"
            start_reason = _waiting_containers_text(starting_pods[0]) or "its containers are starting"
            text = f"{len(starting_pods)} of {pods_text} not ready{location_suffix}: {start_reason}"
            binding_limit = BindingLimit(STARTING, text, "Pod", _name_of(starting_pods[0]))
            return {"state": ADMITTED, "summary": text, "binding": binding_limit.document()}
        expected_count = sum(holding.pods for holding in workload_view(workload).admitted_pod_sets)
        existing_text = f"{len(job_pods)} of " if expected_count > len(job_pods) else ""
        pods_text = count_with_noun(max(expected_count, len(job_pods)), "pod")
        summary = f"it has run since {admitted_at}: {existing_text}{pods_text}{location_suffix}"
        return {"state": RUNNING, "summary": summary}

    def _pod_rejection(self, jobs: Sequence[Obj], now: Instant) -> str | None:
        """Return why the API server rejects pods of these Jobs; None if unknown.

        This is the error of a ResourceQuota for a new pod, or else the message of the latest FailedCreate Event.
        """
        for job in jobs:
            namespace = job["metadata"].get("namespace", "")
            metadata = {"namespace": namespace, "name": f"{_name_of(job)}-"}
            metadata["creationTimestamp"] = format_time(now)
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": job["spec"]["template"]["spec"]}
            try:
                QuotaAdmission().check_new_object(pod, self._reader)
            except TemporarilyForbidden as error:
                return str(error)
        job_uids = [job["metadata"]["uid"] for job in jobs]
        if not job_uids:
            return None
        events = [
            (str(event.get("lastTimestamp") or event.get("eventTime") or ""), str(event["message"]))
            for event in self._reader.list(scheme.EVENT, jobs[0]["metadata"].get("namespace", ""))
            if event.get("reason") == _POD_REJECTED and event["involvedObject"].get("uid") in job_uids
        ]
        return max(events)[1] if events else None

    def _explain_unplaced_pods(
        self, workload: Obj, job_pods: Sequence[Obj], now: Instant, user: ExplanationUser
    ) -> DocumentPart:
        unplaced_pods = [pod for pod in job_pods if not pods.bound_node(pod) and not _gate_names(pod)]
        gated_pods = [pod for pod in job_pods if not pods.bound_node(pod) and _gate_names(pod)]
        scheduler_texts = _count_texts(map(_scheduler_text, unplaced_pods))
        autoscaler_texts = _count_texts(map(self._autoscaler_text, unplaced_pods))
        autoscaler_message = next(iter(autoscaler_texts), "")
        assert self._capacity is not None, "pods without nodes are explained only if the node capacity is known"
        wait_texts, (limit_kind, pool) = (
            self._capacity.describe_waits(now),
            self._capacity.limit_in_message(autoscaler_message, now),
        )
        scheduler_message = next(iter(scheduler_texts), "the scheduler has not processed them yet")
        views = [pod_view(pod) for pod in unplaced_pods]
        if limit_kind == NODE_CAPACITY and (pool := self._capacity.booting_pool_for(views)):
            limit_kind = BOOTING
        if limit_kind == NODE_CAPACITY:
            is_selected = bool(selected_nodes(views[0], self._reader))
            limit_kind = placement_limit(scheduler_message, autoscaler_message, is_selected=is_selected)
        pods_text = f"{count_with_noun(len(job_pods), 'pod')} {select_verb(len(unplaced_pods), 'has', 'have')}"
        text = f"admitted, but {len(unplaced_pods)} of {pods_text} no node: {scheduler_message}"
        details = [f"scheduler, {count_with_noun(count, 'pod')}: {each}" for each, count in scheduler_texts.items()]
        details += [f"autoscaler, {count_with_noun(count, 'pod')}: {each}" for each, count in autoscaler_texts.items()]
        details += [f"autoscaler waits for: {each}" for each in wait_texts]
        details += [_gates_text(workload, len(job_pods), gated_pods)] if gated_pods else []
        nodes = nonempty_fields(unplaced_pods=len(unplaced_pods), pods=len(job_pods), text=details, waitsFor=wait_texts)
        flavor = _flavor_of(workload)
        kind, object_name = ("NodePool", pool) if pool else ("ResourceFlavor", flavor)
        is_cloud_limit = limit_kind in {STOCK_OUT, CLOUD_QUOTA}
        until = self._capacity.retry_time(now) if is_cloud_limit else None
        message = autoscaler_message or scheduler_message
        binding_limit = BindingLimit(limit_kind, message, kind, object_name, flavor, until=until)
        document_part = {"state": ADMITTED, "summary": text, "binding": binding_limit.document(), "nodes": nodes}
        occupants = occupants_of(workload, unplaced_pods, self._scheduler_cache.snapshot, self._reader)
        holder_parts = [each._replace(flavor=flavor).document(user) for each in occupants[:_SHOWN_MAX]]
        document_part |= nonempty_fields(holders=holder_parts, holdersMore=max(0, len(occupants) - _SHOWN_MAX) or None)
        if limit_kind in {NODE_CAPACITY, AUTOSCALER_LIMITS, TOPOLOGY}:
            proposals = propose_node_changes(views, occupants, self._capacity, user)
        elif is_cloud_limit:
            unavailable_pools = self._capacity.pools_in_backoff(now)
            proposals = chain(
                propose_pod_constraints(unplaced_pods, self._capacity, self._reader),
                propose_node_changes(views, occupants, self._capacity, user, unavailable_pools),
            )
        else:
            proposals = propose_pod_constraints(unplaced_pods, self._capacity, self._reader)
        changes = [each.document() for each in proposals]
        changes_end = "" if changes else _REMEDY_BY_LIMIT.get(limit_kind, _OTHER_NODES_NEEDED)
        if until is not None:
            changes_end = f"{changes_end}; next attempt: {format_second(until)}".removeprefix("; ")
        return {**document_part, **nonempty_fields(changes=changes, changesEnd=changes_end)}

    def _autoscaler_text(self, pod: Obj) -> str:
        return "" if self._capacity is None else self._capacity.last_message_for(pod["metadata"].get("uid", ""))

    def _describe_shrinking(self, workload: Obj) -> str:
        """Return why and since when an elastic job is at its minimum, and when it grows again; '' if it is not."""
        condition = find_condition(workload, PARTIALLY_PREEMPTED)
        if condition is None:
            return ""
        message = condition["message"].removeprefix("Previously: ")
        since = f"since {condition['lastTransitionTime']}: {message}"
        if condition["status"] == "True":
            return f"{since}; the surplus pods are stopping"
        owner = controller_of(workload)
        namespace = workload["metadata"].get("namespace", "")
        job = None if owner is None else self._reader.get(Key(scheme.JOB, namespace, owner["name"]))
        due = None if job is None else shrinking.full_size_due(job)
        return since if due is None else f"{since}; it requests its full size again at {format_second(due)}"

    def _describe_releasable_part(self, view: WorkloadView) -> str:
        """Return how far a partial preemption would shrink a Workload, or why a preemption evicts it as a whole."""
        snapshot = self._scheduler_cache.snapshot
        holder = snapshot.holder(view.key)
        if holder is None:
            return ""
        if holder.topology_usage:
            return "not possible: a job that shrinks keeps its topology domains, so a preemption evicts all its pods"
        part = releasable_part(holder, snapshot)
        if part is None:
            return "not possible: the job has no more pods than its minimum, so a preemption evicts all of them"
        kept, count = pod_counts_after(part)
        return f"leaves {kept} of its {count} pods, if that frees enough"

    # --- possible preemptors ---

    def _describe_possible_preemptors(self, view: WorkloadView) -> str:
        quota_holder = self._scheduler_cache.snapshot.holder(view.key)
        if quota_holder is None:
            return ""
        queue = quota_holder.queue
        policy = queue.view.preemption.within_cluster_queue
        preemptor_texts = []
        if policy != "Never":
            equal_text = ", or older ones of equal priority" if "Equal" in policy else ""
            preemptor_texts.append(f"in {queue.name} by Workloads of priority above {view.priority}{equal_text}")
        if queue.node.parent is not None:
            frs = [fr for fr, _ in quota_holder.usage]
            is_borrowing = not is_within_nominal(queue.node, frs)
            other_queues = [
                each.name
                for each in self._scheduler_cache.snapshot.queues_below(queue.node.path[0])
                if each is not queue and each.view.preemption.reclaim_within_cohort != "Never"
            ]
            if is_borrowing and other_queues:
                preemptor_texts.append(f"by {', '.join(other_queues[:_SHOWN_MAX])} for quota that {queue.name} borrows")
        return "; ".join(preemptor_texts) or "by no Workload at present"


# Pods with scheduling gates, which no node helps.


def _gate_names(pod: Obj) -> str:
    return ", ".join(each["name"] for each in (pod.get("spec") or {}).get("schedulingGates") or ())


def _gates_text(workload: Obj, pod_count: int, gated_pods: Sequence[Obj]) -> str:
    count, sliceless_count = len(gated_pods), _sliceless_count(workload)
    pods_text = f"{count} of {count_with_noun(pod_count, 'pod')}"
    if all(map(has_topology_gate, gated_pods)) and sliceless_count:
        verbs = select_verb(count, "is in no slice, gets", "are in no slice, get")
        keeps = select_verb(count, "keeps its scheduling gate", "keep their scheduling gates")
        if count <= sliceless_count:
            return f"{pods_text} {verbs} no topology domain, and {keeps}"
    return f"{pods_text} {select_verb(count, 'has', 'have')} the scheduling gate {_gate_names(gated_pods[0])}"


def _sliceless_count(workload: Obj) -> int:
    """Return how many admitted pods have no topology domain although their pod set has domains."""
    held_pod_sets = workload_view(workload).admitted_pod_sets
    return sum(
        held.pods - sum(domain.pods for domain in held.topology.domains)
        for held in held_pod_sets
        if held.topology is not None
    )


def _explain_gated_pods(workload: Obj, job_pods: Sequence[Obj], gated_pods: Sequence[Obj]) -> DocumentPart:
    """Return the document fields of an admitted Workload whose pods without a node all have scheduling gates."""
    gates_text = _gates_text(workload, len(job_pods), gated_pods)
    binding_limit = BindingLimit(SCHEDULING_GATES, gates_text, "Pod", _name_of(gated_pods[0]))
    if "in no slice" in gates_text:
        remedy = "submit the job again with a number of pods that the slice size divides; no node helps"
    else:
        remedy = "its pods are placed after their scheduling gates are removed; no node helps before"
    part = {"state": ADMITTED, "summary": f"admitted, but {gates_text}", "binding": binding_limit.document()}
    return {**part, "changesEnd": remedy}


def explain_finished(workload: Obj) -> DocumentPart:
    """Return the fields `state` and `summary` of a finished Workload's Explanation document."""
    condition = find_condition(workload, "Finished")
    assert condition is not None
    summary = (
        f"it finished at {condition['lastTransitionTime']} ({condition['reason']}): {condition.get('message', '')}"
    )
    return {"state": FINISHED, "summary": summary.rstrip(": ")}


def _assignment_parts(admission: Mapping[str, Any]) -> list[DocumentPart]:
    return [
        nonempty_fields(
            name=each["name"], count=each.get("count"), flavors=each.get("flavors"), uses=each.get("resourceUsage")
        )
        for each in admission.get("podSetAssignments") or ()
    ]


def _jobs_of(workload: Obj, reader: Reader) -> list[Obj]:
    owner, namespace = controller_of(workload), workload["metadata"].get("namespace", "")
    if owner is None:
        return []
    job = reader.get(Key(scheme.JOB, namespace, owner["name"])) if owner["kind"] == "Job" else None
    return [
        each for each in (job, *reader.owned_by(owner["uid"], namespace)) if each is not None and each["kind"] == "Job"
    ]


def _lacking_pod_count(job: Obj) -> int:
    spec, status = job["spec"], job.get("status") or {}
    if spec.get("suspend"):
        return 0
    parallelism = int(spec.get("parallelism", 1))
    completions = spec.get("completions")
    remaining = parallelism if completions is None else int(completions) - int(status.get("succeeded", 0))
    return max(0, min(parallelism, remaining) - int(status.get("active", 0)))


def _quota_in_message(message: str) -> str:
    match = _QUOTA_PATTERN.search(message)
    return "" if match is None else match[1]


def _conditions_text(request: Obj) -> str:
    conditions = (request.get("status") or {}).get("conditions") or ()
    condition_texts = [f"{each['type']}={each['status']} {each.get('message', '')}".strip() for each in conditions]
    return "; ".join(condition_texts) or "not accepted yet"


def _waiting_containers_text(pod: Obj) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        for kind in ("waiting", "terminated"):
            if kind in state:
                details = [state[kind][field] for field in ("reason", "message") if state[kind].get(field)]
                return f"container {status['name']} {kind}: {': '.join(details)}" if details else ""
    return ""


def pod_part(pod: Obj, node_capacity: NodeCapacityView | None) -> DocumentPart:
    """Return the document field `pod`: phase, node, scheduling gates, and messages on why the pod is not running."""
    message = "" if node_capacity is None else node_capacity.last_message_for(pod["metadata"].get("uid", ""))
    return nonempty_fields(
        phase=(pod.get("status") or {}).get("phase", "Pending"),
        node=pods.bound_node(pod),
        gates=_gate_names(pod),
        scheduler=_scheduler_text(pod),
        autoscaler=message,
        containers=_waiting_containers_text(pod),
    )


def _scheduler_text(pod: Obj) -> str:
    condition = find_condition(pod, "PodScheduled")
    return str(condition.get("message", "")) if condition is not None and condition["status"] != "True" else ""


def _count_texts(texts: Iterable[str]) -> dict[str, int]:
    count_by_text: dict[str, int] = {}
    for text in filter(None, texts):
        count_by_text[text] = count_by_text.get(text, 0) + 1
    return dict(sorted(count_by_text.items(), key=lambda each: -each[1]))


def _shorten_names(names: Sequence[str]) -> str:
    omitted_suffix = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{', '.join(names[:_SHOWN_MAX])}{omitted_suffix}"


def _flavor_of(workload: Obj) -> str:
    pod_set_assignments = _assignment_parts((workload.get("status") or {}).get("admission") or {})
    return next((str(flavor) for each in pod_set_assignments for flavor in (each.get("flavors") or {}).values()), "")


def _has_owner(workload: Obj) -> bool:
    return bool(workload["metadata"].get("ownerReferences"))


def _name_of(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name
