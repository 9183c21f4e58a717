"""What it costs an answer that some kind of objects could not be read."""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.scheme import kind_info

#: Kinds that only a platform of batchyard has.
_OURS: Final = ".batchyard.dev"
#: Without these nothing can be said at all.
NEEDED: Final = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD)
_COSTS: Final = {
    scheme.NAMESPACE: "namespaceSelectors are matched by names alone",
    scheme.COHORT: "Cohorts have no quota of their own, and only the parents that queues name",
    scheme.TOPOLOGY: "nothing is known of racks and blocks",
    scheme.ADMISSION_CHECK: "queues with AdmissionChecks are taken for inactive",
    scheme.PROVISIONING_REQUEST_CONFIG: "checks that ask for capacity are not looked into",
    scheme.PROVISIONING_REQUEST: "who waits for capacity on request is not known",
    scheme.POD_TEMPLATE: "what capacity was asked for is not known",
    scheme.LIMIT_RANGE: "whoever breaks the limits of his namespace is taken to be in order",
    scheme.PRIORITY_CLASS: "new jobs get no priority of a PriorityClass; those that are there keep theirs",
    scheme.WORKLOAD_PRIORITY_CLASS: "new jobs get no priority of one; those that are there keep theirs",
    scheme.JOB: "run times come from history alone, and Jobs cannot be asked about",
    scheme.JOB_SET: "JobSets cannot be asked about, and their run times come from history alone",
    scheme.POD: "nodes are taken to be empty, and pods cannot be asked about",
    scheme.NODE: "only quota is looked at, no machines",
    scheme.POD_DISRUPTION_BUDGET: "pods are taken to have no disruption budgets",
    scheme.RESOURCE_QUOTA: "new pods are not held back by ResourceQuotas",
}


def cost_of(kind: str) -> str:
    """What is not known without a kind, for people."""
    info = kind_info(kind)
    name = f"{info.plural}.{info.group}" if info.group else info.plural
    return f"{name}: {_COSTS.get(kind, 'what they say is not looked at')}"


def told_of(kinds: Iterable[str]) -> list[str]:
    """The same of several."""
    found = list(kinds)
    own = [kind for kind in found if kind.endswith(_OURS)]
    told = [cost_of(kind) for kind in found if kind not in own]
    names = ", ".join(kind_info(kind).plural for kind in own)
    return (
        [*told, f"{names}: nothing of machines that come and go, if this is a platform of batchyard"] if own else told
    )
