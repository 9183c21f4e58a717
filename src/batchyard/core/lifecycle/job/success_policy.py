"""When a Job's successPolicy is met. Source: pkg/controller/job/success_policy.go of Kubernetes."""

from functools import lru_cache

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
    wanted = _parsed_once(text, completions)
    found = in_common(wanted, succeeded)
    return bool(wanted) and (found == total(wanted) or (count is not None and found >= count))


@lru_cache(maxsize=64)
def _parsed_once(text: str, completions: int) -> Spans:
    """The indexes of a rule, which may be 64 KB of them: a Job is looked at as often as its pods change."""
    return parsed(text, completions)
