"""All rules, in the order in which they are described."""

from collections.abc import Collection, Iterator
from typing import Final

from batchyard.lint import accelerators, capacity, flavors, preemption, queues, references, terms
from batchyard.lint import flavors as labels
from batchyard.lint import queues as sizes
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import Finding, Rule, Severity, finding_of

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Found while documents are read.
READING: Final = (
    Rule("unreadable-file", _ERROR, "a file cannot be read"),
    Rule("invalid-yaml", _ERROR, "a document is no YAML"),
    Rule("not-a-manifest", _NOTE, "a document is no Kubernetes object"),
    Rule("unknown-kind", _ERROR, "a document is of no kind that is served"),
    Rule("unknown-field", _ERROR, "a field exists in no version"),
    Rule("missing-field", _ERROR, "a field that must be there is not"),
    Rule("invalid-value", _ERROR, "a value breaks the rules of its kind"),
    Rule("deprecated-version", _NOTE, "an API version that will go"),
    Rule("without-effect", _NOTE, "an object that nothing is done for"),
)
_QUEUES: Final = (
    Rule("null-namespace-selector", _ERROR, "a ClusterQueue that selects no namespace", queues.null_namespace_selector),
    Rule("namespace-not-selected", _ERROR, "a LocalQueue that is not let in", queues.namespace_not_selected),
    Rule("queue-stopped", _WARNING, "work for a stopped queue", queues.queue_stopped),
    Rule("queue-without-local-queue", _NOTE, "a ClusterQueue nobody can reach", queues.queue_without_local_queue),
    Rule("strict-fifo-blocking", _WARNING, "the first in line keeps back others", queues.strict_fifo_blocking),
    Rule("tiny-memory-quota", _ERROR, "a quota of memory without its unit", queues.tiny_memory_quota),
)
_NAMES: Final = (
    Rule("unknown-local-queue", _ERROR, "work for a LocalQueue that is not there", references.unknown_local_queue),
    Rule("unknown-cluster-queue", _ERROR, "a LocalQueue that leads nowhere", references.unknown_cluster_queue),
    Rule("unknown-flavor", _ERROR, "quota in a flavor that is not there", references.unknown_flavor),
    Rule("unknown-admission-check", _ERROR, "a check that is not there", references.unknown_admission_check),
    Rule("unknown-provisioning-config", _ERROR, "a check with nothing to ask", references.unknown_provisioning_config),
    Rule("unknown-topology", _ERROR, "a flavor of a topology that is not there", references.unknown_topology),
    Rule("unknown-priority-class", _ERROR, "work of a class that is not there", references.unknown_priority_class),
    Rule("unknown-node-pool", _ERROR, "pods for a node pool that is not there", references.unknown_node_pool),
    Rule("cohort-cycle", _ERROR, "a Cohort that is its own ancestor", references.cohort_cycle),
    Rule("defined-twice", _NOTE, "an object that is written twice", references.defined_twice),
)
_LABELS: Final = (
    Rule("queue-name-not-a-label", _ERROR, "a queue named where nobody looks", labels.queue_name_not_a_label),
    Rule("misplaced-label", _WARNING, "a priority given where nobody looks", labels.misplaced_label),
    Rule("unknown-kueue-key", _WARNING, "a key that Kueue does not have", labels.unknown_kueue_key),
    Rule("job-without-queue", _WARNING, "a job beside all quota", labels.job_without_queue),
    Rule("namespace-without-queue", _WARNING, "a namespace without a LocalQueue", labels.namespace_without_queue),
    Rule("not-suspended", _NOTE, "a job that says it runs at once", labels.not_suspended),
)
_FLAVORS: Final = (
    Rule("unused-flavor", _WARNING, "a flavor that no queue gives", flavors.unused_flavor),
    Rule("flavor-without-nodes", _ERROR, "a flavor that no machine is of", flavors.flavor_without_nodes),
    Rule("flavor-without-quota", _WARNING, "a flavor nobody has quota of", flavors.flavor_without_quota),
    Rule("shadowed-flavor", _NOTE, "a flavor behind one that takes all", flavors.shadowed_flavor),
    Rule("untolerated-flavor", _WARNING, "a flavor whose taint nobody tolerates", flavors.untolerated_flavor),
    Rule("undeclared-taint", _WARNING, "a taint of nodes that their flavor hides", flavors.undeclared_taint),
)
_SIZES: Final = (
    Rule("quota-above-capacity", _ERROR, "more quota than machines", capacity.quota_above_capacity),
    Rule("uncovered-resource", _ERROR, "a resource that the queue does not know", sizes.uncovered_resource),
    Rule("exceeds-quota", _ERROR, "work larger than the quota could ever be", sizes.exceeds_quota),
    Rule("no-matching-flavor", _ERROR, "work that no flavor is for", sizes.no_matching_flavor),
    Rule("asks-for-nothing", _WARNING, "work that counts for nothing", sizes.asks_for_nothing),
    Rule("beyond-limit-range", _ERROR, "pods that a LimitRange refuses", sizes.beyond_limit_range),
    Rule("pod-larger-than-node", _ERROR, "a pod larger than any node", sizes.pod_larger_than_node),
    Rule("no-such-node", _ERROR, "a pod for labels that no node has", sizes.no_such_node),
    Rule("untolerated-taint", _ERROR, "a pod that its nodes keep away", sizes.untolerated_taint),
    Rule("too-few-nodes", _ERROR, "more pods than nodes have room for", sizes.too_few_nodes),
    Rule("tpu-topology-mismatch", _ERROR, "chips that make no slice", accelerators.tpu_topology_mismatch),
    Rule("tpu-chips-left", _WARNING, "chips that nobody can use", accelerators.tpu_chips_left),
    Rule("accelerator-mismatch", _ERROR, "an accelerator its machine has not", accelerators.accelerator_mismatch),
)
_TERMS: Final = (
    Rule("grace-beyond-spot", _WARNING, "longer goodbyes than Spot allows", terms.grace_beyond_spot),
    Rule("no-retries-on-spot", _WARNING, "work that the first lost machine ends", terms.no_retries_on_spot),
    Rule("queued-pool-without-check", _ERROR, "machines nobody requests", terms.queued_pool_without_check),
    Rule("run-time-beyond-limit", _ERROR, "longer runs than machines on request", terms.run_time_beyond_limit),
    Rule("check-without-resource", _WARNING, "a check that asks for nothing", terms.check_without_resource),
)
_PREEMPTION: Final = (
    Rule("preemption-loop", _WARNING, "two that preempt each other for ever", preemption.preemption_loop),
    Rule("contradicting-priorities", _WARNING, "two orders of the same work", preemption.contradicting_priorities),
    Rule("priority-without-preemption", _WARNING, "a swap quota rules out", preemption.priority_without_preemption),
    Rule("reclaim-without-cohort", _NOTE, "nobody to reclaim from", preemption.reclaim_without_cohort),
    Rule("borrowing-without-lender", _WARNING, "nobody to borrow from", preemption.borrowing_without_lender),
    Rule("nothing-lent", _WARNING, "a cohort that lends nothing", preemption.nothing_lent),
    Rule("zero-weight", _WARNING, "a share that counts as infinite", preemption.zero_weight),
    Rule("borrowing-ignored", _WARNING, "a policy fair sharing does not know", preemption.borrowing_ignored),
)

RULES: Final = (*READING, *_QUEUES, *_NAMES, *_LABELS, *_FLAVORS, *_SIZES, *_TERMS, *_PREEMPTION)
BY_NAME: Final = {rule.name: rule for rule in RULES}


def check(config: Configuration, names: Collection[str] = ()) -> Iterator[Finding]:
    """What the rules of these names find; all rules, if none is named."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for found in rule.check(config):
                yield finding_of(rule, found)
