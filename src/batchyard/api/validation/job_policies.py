"""Validation of the failure policies (podFailurePolicy) and success policies (successPolicy) of Jobs."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, parse_integer
from batchyard.api.validation import rules

_FAILURE_RULE_ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")
_EXIT_CODE_OPERATORS: Final = ("In", "NotIn")
_CONDITION_STATUSES: Final = ("False", "True", "Unknown")
_POLICY_RULES_MAX: Final = 20
_EXIT_CODE_COUNT_MAX: Final = 255
_SUCCEEDED_INDEXES_BYTES_MAX: Final = 64 * 1024


def failure_policy_errors(spec: Obj, policy_rules: Sequence[Obj], path: str) -> Iterator[FieldError]:
    """Validate a Job's podFailurePolicy: at most 20 rules, each with either onExitCodes or onPodConditions."""
    if len(policy_rules) > _POLICY_RULES_MAX:
        yield rules.too_many_items_error(path, len(policy_rules), _POLICY_RULES_MAX, "merge some rules")
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    containers = [c.get("name") for field in ("containers", "initContainers") for c in pod_spec.get(field) or ()]
    for i, rule in enumerate(policy_rules):
        rule_path, exit_codes, conditions = f"{path}[{i}]", rule.get("onExitCodes"), rule.get("onPodConditions")
        yield from _rule_action_errors(rule.get("action"), spec, f"{rule_path}.action")
        if exit_codes is not None:
            yield from _exit_code_errors(exit_codes, containers, f"{rule_path}.onExitCodes")
        yield from _pod_condition_errors(conditions or (), f"{rule_path}.onPodConditions")
        if exit_codes is not None and conditions:
            message = "specifying both OnExitCodes and OnPodConditions is not supported"
            yield rules.invalid_without_value(rule_path, message, "split the rule into two")
        if exit_codes is None and not conditions:
            message = "specifying one of OnExitCodes and OnPodConditions is required"
            yield rules.invalid_without_value(rule_path, message, "set onExitCodes or onPodConditions in the rule")


def _rule_action_errors(action: str | None, spec: Obj, path: str) -> Iterator[FieldError]:
    if not action:
        shown_actions = " ".join(map(rules.format_json, _FAILURE_RULE_ACTIONS))
        yield rules.required(path, f"valid values: [{shown_actions}]", f"use one of {', '.join(_FAILURE_RULE_ACTIONS)}")
    elif action not in _FAILURE_RULE_ACTIONS:
        yield rules.unsupported(path, action, _FAILURE_RULE_ACTIONS)
    elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        message = "requires the backoffLimitPerIndex to be set"
        yield rules.invalid(path, action, message, "set backoffLimitPerIndex, or use FailJob")


def _pod_condition_errors(conditions: Sequence[Obj], path: str) -> Iterator[FieldError]:
    if len(conditions) > _POLICY_RULES_MAX:
        yield rules.too_many_items_error(path, len(conditions), _POLICY_RULES_MAX, "split the rule into several")
    for j, pattern in enumerate(conditions):
        yield from rules.label_key_errors(pattern.get("type") or "", f"{path}[{j}].type")
        if (status := pattern.get("status") or "True") not in _CONDITION_STATUSES:
            yield rules.unsupported(f"{path}[{j}].status", status, _CONDITION_STATUSES)


def _exit_code_errors(codes: Obj, containers: Sequence[Any], path: str) -> Iterator[FieldError]:
    operator, exit_codes, name = codes.get("operator"), codes.get("values") or [], codes.get("containerName")
    if operator not in _EXIT_CODE_OPERATORS:
        yield rules.unsupported(f"{path}.operator", operator or "", _EXIT_CODE_OPERATORS)
    if name is not None and name not in containers:
        message = "must be one of the container or initContainer names in the pod template"
        yield rules.invalid(f"{path}.containerName", name, message, f"use one of {', '.join(map(str, containers))}")
    if not exit_codes:
        yield rules.invalid(f"{path}.values", exit_codes, "at least one value is required", "add exit codes")
    elif len(exit_codes) > _EXIT_CODE_COUNT_MAX:
        yield rules.too_many_items_error(
            f"{path}.values",
            len(exit_codes),
            _EXIT_CODE_COUNT_MAX,
            "list fewer exit codes, for example with the operator NotIn",
        )
    else:
        yield from _exit_code_value_errors(exit_codes, operator, f"{path}.values")
    if exit_codes != sorted(exit_codes):
        yield rules.invalid(f"{path}.values", exit_codes, "must be ordered", "sort the exit codes in ascending order")


def _exit_code_value_errors(exit_codes: Sequence[int], operator: str | None, path: str) -> Iterator[FieldError]:
    seen_exit_codes: dict[int, None] = {}
    for j, value in enumerate(exit_codes):
        if operator == "In" and value == 0:
            message = "must not be 0 for the In operator"
            yield rules.invalid(f"{path}[{j}]", value, message, "remove 0, which means success")
        if value in seen_exit_codes:
            yield rules.duplicate(f"{path}[{j}]", value, "list each exit code once")
        seen_exit_codes[value] = None


def success_policy_errors(spec: Obj, policy_rules: Sequence[Obj], path: str) -> Iterator[FieldError]:
    """Report a successPolicy with no or too many rules, and invalid rules."""
    if not policy_rules:
        message = "at least one rules must be specified when the successPolicy is specified"
        yield rules.required(path, message, "add a rule, or remove successPolicy")
    if len(policy_rules) > _POLICY_RULES_MAX:
        yield rules.too_many_items_error(path, len(policy_rules), _POLICY_RULES_MAX, "merge some rules")
    for i, rule in enumerate(policy_rules):
        yield from _success_rule_errors(rule, spec.get("completions") or 0, f"{path}[{i}]")


def _success_rule_errors(rule: Obj, completions: int, path: str) -> Iterator[FieldError]:
    succeeded_count, indexes_text = rule.get("succeededCount"), rule.get("succeededIndexes")
    if succeeded_count is None and indexes_text is None:
        message = "at least one of succeededCount or succeededIndexes must be specified"
        yield rules.required(
            path, message, "set succeededIndexes to the indexes that must succeed, or succeededCount to their number"
        )
    total = None
    if indexes_text is not None:
        if len(indexes_text) > _SUCCEEDED_INDEXES_BYTES_MAX:
            yield rules.too_long(f"{path}.succeededIndexes", _SUCCEEDED_INDEXES_BYTES_MAX, "use ranges such as 0-99")
        total = _index_count(indexes_text, completions)
        if total is None:
            message = f"error parsing succeededIndexes: indexes must be from 0 to {completions - 1} and increase"
            remedy = 'list indexes and ranges in ascending order, such as "0,2-4"'
            yield rules.invalid(f"{path}.succeededIndexes", indexes_text, message, remedy)
    if succeeded_count is None:
        return
    count_path = f"{path}.succeededCount"
    if succeeded_count < 0:
        yield rules.invalid(count_path, succeeded_count, rules.NEGATIVE_MESSAGE, "use 0 or more")
    if succeeded_count > completions:
        message = f"must be less than or equal to {completions} (the number of specified completions)"
        yield rules.invalid(count_path, succeeded_count, message, f"use at most {completions}")
    if total is not None and succeeded_count > total:
        text = f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        yield rules.invalid(count_path, succeeded_count, text, f"use at most {total}")


def _index_count(indexes_text: str, completions: int) -> int | None:
    last_index, total = -1, 0
    for part in indexes_text.split(",") if indexes_text else ():
        start_text, dash, end_text = part.partition("-")
        start, end = parse_integer(start_text), parse_integer(end_text if dash else start_text)
        if start is None or end is None or not last_index < start <= end < completions or (dash and end == start):
            return None
        last_index, total = end, total + end - start + 1
    return total
