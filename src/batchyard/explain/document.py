"""The Explanation document that answers `why`, and its parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, format_amount, label, owning_jobs
from batchyard.api.times import format_time
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader
from batchyard.jobframework.workloads import prebuilt_key
from batchyard.scheduling.cluster_queue import ClusterQueue, ResourceGroupRequest, rule_of
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.flavor_assigner import FlavorAssigner
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.quota import (
    NO_FIT,
    GranularMode,
    PreemptionPossibility,
    QuotaNode,
    Usage,
    available,
    possibility_of,
    worst,
)
from batchyard.scheduling.snapshot import Snapshot

# --- flavor breakdown ---
#
# What a Workload would find in every flavor of its ClusterQueue, including those that the search does not reach.
#
# It calls the functions of the flavor assigner for all flavors instead of up to the first one that suffices.


class FlavorResourceRequest(NamedTuple):
    """The request for one resource in one flavor, and the available quota."""

    resource: str
    fr: int
    #: The request of this pod set, and of earlier pod sets that use the same flavor and resource.
    amount: int
    assumed: int
    #: The available quota of the ClusterQueue, and its potential capacity.
    free: int
    most: int
    possibility: PreemptionPossibility

    @property
    def total(self) -> int:
        """The request including that of earlier pod sets."""
        return self.assumed + self.amount

    @property
    def missing(self) -> int:
        """The missing amount; 0 if the request fits."""
        return max(0, self.total - self.free) if self.total else 0


class FlavorVerdict(NamedTuple):
    """The verdict on one flavor."""

    flavor: str
    #: The number of its resource group.
    group: int
    #: Why the flavor is excluded regardless of quota, in Kueue's words; '' if it is not.
    obstacle: str
    asks: tuple[FlavorResourceRequest, ...]
    #: The possibility of its worst resource.
    possibility: PreemptionPossibility

    @property
    def fits(self) -> bool:
        """Whether the request fits at present."""
        return self.possibility is PreemptionPossibility.FIT

    @property
    def exceeds(self) -> bool:
        """Whether the request exceeds the potential capacity of the ClusterQueue."""
        return any(ask.total > ask.most for ask in self.asks)


class PodSetVerdicts(NamedTuple):
    """The verdicts on all flavors for one pod set."""

    name: str
    pods: int
    looks: tuple[FlavorVerdict, ...]
    #: A resource that no group of the ClusterQueue covers; '' if all are covered.
    unavailable: str

    def groups(self) -> list[list[FlavorVerdict]]:
        """Return the verdicts by resource group."""
        found: dict[int, list[FlavorVerdict]] = {}
        for look in self.looks:
            found.setdefault(look.group, []).append(look)
        return list(found.values())


def flavor_verdicts(
    snapshot: Snapshot, queue: ClusterQueue, workload: WorkloadView, policy: SchedulingPolicy
) -> tuple[PodSetVerdicts, ...]:
    """Return what each pod set would find, given the assignments of the earlier pod sets."""
    may_preempt = queue.view.preemption.is_allowed
    victims = Preemptor(workload, queue, snapshot, policy.fair_strategies) if may_preempt else None
    search = FlavorAssigner(
        workload, queue, snapshot, None if victims is None else victims.oracle, None, policy.fair_sharing, ()
    )
    found = search.assign(workload.counts)
    picked = {each.name: each.assigned_flavors.usage for each in found.pod_sets}
    taken: Usage = ()
    verdicts = []
    for index, pod_set in enumerate(workload.pod_sets):
        plan = queue.coverage.plan(pod_set.template, workload.counts[index], snapshot.obstacles)
        looks = [look for group in plan.groups for look in _looks(search, group, taken)]
        verdicts.append(PodSetVerdicts(pod_set.name, workload.counts[index], tuple(looks), plan.unavailable))
        taken = _summed(taken, picked.get(pod_set.name, ()))
    return tuple(verdicts)


def _looks(search: FlavorAssigner, plan: ResourceGroupRequest, taken: Usage) -> list[FlavorVerdict]:
    qualities = search.weighed(plan, taken)
    return [_look(search, plan, index, of, dict(taken)) for index, of in enumerate(qualities)]


def _look(
    search: FlavorAssigner,
    plan: ResourceGroupRequest,
    index: int,
    qualities: Sequence[GranularMode],
    taken: dict[int, int],
) -> FlavorVerdict:
    node = search.queue.node
    of_each = qualities if not plan.obstacles[index] else [NO_FIT] * len(plan.resources)
    asks = tuple(
        [
            FlavorResourceRequest(
                resource, fr, amount, taken.get(fr, 0), available(node, fr), node.potential[fr], possibility_of(of)
            )
            for resource, (fr, amount), of in zip(plan.resources, plan.usages[index], of_each, strict=True)
        ]
    )
    possibility = possibility_of(worst(qualities, search.queue.view.fungibility))
    return FlavorVerdict(plan.group.flavors[index], plan.group.number, plan.obstacles[index], asks, possibility)


def _summed(usage: Usage, more: Usage) -> Usage:
    total = dict(usage)
    for fr, amount in more:
        total[fr] = total.get(fr, 0) + amount
    return tuple(total.items())


API_VERSION: Final = "batchyard.dev/v1alpha1"
KIND: Final = "Explanation"

Part: TypeAlias = dict[str, Any]

_VERDICTS: Final = {
    PreemptionPossibility.NO_FIT: "short",
    PreemptionPossibility.NO_CANDIDATES: "nobodyToPreempt",
    PreemptionPossibility.PREEMPT: "preempts",
    PreemptionPossibility.RECLAIM: "reclaims",
    PreemptionPossibility.FIT: "fits",
}


class Binding(NamedTuple):
    """The one limit that a subject waits for."""

    limit: str
    message: str
    kind: str = ""
    name: str = ""
    flavor: str = ""
    resource: str = ""
    missing: str = ""

    def document(self) -> Part:
        """Return the binding limit as a part of the document."""
        where = {"kind": self.kind, "name": self.name} if self.kind else None
        return slim(
            limit=self.limit,
            where=where,
            flavor=self.flavor,
            resource=self.resource,
            missing=self.missing,
            message=self.message,
        )


class ExplanationReader(NamedTuple):
    """The user who asks. Names of Workloads in namespaces that the user may not read are hidden."""

    may_read: Callable[[str], bool]

    def name_of(self, key: str) -> str:
        """Return the key of a Workload if the user may read it, else a placeholder."""
        return key if self.may_read(key.partition("/")[0]) else "a Workload of another namespace"


def slim(**fields: Any) -> Part:
    """Return the nonempty fields."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ())}


def pod_sets_part(snapshot: Snapshot, node: QuotaNode, looks: Sequence[PodSetVerdicts]) -> list[Part]:
    """Return the result of each pod set in each flavor, at each level of the cohort tree."""
    return [
        slim(
            name=each.name,
            count=each.pods,
            unavailable=each.unavailable,
            flavors=[_flavor(snapshot, node, look) for look in each.looks],
        )
        for each in looks
    ]


def _flavor(snapshot: Snapshot, node: QuotaNode, look: FlavorVerdict) -> Part:
    verdict = rule_of(look.obstacle) if look.obstacle else _VERDICTS[look.possibility]
    if not look.obstacle and look.exceeds:
        verdict = "exceedsMaximum"
    resources = [_resource(snapshot, node, ask) for ask in look.asks]
    return slim(flavor=look.flavor, verdict=verdict, obstacle=look.obstacle, resources=resources)


def _resource(snapshot: Snapshot, node: QuotaNode, ask: FlavorResourceRequest) -> Part:
    levels = [_level(snapshot, step, ask) for step in reversed(node.path)]
    missing = format_amount(ask.resource, ask.missing) if ask.missing else ""
    return slim(resource=ask.resource, asked=format_amount(ask.resource, ask.total), missing=missing, levels=levels)


def _level(snapshot: Snapshot, node: QuotaNode, ask: FlavorResourceRequest) -> Part:
    def formatted(amount: int | None) -> str | None:
        return None if amount is None else format_amount(ask.resource, amount)

    return slim(
        kind=kind_of(snapshot, node),
        name=node.name,
        nominal=formatted(node.nominal.get(ask.fr, 0)),
        subtree=formatted(node.subtree[ask.fr]),
        used=formatted(node.usage[ask.fr]),
        available=formatted(available(node, ask.fr)),
        borrowingLimit=formatted(node.borrowing_limit.get(ask.fr)),
        lendingLimit=formatted(node.lending_limit.get(ask.fr)),
    )


def kind_of(snapshot: Snapshot, node: QuotaNode) -> str:
    """Return whether a node is a ClusterQueue or a Cohort."""
    return "ClusterQueue" if node in snapshot.queue_of else "Cohort"


def holder_part(
    snapshot: Snapshot, holder: MissingQuotaHolder, asker: ExplanationReader, fate: Mapping[str, Any]
) -> Part:
    """Return a holder of quota as a part of the document; `fate` holds the fields about its preemption."""
    workload = holder.workload
    holds = [
        {"flavor": flavor, "resource": resource, "amount": format_amount(resource, amount)}
        for fr, amount in holder.amounts
        for flavor, resource in (snapshot.names[fr],)
    ]
    return {
        "workload": asker.name_of(workload.key),
        "clusterQueue": workload.queue.name,
        "priority": workload.priority,
        "holds": holds,
        "borrows": holder.borrows,
        "since": format_time(workload.reserved_at),
        **fate,
    }


def explanation(kind: str, namespace: str, name: str, now: Instant) -> Part:
    """Return the head of the document."""
    subject = slim(kind=kind, namespace=namespace, name=name)
    return {"apiVersion": API_VERSION, "kind": KIND, "subject": subject, "time": format_time(now)}


# --- subjects ---
#
# Finds the Workload of a job or a pod, or the reason why it has none.


_KINDS: Final = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
_DEFAULT: Final = "default"


class WorkloadLookup(NamedTuple):
    """The Workload of an object, or the reason why it has none."""

    workload: Obj | None
    #: The job that the Workload was created for: the object itself, or an owner of it.
    job: Obj | None = None
    why_not: str = ""


def workload_of(obj: Obj, reader: Reader) -> WorkloadLookup:
    """Return the Workload of a Job, a JobSet or a pod."""
    job = managed(obj, reader)
    if job is None:
        kind = obj["kind"].lower()
        return WorkloadLookup(
            None, None, f"no job that queues with Kueue's labels owns this {kind}: it runs outside any queue"
        )
    metadata = job["metadata"]
    of_job = reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
    owned = [each for each in of_job if each["kind"] == "Workload"]
    prebuilt = prebuilt_key(job)
    if not owned and prebuilt is not None:
        found = reader.get(prebuilt)
        owned = [] if found is None else [found]
    if owned:
        return WorkloadLookup(owned[0], job)
    return WorkloadLookup(None, job, _why_unmanaged(job, prebuilt, reader))


def managed(obj: Obj, reader: Reader) -> Obj | None:
    """Return the queued job of an object: its outermost owner that is a Job or JobSet, or itself; None without one."""
    found = obj if obj["kind"] in _KINDS else None
    for above in owning_jobs(obj, reader.get):
        found = above
    return found


def _why_unmanaged(job: Obj, prebuilt: Key | None, reader: Reader) -> str:
    kind, name, namespace = job["kind"], job["metadata"]["name"], job["metadata"].get("namespace", "")
    queue = label(job, well_known.QUEUE_NAME)
    if queue and prebuilt is not None:
        return f"{kind} {name} waits for its Workload {prebuilt.name}, which does not exist"
    if queue:
        return f"the Workload of {kind} {name} is not created yet, or was deleted after the job finished"
    reason = f"{kind} {name} has no label {well_known.QUEUE_NAME}, so no queue manages it"
    wrong = annotation(job, well_known.QUEUE_NAME)
    if wrong:
        return f"{reason}; {wrong} is set as an annotation and must be a label"
    if reader.get(Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT)) is None:
        return f"{reason}, and namespace {namespace} has no LocalQueue {_DEFAULT} for jobs that name none"
    return f"{reason}; it was created before the LocalQueue {_DEFAULT} of namespace {namespace}"


def pods_of(workload: Obj, reader: Reader) -> Sequence[Obj]:
    """Return the unfinished pods of a Workload's job, by name."""
    owner = controller_of(workload)
    if owner is None or owner["kind"] not in _KINDS:
        return ()
    jobs, where = [owner["uid"]], workload["metadata"].get("namespace", "")
    if owner["kind"] == "JobSet":
        jobs = [each["metadata"]["uid"] for each in reader.owned_by(owner["uid"], where) if each["kind"] == "Job"]
    owned = [obj for uid in jobs for obj in reader.owned_by(uid, where)]
    pods = [obj for obj in owned if obj["kind"] == "Pod" and not is_terminal(obj)]
    return sorted(pods, key=lambda pod: pod["metadata"]["name"])
