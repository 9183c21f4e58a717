"""All rules, in the order in which they are described."""

from collections.abc import Collection, Iterator
from typing import Final

from batchyard.core.lint.capacity import quota_above_capacity
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Finding, Rule, Severity, finding_of
from batchyard.core.lint.queues import null_namespace_selector, unknown_local_queue

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Found while documents are read.
READING: Final = (
    Rule("unreadable-file", _ERROR, "a file cannot be read"),
    Rule("invalid-yaml", _ERROR, "a document is no YAML"),
    Rule("not-a-manifest", _NOTE, "a document that is no Kubernetes object"),
    Rule("unknown-kind", _ERROR, "a document is of no kind that is served"),
    Rule("unknown-field", _ERROR, "a field exists in no version"),
    Rule("missing-field", _ERROR, "a field that must be there is not"),
    Rule("invalid-value", _ERROR, "a value breaks the rules of its kind"),
    Rule("deprecated-version", _NOTE, "an API version that will go"),
    Rule("without-effect", _NOTE, "an object that nothing is done for"),
)

RULES: Final = (
    *READING,
    Rule("quota-above-capacity", _ERROR, "more quota than machines", quota_above_capacity),
    Rule("null-namespace-selector", _ERROR, "a ClusterQueue that selects no namespace", null_namespace_selector),
    Rule("unknown-local-queue", _ERROR, "work for a LocalQueue that is not there", unknown_local_queue),
)

BY_NAME: Final = {rule.name: rule for rule in RULES}


def check(config: Configuration, names: Collection[str] = ()) -> Iterator[Finding]:
    """What the rules of these names find; all rules, if none is named."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for found in rule.check(config):
                yield finding_of(rule, found)
