"""Parsers for probes: functions that decide from a command's output whether a condition is satisfied."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from batchyard.api.well_known import PROVIDED
from batchyard.provision.steps.model import CommandOutput, ProbeResult, ResultParser


def succeeds(description: str = "") -> ResultParser:
    """Return a parser whose probe succeeds if the command succeeds; `description` describes the success."""

    def parse(output: CommandOutput) -> ProbeResult:
        return ProbeResult(True, description) if output.code == 0 else ProbeResult(False, output.main_error)

    return parse


def fails(failure: str) -> ResultParser:
    """Return a parser whose probe succeeds if the command fails, and otherwise fails with the text `failure`."""

    def parse(output: CommandOutput) -> ProbeResult:
        return ProbeResult(output.code != 0, "" if output.code else failure)

    return parse


def prints_anything(empty_description: str) -> ResultParser:
    """Return a parser whose probe succeeds if the command succeeds and prints text.

    Without text, the probe fails with `empty_description`.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        if output.code:
            return ProbeResult(False, output.main_error)
        text = output.stdout.strip()
        return ProbeResult(bool(text), text.splitlines()[0] if text else empty_description)

    return parse


#: kubectl's errors for missing kinds, namespaces and objects.
NOT_FOUND_ERRORS: Final = ("doesn't have a resource type", "no matches for kind", "not found", "NotFound")


def is_not_found_error(output: CommandOutput) -> bool:
    """Return whether kubectl failed because the object or its kind does not exist."""
    return bool(output.code) and any(text in output.stderr for text in NOT_FOUND_ERRORS)


def failure_result(output: CommandOutput) -> ProbeResult:
    """Return the probe result of a failed kubectl command: success if the object or its kind does not exist."""
    return ProbeResult(True) if is_not_found_error(output) else ProbeResult(False, output.main_error)


def prints_nothing(description: str, ignored_prefixes: tuple[str, ...] = ()) -> ResultParser:
    """Return a parser whose probe succeeds if the command prints no lines; `description` names what the lines list.

    Lines that start with one of `ignored_prefixes` are ignored. kubectl's error for a missing kind or object is a
    success too.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        if output.code:
            return failure_result(output)
        lines = (line.strip() for line in output.stdout.splitlines())
        line_count = sum(1 for line in lines if line and not line.startswith(ignored_prefixes))
        return ProbeResult(line_count == 0, f"{description}: {line_count}" if line_count else "none")

    return parse


def lists_all(names: Collection[str]) -> ResultParser:
    """Return a parser whose probe succeeds if each of `names` is a line of the command's output."""

    def parse(output: CommandOutput) -> ProbeResult:
        if output.code:
            return ProbeResult(False, output.main_error)
        lines = {line.strip() for line in output.stdout.splitlines()}
        missing_names = [name for name in names if name not in lines]
        description = f"not enabled: {', '.join(missing_names)}" if missing_names else f"{len(names)} enabled"
        return ProbeResult(not missing_names, description)

    return parse


def field_equals(field: str, expected_value: object, failure: str) -> ResultParser:
    """Return a parser whose probe succeeds if `field` of the JSON output equals `expected_value`.

    Otherwise the probe fails with the text `failure`, or with the command's error.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        document = output.document()
        if document is None:
            return ProbeResult(False, output.main_error)
        is_satisfied = isinstance(document, Mapping) and document.get(field) == expected_value
        return ProbeResult(is_satisfied, "" if is_satisfied else failure)

    return parse


def version_at_least(field: Sequence[str], minimum: tuple[int, ...]) -> ResultParser:
    """Return a parser whose probe succeeds if the version in the JSON output is at least `minimum`.

    `field` is the path of the version in the document, as keys.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        value: Any = output.document()
        if value is None:
            return ProbeResult(False, output.main_error)
        for key in field:
            value = value.get(key) if isinstance(value, Mapping) else None
        return _compare_version(str(value or ""), minimum)

    return parse


def _compare_version(text: str, minimum: tuple[int, ...]) -> ProbeResult:
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if match is None:
        return ProbeResult(False, "the program reports no version")
    version_numbers = tuple(int(part) for part in match[1].split("."))
    if version_numbers < minimum:
        return ProbeResult(False, f"version {match[1]} is too old: install at least {'.'.join(map(str, minimum))}")
    return ProbeResult(True, match[1])


def parse_terraform_plan(output: CommandOutput) -> ProbeResult:
    """Return the probe result of `terraform plan -detailed-exitcode`: success if the plan has no changes (code 0)."""
    if output.code == 0:
        return ProbeResult(True, "no changes")
    if output.code == 2:
        plan_match = re.search(r"^Plan: (.+?)\.?$", output.stdout, re.MULTILINE)
        return ProbeResult(False, plan_match[1] if plan_match else "only outputs change")
    return ProbeResult(False, output.main_error)


def parse_kubectl_diff(output: CommandOutput) -> ProbeResult:
    """Return the probe result of `kubectl diff`: success if the cluster's objects do not differ (exit code 0)."""
    if output.code == 0:
        return ProbeResult(True, "as rendered")
    object_count = len(re.findall(r"^diff ", output.stdout, re.MULTILINE))
    if output.code == 1 and object_count:
        return ProbeResult(False, f"{object_count} {'object' if object_count == 1 else 'objects'} to write")
    return ProbeResult(False, output.main_error)


def all_have_condition(condition: str, names: Collection[str]) -> ResultParser:
    """Return a parser whose probe succeeds if the condition is True for each of `names` (NAME or NAMESPACE/NAME)."""

    def parse(output: CommandOutput) -> ProbeResult:
        document = output.document()
        if document is None:
            return ProbeResult(False, output.main_error)
        reasons = {name_of(obj): _unmet_reason(obj, condition) for obj in items_of(document)}
        lines = [f"{name}: {reasons.get(name, 'not found')}" for name in names if reasons.get(name, "not found")]
        more_text = f"; {len(lines) - 3} more" if len(lines) > 3 else ""
        return ProbeResult(not lines, "; ".join(lines[:3]) + more_text if lines else f"{len(names)} {condition}")

    return parse


def all_active(names: Collection[str], is_stopped: Callable[[Mapping[str, Any]], bool]) -> ResultParser:
    """Return a parser whose probe succeeds if each of the queues `names` is Active or stopped.

    A LocalQueue is also stopped if the output lists its ClusterQueue, and that is stopped. The description names the
    stopped queues.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        queues = items_of(output.document() or {"items": []})
        stopped_names = {name_of(queue) for queue in queues if is_stopped(queue)}
        stopped_names |= {name_of(queue) for queue in queues if queue["spec"].get("clusterQueue") in stopped_names}
        result = all_have_condition("Active", [name for name in names if name not in stopped_names])(output)
        stopped_queues = [name for name in names if name in stopped_names]
        if not stopped_queues:
            return result
        stopped_text = f"stopped by their stopPolicy, not waited for: {_format_names(stopped_queues)}"
        return result._replace(description=f"{result.description}; {stopped_text}")

    return parse


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def none_match(is_match: Callable[[Mapping[str, Any]], bool], description: str) -> ResultParser:
    """Return a parser whose probe succeeds if no listed object matches; `description` describes matching objects.

    kubectl's error for a missing kind or object is a success too.
    """

    def parse(output: CommandOutput) -> ProbeResult:
        if output.code:
            return failure_result(output)
        document = output.document()
        names = [name_of(obj) for obj in items_of(document or {"items": []}) if is_match(obj)]
        return ProbeResult(not names, f"{description}: {len(names)} ({_format_names(names)})" if names else "")

    return parse


def is_not_provided(obj: Mapping[str, Any]) -> bool:
    """Return whether an object lacks the annotation of objects that `batchyard up` itself creates and recreates."""
    return PROVIDED not in (obj["metadata"].get("annotations") or {})


def is_admitted_and_unfinished(workload: Mapping[str, Any]) -> bool:
    """Return whether a Workload is admitted and not finished."""
    conditions = workload.get("status", {}).get("conditions", ())
    true_conditions = {row["type"] for row in conditions if row["status"] == "True"}
    return "Admitted" in true_conditions and "Finished" not in true_conditions


def items_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the items of a Kubernetes List; any other object is returned as the only item."""
    items: Sequence[Mapping[str, Any]] = document.get("items", [document])
    return items


def name_of(obj: Mapping[str, Any]) -> str:
    """Return the object's NAME or NAMESPACE/NAME."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])


def _unmet_reason(obj: Mapping[str, Any], type_name: str) -> str:
    for condition in obj.get("status", {}).get("conditions", ()):
        if condition["type"] == type_name:
            is_satisfied = condition["status"] == "True"
            return "" if is_satisfied else condition.get("message") or condition.get("reason") or f"not {type_name}"
    return f"not {type_name} yet"
