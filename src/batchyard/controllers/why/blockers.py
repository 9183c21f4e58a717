"""What keeps a Workload from being looked at by the scheduler at all, in the order in which it is to be mended."""

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.admission.pending import must_wait
from batchyard.controllers.why.document import Asker, Binding
from batchyard.core import reasons
from batchyard.core.cycle import Cycle, Policy
from batchyard.core.decisions import Decision, Head, Wait
from batchyard.core.lifecycle import checks as admission_checks
from batchyard.core.lifecycle import waiting
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.reasons import WAITING_FOR_PODS_READY
from batchyard.ports.client import Reader

STOPPED = "stopped"
MISCONFIGURED = "misconfigured"
BACKOFF = "backoff"
GATED = "gated"
CHECK = "admissionCheck"
PODS_READY = "podsReady"


def queues_of(workload: Obj, reader: Reader) -> waiting.Queues:
    """The queues of a Workload, as far as they are there."""
    namespace = workload["metadata"].get("namespace", "")
    local = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    found = waiting.Queues(local, None, reader.get(Key(scheme.NAMESPACE, "", namespace)))
    name = found.cluster_queue_name
    return found._replace(cluster_queue=reader.get(Key(scheme.CLUSTER_QUEUE, "", name)) if name else None)


def blocker_of(workload: Obj, queues: waiting.Queues, index: AdmissionIndex) -> Binding | None:
    """What its own state or that of its queues keeps it from; None if nothing does."""
    name = workload["metadata"]["name"]
    if not lifecycle.is_active(workload):
        return Binding(STOPPED, _deactivated(workload), "Workload", name)
    if lifecycle.is_on_hold(workload):
        return Binding(GATED, "it is on hold", "Workload", name)
    found = waiting.why_waiting(workload, queues)
    if found is None or found.reason == reasons.PENDING_EVALUATION:
        return None
    limit = {reasons.MISCONFIGURED: MISCONFIGURED, reasons.SUSPENDED: STOPPED}.get(found.reason, GATED)
    kind, where = _where(workload, queues, limit)
    return Binding(limit, found.message + _more_of(queues, kind, index), kind, where)


def _deactivated(workload: Obj) -> str:
    evicted = find_condition(workload, "Evicted")
    cause = f": {evicted['message']}" if evicted is not None and evicted.get("message") else ""
    return f"it is deactivated (spec.active is false){cause}"


def _where(workload: Obj, queues: waiting.Queues, limit: str) -> tuple[str, str]:
    """What is to be mended."""
    if limit == GATED:
        return "Workload", workload["metadata"]["name"]
    local = queues.local_queue
    if local is None or waiting.stop_policy(local) != "None":
        return "LocalQueue", workload["spec"].get("queueName", "")
    return "ClusterQueue", queues.cluster_queue_name


def _more_of(queues: waiting.Queues, kind: str, index: AdmissionIndex) -> str:
    """What more there is to say of a queue that does not admit, or of one that is not there."""
    name = queues.cluster_queue_name
    if kind == "LocalQueue" and queues.local_queue is None:
        return ""
    if kind == "ClusterQueue" and name in index.snapshot.queues:
        ready = index.readiness(name)
        return "" if ready.active else f": {ready.message}"
    return ""


def held_back(view: WorkloadView, now: Instant) -> Binding | None:
    """A time or a condition of its own that it waits for."""
    if not must_wait(view, now):
        return None
    if view.requeue_at is not None and view.requeue_at > now:
        text = f"it was put back, and is tried again at {format_time(view.requeue_at)}"
    else:
        text = "its condition Requeued is False: it is not to be tried before that changes"
    return Binding(BACKOFF, text, "Workload", view.name)


def failed_check(workload: Obj) -> Binding | None:
    """A check that said no, or that it be tried again."""
    for state in (admission_checks.REJECTED, admission_checks.RETRY):
        found = admission_checks.in_state(workload, state)
        if found:
            return Binding(CHECK, admission_checks.told(found, state), "AdmissionCheck", found[0]["name"])
    return None


def blocked_entry(index: AdmissionIndex, asker: Asker) -> Binding | None:
    """The Workload that waits until the pods of others are ready: it is admitted before all that wait in line."""
    found = [view for view in index.book.views() if view.waits_for == WAITING_FOR_PODS_READY and view.admissible]
    if not found:
        return None
    name = asker.name_of(found[0].key)
    text = f"it would fit, and {name} is admitted before it, once all admitted workloads are ready"
    return Binding(PODS_READY, text, "Workload", name)


def decision_about(view: WorkloadView, queue: str, index: AdmissionIndex, policy: Policy) -> Decision:
    """What a cycle decides about it alone, as things stand."""
    return Cycle(index.snapshot, policy, index.namespaces, 0).run([Head(view, queue)])[0]


def refusal_of(decision: Decision, index: AdmissionIndex) -> Binding | None:
    """What a cycle says that does not even look for flavors."""
    if not isinstance(decision, Wait) or decision.why.assignment is not None:
        return None
    why, queue = decision.why, decision.head.queue
    if why.reason == reasons.MISCONFIGURED:
        is_own = decision.head.workload.over_limit or bool(decision.head.workload.out_of_bounds)
        kind, name = ("Workload", decision.head.workload.name) if is_own else ("ClusterQueue", queue)
        return Binding(MISCONFIGURED, why.message, kind, name)
    if why.reason == reasons.SUSPENDED and (found := index.snapshot.queues.get(queue)) is not None and found.in_cycle:
        told = f"{why.message}: the parents of Cohort {found.view.cohort} lead into a cycle"
        return Binding(MISCONFIGURED, told, "Cohort", found.view.cohort)
    if why.reason == reasons.SUSPENDED:
        return Binding(STOPPED, why.message, "ClusterQueue", queue)
    return None
