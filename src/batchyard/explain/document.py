"""The document of kind Explanation that `batchyard why` prints, and lookups of an object's Workload and pods."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, controlling_jobs, format_amount, is_true, label
from batchyard.api.times import format_time
from batchyard.api.views.pods import is_in_queue, is_terminal
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader
from batchyard.jobframework.slices import has_gate, slice_order
from batchyard.jobframework.workloads import prebuilt_key
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.scheduling import quota, slices
from batchyard.scheduling.cluster_queue import ClusterQueue, ResourceGroupRequest, mismatch_rule
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.flavor_assigner import FlavorAssigner
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder
from batchyard.scheduling.preemption.context import may_preempt
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.topology_nomination import FlavorTopologyMismatches, is_topology_considered
from batchyard.scheduling.workload import adjustments
from batchyard.scheduling.workload.lifecycle import has_queued_pods

# The outcome of every flavor of a ClusterQueue for a Workload, including flavors that the scheduler does not reach.
#
# The breakdown calls the flavor assigner's functions for all flavors; the scheduler stops at the first one that fits.


#: The possibilities in which preemption would release enough quota.
PREEMPTING_POSSIBILITIES: Final = frozenset({quota.PreemptionPossibility.PREEMPT, quota.PreemptionPossibility.RECLAIM})


class FlavorResourceRequest(NamedTuple):
    """A pod set's request for one resource in one ResourceFlavor, with the ClusterQueue's available quota."""

    resource: str
    #: The id of the flavor-resource in the snapshot.
    fr: int
    #: The request of the pod set, and the requests of earlier pod sets for the same flavor and resource.
    amount: int
    earlier_pod_sets_amount: int
    #: The available quota of the ClusterQueue, and the maximum that it could use in an empty cohort tree.
    free_quota: int
    potential_quota: int
    possibility: quota.PreemptionPossibility

    @property
    def total(self) -> int:
        """The requested amount: of this pod set and of the Workload's earlier pod sets in the same flavor."""
        return self.earlier_pod_sets_amount + self.amount

    @property
    def shortfall(self) -> int:
        """The amount of quota that the request needs beyond the available quota; 0 if the request fits."""
        return max(0, self.total - self.free_quota) if self.total else 0

    @property
    def missing_fraction(self) -> float:
        """The amount beyond the potential quota, or else the `shortfall`, as a fraction of the total request."""
        missing_amount = max(0, self.total - self.potential_quota) or self.shortfall
        return missing_amount / self.total if self.total else 0.0

    @property
    def difficulty(self) -> int:
        """How hard the quota is to get: 1 by preemption, 2 not by preemption, 3 beyond the potential quota."""
        if self.total > self.potential_quota:
            return 3
        return 1 if self.possibility in PREEMPTING_POSSIBILITIES else 2


class FlavorOutcome(NamedTuple):
    """How a pod set's requests fit one ResourceFlavor: an obstacle or a preemption possibility, and each request."""

    flavor: str
    #: The index of the flavor's resource group.
    group_index: int
    #: Why the flavor is excluded regardless of quota, in Kueue's words; '' if it may be used.
    obstacle: str
    requests: tuple[FlavorResourceRequest, ...]
    #: The preemption possibility of the resource that fits worst.
    possibility: quota.PreemptionPossibility

    @property
    def fits(self) -> bool:
        """Whether the pod set's requests fit the available quota of the flavor without preemption."""
        return self.possibility is quota.PreemptionPossibility.FIT

    @property
    def exceeds_potential(self) -> bool:
        """Whether a request exceeds the quota that the ClusterQueue could use if the cohort tree were empty."""
        return any(request.total > request.potential_quota for request in self.requests)

    def binding_requests(self) -> list[FlavorResourceRequest]:
        """Return the unmet requests with the highest `difficulty`, sorted by missing fraction, the largest first.

        The list is empty if all requests fit.
        """
        unmet_requests = [request for request in self.requests if request.shortfall]
        hardest = max((request.difficulty for request in unmet_requests), default=0)
        hardest_requests = [request for request in unmet_requests if request.difficulty == hardest]
        return sorted(hardest_requests, key=lambda each: -each.missing_fraction)


class PodSetFlavorOutcomes(NamedTuple):
    """One pod set with the FlavorOutcome of each flavor in the resource groups that it requests resources of."""

    name: str
    pod_count: int
    outcomes: tuple[FlavorOutcome, ...]
    #: The first requested resource that no group of the ClusterQueue covers; '' if all are covered.
    uncovered_resource: str

    def grouped_outcomes(self) -> list[list[FlavorOutcome]]:
        """Return the flavor outcomes as one list for each resource group."""
        outcomes_by_group: dict[int, list[FlavorOutcome]] = {}
        for outcome in self.outcomes:
            outcomes_by_group.setdefault(outcome.group_index, []).append(outcome)
        return list(outcomes_by_group.values())


def assess_flavors(
    snapshot: Snapshot, queue: ClusterQueue, workload: WorkloadView, policy: SchedulingPolicy
) -> tuple[PodSetFlavorOutcomes, ...]:
    """Return how the requests of each pod set fit each flavor, given the flavors assigned to the earlier pod sets."""
    is_preemptor = may_preempt(snapshot, queue)
    preemptor = Preemptor(workload, queue, snapshot, policy.fair_strategies, policy.rules) if is_preemptor else None
    assigner = FlavorAssigner(
        workload,
        queue,
        snapshot,
        None if preemptor is None else preemptor.simulate_preemption,
        None,
        policy.fair_sharing,
        (),
    )
    if workload.replaced_slice and policy.rules.elastic_jobs:
        assigner.replaced = slices.find_replaced_slice(workload, queue)
        assigner.keeps_unused_flavors = not policy.rules.changes_unused_flavors
    topology_mismatches = None
    if is_topology_considered(workload, queue, snapshot):
        topology_mismatches = assigner.topology = FlavorTopologyMismatches(workload, queue, snapshot)
    assignment = assigner.assign(workload.counts)
    usage_by_pod_set = {each.name: each.assigned_flavors.usage for each in assignment.pod_sets}
    assumed_usage: quota.Usage = ()
    results = []
    for index, pod_set in enumerate(workload.pod_sets):
        pod_set_request = queue.coverage.split_pod_requests(
            pod_set.template, workload.counts[index], snapshot.obstacles
        )
        if assigner.replaced is not None:
            pod_set_request = assigner.request_difference(pod_set_request, assigner.replaced, (index,))
            pod_set_request = slices.with_mismatches_as_obstacles(pod_set_request)
        if topology_mismatches is not None:
            pod_set_request = topology_mismatches.with_obstacles(pod_set_request, index)
        outcomes = [
            outcome for group in pod_set_request.groups for outcome in _group_outcomes(assigner, group, assumed_usage)
        ]
        results.append(
            PodSetFlavorOutcomes(
                pod_set.name, workload.counts[index], tuple(outcomes), pod_set_request.unavailable_resource
            )
        )
        assumed_usage = _add_usage(assumed_usage, usage_by_pod_set.get(pod_set.name, ()))
    return tuple(results)


def _group_outcomes(
    assigner: FlavorAssigner, group_request: ResourceGroupRequest, usage: quota.Usage
) -> list[FlavorOutcome]:
    qualities = assigner.all_qualities(group_request, usage)
    return [
        _flavor_outcome(assigner, group_request, index, quality, dict(usage)) for index, quality in enumerate(qualities)
    ]


def _flavor_outcome(
    assigner: FlavorAssigner,
    group_request: ResourceGroupRequest,
    index: int,
    qualities: Sequence[quota.GranularMode],
    assumed_usage: dict[int, int],
) -> FlavorOutcome:
    node = assigner.queue.node
    resource_qualities = (
        qualities if not group_request.obstacles[index] else [quota.NO_FIT] * len(group_request.resources)
    )
    requests = tuple(
        [
            FlavorResourceRequest(
                resource,
                fr,
                amount,
                assumed_usage.get(fr, 0),
                quota.available(node, fr),
                node.potential_quota[fr],
                quota.preemption_possibility_of(quality),
            )
            for resource, (fr, amount), quality in zip(
                group_request.resources, group_request.usages[index], resource_qualities, strict=True
            )
        ]
    )
    possibility = quota.preemption_possibility_of(quota.worst_quality(qualities, assigner.queue.view.fungibility))
    return FlavorOutcome(
        group_request.group.flavors[index],
        group_request.group.number,
        group_request.obstacles[index],
        requests,
        possibility,
    )


def _add_usage(usage: quota.Usage, added_usage: quota.Usage) -> quota.Usage:
    total_usage = dict(usage)
    for fr, amount in added_usage:
        total_usage[fr] = total_usage.get(fr, 0) + amount
    return tuple(total_usage.items())


API_VERSION: Final = "batchyard.dev/v1alpha1"
KIND: Final = "Explanation"

DocumentPart: TypeAlias = dict[str, Any]

_VERDICT_BY_POSSIBILITY: Final = {
    quota.PreemptionPossibility.NO_FIT: "short",
    quota.PreemptionPossibility.NO_CANDIDATES: "nobodyToPreempt",
    quota.PreemptionPossibility.PREEMPT: "preempts",
    quota.PreemptionPossibility.RECLAIM: "reclaims",
    quota.PreemptionPossibility.FIT: "fits",
}


class BindingLimit(NamedTuple):
    """The limit or other cause for which the explained object waits, with the API object that defines it."""

    limit: str
    message: str
    kind: str = ""
    name: str = ""
    flavor: str = ""
    resource: str = ""
    missing_amount: str = ""
    #: When the limit ends without a change; None if that is unknown.
    until: Instant | None = None

    def document(self) -> DocumentPart:
        """Return the limit as the field `binding` of the Explanation document."""
        limiting_object = {"kind": self.kind, "name": self.name} if self.kind else None
        return nonempty_fields(
            limit=self.limit,
            where=limiting_object,
            flavor=self.flavor,
            resource=self.resource,
            missing=self.missing_amount,
            message=self.message,
            until="" if self.until is None else format_time(self.until),
        )


class ExplanationUser(NamedTuple):
    """The user who reads an explanation; Workload names in namespaces that this user may not read are hidden."""

    may_read: Callable[[str], bool]

    def name_of(self, key: str) -> str:
        """Return a Workload's key (namespace/name) if the user may read its namespace, else a placeholder text."""
        return key if self.may_read(key.partition("/")[0]) else "a Workload of another namespace"


def nonempty_fields(**fields: Any) -> DocumentPart:
    """Return the given fields of a document as a dict, without those that are None, '', [] or ()."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ())}


def pod_sets_part(
    snapshot: Snapshot, node: quota.QuotaNode, outcomes: Sequence[PodSetFlavorOutcomes]
) -> list[DocumentPart]:
    """Return the document field `podSets`: flavor outcomes, with quotas of the ClusterQueue and of Cohorts above it."""
    return [
        nonempty_fields(
            name=each.name,
            count=each.pod_count,
            unavailable=each.uncovered_resource,
            flavors=[_flavor_part(snapshot, node, outcome) for outcome in each.outcomes],
        )
        for each in outcomes
    ]


def _flavor_part(snapshot: Snapshot, node: quota.QuotaNode, outcome: FlavorOutcome) -> DocumentPart:
    verdict = mismatch_rule(outcome.obstacle) if outcome.obstacle else _VERDICT_BY_POSSIBILITY[outcome.possibility]
    if not outcome.obstacle and outcome.exceeds_potential:
        verdict = "exceedsMaximum"
    resource_parts = [_resource_part(snapshot, node, request) for request in outcome.requests]
    binding_requests = [] if outcome.obstacle or outcome.fits else outcome.binding_requests()
    return nonempty_fields(
        flavor=outcome.flavor,
        verdict=verdict,
        bindingResource=binding_requests[0].resource if binding_requests else "",
        obstacle=outcome.obstacle,
        resources=resource_parts,
    )


def _resource_part(snapshot: Snapshot, node: quota.QuotaNode, request: FlavorResourceRequest) -> DocumentPart:
    levels = [_level_part(snapshot, step, request) for step in reversed(node.path)]
    missing = format_amount(request.resource, request.shortfall) if request.shortfall else ""
    return nonempty_fields(
        resource=request.resource, asked=format_amount(request.resource, request.total), missing=missing, levels=levels
    )


def _level_part(snapshot: Snapshot, node: quota.QuotaNode, request: FlavorResourceRequest) -> DocumentPart:
    def format_or_none(amount: int | None) -> str | None:
        return None if amount is None else format_amount(request.resource, amount)

    return nonempty_fields(
        kind=quota_node_kind(snapshot, node),
        name=node.name,
        nominal=format_or_none(node.nominal.get(request.fr, 0)),
        subtree=format_or_none(node.subtree_quota[request.fr]),
        used=format_or_none(node.usage[request.fr]),
        available=format_or_none(quota.available(node, request.fr)),
        borrowingLimit=format_or_none(node.borrowing_limit.get(request.fr)),
        lendingLimit=format_or_none(node.lending_limit.get(request.fr)),
    )


def quota_node_kind(snapshot: Snapshot, node: quota.QuotaNode) -> str:
    """Return the kind of the object that a cohort tree node stands for: ClusterQueue or Cohort."""
    return "ClusterQueue" if node in snapshot.queue_of else "Cohort"


def holder_part(
    snapshot: Snapshot, holder: MissingQuotaHolder, user: ExplanationUser, preemption_fields: Mapping[str, Any]
) -> DocumentPart:
    """Return a Workload that holds quota as an entry of the field `holders`, to which `preemption_fields` are added."""
    workload = holder.workload
    held_amounts = [
        {"flavor": flavor, "resource": resource, "amount": format_amount(resource, amount)}
        for fr, amount in holder.held_amounts
        for flavor, resource in (snapshot.flavor_resource_names[fr],)
    ]
    return {
        "workload": user.name_of(workload.key),
        "clusterQueue": workload.queue.name,
        "priority": workload.priority,
        "holds": held_amounts,
        "borrows": holder.is_borrowing,
        "since": format_time(workload.reserved_at),
        **preemption_fields,
    }


def explanation_header(kind: str, namespace: str, name: str, now: Instant) -> DocumentPart:
    """Return the first fields of an Explanation document: apiVersion, kind, the explained object and the time."""
    explained_object = nonempty_fields(kind=kind, namespace=namespace, name=name)
    return {"apiVersion": API_VERSION, "kind": KIND, "subject": explained_object, "time": format_time(now)}


# Lookup of the Workload of a job or pod, or of the reason why the object has no Workload.


_KIND_BY_JOB_KIND: Final = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
_DEFAULT_QUEUE: Final = "default"


class WorkloadLookup(NamedTuple):
    """The Workload found for a Job, JobSet or pod, or the reason why that object has no Workload."""

    workload: Obj | None
    #: The job that the Workload was created for: the object, or an owner of the object.
    job: Obj | None = None
    reason: str = ""


def workload_of(obj: Obj, reader: Reader) -> WorkloadLookup:
    """Return the Workload of a Job, a JobSet or a pod, or the reason why the object has none."""
    job = outermost_job_of(obj, reader)
    if job is None and obj["kind"] == "Pod" and is_in_queue(obj):
        # These modules are imported here, because few platforms have pods in queues.
        from batchyard.explain import queued_pods  # noqa: PLC0415

        workload = queued_pods.workload_of_pod(obj, reader)
        reason = queued_pods.missing_workload_reason(obj, reader) if workload is None else ""
        return WorkloadLookup(workload, obj, reason)
    if job is None:
        kind = obj["kind"].lower()
        reason = f"no Job or JobSet with Kueue's queue label owns this {kind}, so it runs outside any queue"
        return WorkloadLookup(None, None, reason)
    metadata = job["metadata"]
    owned_objects = reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
    owned_workloads = [each for each in owned_objects if each["kind"] == "Workload"]
    prebuilt_workload_key = prebuilt_key(job)
    if not owned_workloads and prebuilt_workload_key is not None:
        prebuilt_workload = reader.get(prebuilt_workload_key)
        owned_workloads = [] if prebuilt_workload is None else [prebuilt_workload]
    if owned_workloads:
        return WorkloadLookup(_current_workload(owned_workloads, obj), job)
    return WorkloadLookup(None, job, _unmanaged_reason(job, prebuilt_workload_key, reader))


def _current_workload(workloads: Sequence[Obj], obj: Obj) -> Obj:
    """Return the Workload that explains a job or pod: of several slices of an elastic job, the newest unfinished one.

    A pod that may be scheduled belongs to the slice with quota.
    """
    if len(workloads) == 1:
        return workloads[0]
    slices_in_order = slice_order([each for each in workloads if not is_true(each, "Finished")] or workloads)
    reserved_slices = [each for each in slices_in_order if is_true(each, "QuotaReserved")]
    is_scheduled_pod = obj["kind"] == "Pod" and not has_gate(obj)
    return (reserved_slices if is_scheduled_pod and reserved_slices else slices_in_order)[-1]


def outermost_job_of(obj: Obj, reader: Reader) -> Obj | None:
    """Return the outermost job among an object and its controlling owners; None if there is none.

    An object of a custom kind with a queue name is a job.
    """
    job = obj if obj["kind"] in _KIND_BY_JOB_KIND or _is_custom_job(obj) else None
    for owning_job in controlling_jobs(obj, reader.get):
        job = owning_job
    owner = controller_of(job or obj)
    custom_job = None if owner is None else reader.get(meta.owner_key(owner, obj["metadata"].get("namespace") or ""))
    return custom_job if custom_job is not None and _is_custom_job(custom_job) else job


def _is_custom_job(obj: Obj) -> bool:
    return not scheme.is_built_in(meta.group_kind(obj)) and label(obj, well_known.QUEUE_NAME) is not None


def _unmanaged_reason(job: Obj, prebuilt_workload_key: Key | None, reader: Reader) -> str:
    kind, name, namespace = job["kind"], job["metadata"]["name"], job["metadata"].get("namespace", "")
    queue = label(job, well_known.QUEUE_NAME)
    if queue and prebuilt_workload_key is not None:
        return f"{kind} {name} waits for its Workload {prebuilt_workload_key.name}, which does not exist"
    integration = INTEGRATIONS.get(meta.group_kind(job))
    class_key = (
        adjustments.priority_class_key(job, integration.pod_class(job) if integration else "") if queue else None
    )
    if class_key is not None and reader.get(class_key) is None:
        class_kind = scheme.kind_info(class_key.kind).kind
        return f"{kind} {name} has no Workload: {class_kind} {class_key.name} does not exist; create it"
    if queue:
        return f"the Workload of {kind} {name} is not created yet, or was deleted after the job finished"
    reason = f"{kind} {name} has no label {well_known.QUEUE_NAME}, so no queue manages it"
    annotated_queue = annotation(job, well_known.QUEUE_NAME)
    if annotated_queue:
        return f"{reason}; {annotated_queue} is set as an annotation and must be a label"
    if reader.get(Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT_QUEUE)) is None:
        return f"{reason}, and namespace {namespace} has no LocalQueue {_DEFAULT_QUEUE} for jobs that name none"
    return f"{reason}; it was created before the LocalQueue {_DEFAULT_QUEUE} of namespace {namespace}"


def pods_of(workload: Obj, reader: Reader) -> Sequence[Obj]:
    """Return the pods of a Workload's job, without ended pods, sorted by name; () without such an owner.

    The pods of a group, and a single pod in a queue, own their Workload themselves.
    """
    owner = controller_of(workload)
    if has_queued_pods(workload):
        return _owning_pods(workload, reader)
    if owner is None:
        return ()
    jobs, namespace = [owner["uid"]], workload["metadata"].get("namespace", "")
    if owner["kind"] not in _KIND_BY_JOB_KIND and scheme.is_built_in(meta.owner_key(owner, namespace).kind):
        return ()
    if owner["kind"] == "JobSet":
        jobs = [each["metadata"]["uid"] for each in reader.owned_by(owner["uid"], namespace) if each["kind"] == "Job"]
    owned_objects = [obj for uid in jobs for obj in reader.owned_by(uid, namespace)]
    pods = [obj for obj in owned_objects if obj["kind"] == "Pod" and not is_terminal(obj)]
    return sorted(pods, key=lambda pod: pod["metadata"]["name"])


def _owning_pods(workload: Obj, reader: Reader) -> Sequence[Obj]:
    namespace = workload["metadata"].get("namespace", "")
    owners = [owner for owner in workload["metadata"].get("ownerReferences") or () if owner["kind"] == "Pod"]
    pods = [(owner, reader.get(Key(scheme.POD, namespace, owner["name"]))) for owner in owners]
    return sorted(
        (
            pod
            for owner, pod in pods
            if pod is not None and pod["metadata"].get("uid") == owner["uid"] and not is_terminal(pod)
        ),
        key=lambda pod: pod["metadata"]["name"],
    )
