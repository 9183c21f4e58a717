"""All rules, in the order of their documentation."""

from collections.abc import Collection, Iterator
from typing import Final

from batchyard.lint import accelerators, capacity, flavors, preemption, queues, references, terms
from batchyard.lint import flavors as labels
from batchyard.lint import queues as sizes
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import Finding, Rule, Severity, finding_of

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Rules that are checked while documents are read.
READING: Final = (
    Rule("unreadable-file", _ERROR, "a file cannot be read"),
    Rule("invalid-yaml", _ERROR, "a document is not valid YAML"),
    Rule("not-a-manifest", _NOTE, "a document is not a Kubernetes object"),
    Rule("unknown-kind", _ERROR, "a document of a kind that is not served"),
    Rule("unknown-field", _ERROR, "a field that no version has"),
    Rule("missing-field", _ERROR, "a required field is missing"),
    Rule("invalid-value", _ERROR, "a value is invalid"),
    Rule("deprecated-version", _NOTE, "a deprecated API version"),
    Rule("without-effect", _NOTE, "an object without effect"),
)
_QUEUES: Final = (
    Rule("null-namespace-selector", _ERROR, "a ClusterQueue that selects no namespace", queues.null_namespace_selector),
    Rule("namespace-not-selected", _ERROR, "a namespace that is not selected", queues.namespace_not_selected),
    Rule("queue-stopped", _WARNING, "work for a stopped queue", queues.queue_stopped),
    Rule("queue-without-local-queue", _NOTE, "a ClusterQueue without LocalQueue", queues.queue_without_local_queue),
    Rule("strict-fifo-blocking", _WARNING, "a head that blocks others", queues.strict_fifo_blocking),
    Rule("tiny-memory-quota", _ERROR, "a memory quota without a unit", queues.tiny_memory_quota),
)
_NAMES: Final = (
    Rule("unknown-local-queue", _ERROR, "work for a missing LocalQueue", references.unknown_local_queue),
    Rule("unknown-cluster-queue", _ERROR, "a LocalQueue without ClusterQueue", references.unknown_cluster_queue),
    Rule("unknown-flavor", _ERROR, "quota in a missing flavor", references.unknown_flavor),
    Rule("unknown-admission-check", _ERROR, "a missing AdmissionCheck", references.unknown_admission_check),
    Rule("unknown-provisioning-config", _ERROR, "a check without parameters", references.unknown_provisioning_config),
    Rule("unknown-topology", _ERROR, "a flavor of a missing topology", references.unknown_topology),
    Rule("unknown-priority-class", _ERROR, "work of a missing priority class", references.unknown_priority_class),
    Rule("unknown-node-pool", _ERROR, "pods for a missing node pool", references.unknown_node_pool),
    Rule("cohort-cycle", _ERROR, "a Cohort that is its own ancestor", references.cohort_cycle),
    Rule("defined-twice", _NOTE, "an object that is defined twice", references.defined_twice),
)
_LABELS: Final = (
    Rule("queue-name-not-a-label", _ERROR, "a queue name that is not a label", labels.queue_name_not_a_label),
    Rule("misplaced-label", _WARNING, "a label in the wrong place", labels.misplaced_label),
    Rule("unknown-kueue-key", _WARNING, "a key that Kueue does not have", labels.unknown_kueue_key),
    Rule("job-without-queue", _WARNING, "a job without a queue", labels.job_without_queue),
    Rule("namespace-without-queue", _WARNING, "a namespace without a LocalQueue", labels.namespace_without_queue),
    Rule("not-suspended", _NOTE, "a queued job that is not suspended", labels.not_suspended),
)
_FLAVORS: Final = (
    Rule("unused-flavor", _WARNING, "a flavor that no queue uses", flavors.unused_flavor),
    Rule("flavor-without-nodes", _ERROR, "a flavor without nodes", flavors.flavor_without_nodes),
    Rule("flavor-without-quota", _WARNING, "a flavor without quota", flavors.flavor_without_quota),
    Rule("shadowed-flavor", _NOTE, "a flavor that is never reached", flavors.shadowed_flavor),
    Rule("untolerated-flavor", _WARNING, "a flavor with an untolerated taint", flavors.untolerated_flavor),
    Rule("undeclared-taint", _WARNING, "a taint that the flavor lacks", flavors.undeclared_taint),
)
_SIZES: Final = (
    Rule("quota-above-capacity", _ERROR, "more quota than capacity", capacity.quota_above_capacity),
    Rule("uncovered-resource", _ERROR, "a resource that is not covered", sizes.uncovered_resource),
    Rule("exceeds-quota", _ERROR, "work larger than the maximum quota", sizes.exceeds_quota),
    Rule("no-matching-flavor", _ERROR, "work without a matching flavor", sizes.no_matching_flavor),
    Rule("asks-for-nothing", _WARNING, "work without requests", sizes.asks_for_nothing),
    Rule("beyond-limit-range", _ERROR, "pods that a LimitRange rejects", sizes.beyond_limit_range),
    Rule("pod-larger-than-node", _ERROR, "a pod larger than any node", sizes.pod_larger_than_node),
    Rule("no-such-node", _ERROR, "a pod for labels that no node has", sizes.no_such_node),
    Rule("untolerated-taint", _ERROR, "a pod that its nodes' taints repel", sizes.untolerated_taint),
    Rule("too-few-nodes", _ERROR, "more pods than nodes have room for", sizes.too_few_nodes),
    Rule("tpu-topology-mismatch", _ERROR, "chips that do not match the slice", accelerators.tpu_topology_mismatch),
    Rule("tpu-chips-left", _WARNING, "chips that stay unused", accelerators.tpu_chips_left),
    Rule("accelerator-mismatch", _ERROR, "an accelerator its machine lacks", accelerators.accelerator_mismatch),
)
_TERMS: Final = (
    Rule("grace-beyond-spot", _WARNING, "a grace period beyond Spot's", terms.grace_beyond_spot),
    Rule("no-retries-on-spot", _WARNING, "work without retries on Spot", terms.no_retries_on_spot),
    Rule("queued-pool-without-check", _ERROR, "a queued pool without a check", terms.queued_pool_without_check),
    Rule("run-time-beyond-limit", _ERROR, "a run time beyond the limit", terms.run_time_beyond_limit),
    Rule("check-without-resource", _WARNING, "a check that requests nothing", terms.check_without_resource),
)
_PREEMPTION: Final = (
    Rule("preemption-loop", _WARNING, "an endless preemption loop", preemption.preemption_loop),
    Rule("contradicting-priorities", _WARNING, "contradicting priorities", preemption.contradicting_priorities),
    Rule(
        "priority-without-preemption",
        _WARNING,
        "a preemption that quota prevents",
        preemption.priority_without_preemption,
    ),
    Rule("reclaim-without-cohort", _NOTE, "no queue to reclaim from", preemption.reclaim_without_cohort),
    Rule("borrowing-without-lender", _WARNING, "no queue to borrow from", preemption.borrowing_without_lender),
    Rule("nothing-lent", _WARNING, "a cohort that lends nothing", preemption.nothing_lent),
    Rule("zero-weight", _WARNING, "a share that counts as infinite", preemption.zero_weight),
    Rule("borrowing-ignored", _WARNING, "a policy that fair sharing ignores", preemption.borrowing_ignored),
)

RULES: Final = (*READING, *_QUEUES, *_NAMES, *_LABELS, *_FLAVORS, *_SIZES, *_TERMS, *_PREEMPTION)
BY_NAME: Final = {rule.name: rule for rule in RULES}


def check(config: Configuration, names: Collection[str] = ()) -> Iterator[Finding]:
    """The findings of the named rules; of all rules if none is named."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for found in rule.check(config):
                yield finding_of(rule, found)
