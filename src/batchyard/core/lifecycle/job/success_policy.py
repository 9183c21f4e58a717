"""When a Job's successPolicy is met. Source: pkg/controller/job/success_policy.go of Kubernetes."""

from batchyard.core.lifecycle.job.indexes import Spans, in_common, parsed, total
from batchyard.core.lifecycle.job.spec import JobSpec, Rule


def rule_met(spec: JobSpec, succeeded: Spans) -> int | None:
    """The number of the first rule that the succeeded indexes meet."""
    if succeeded:
        for number, rule in enumerate(spec.success_rules):
            if _is_met(rule, succeeded, spec.completions or 0):
                return number
    return None


def _is_met(rule: Rule, succeeded: Spans, completions: int) -> bool:
    """All the indexes that a rule names succeeded, or as many as it asks for: of these, or of all if it names none."""
    count, text = rule.get("succeededCount"), rule.get("succeededIndexes")
    if text is None:
        return count is not None and total(succeeded) >= count
    wanted = parsed(text, completions)
    found = in_common(wanted, succeeded)
    return bool(wanted) and (found == total(wanted) or (count is not None and found >= count))
