"""Parsers of probe results: pure functions from the output of a command to an observation."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from batchyard.api.well_known import PROVIDED
from batchyard.provision.steps.model import CommandOutput, ProbeResult, ResultParser


def succeeds(what: str = "") -> ResultParser:
    """Holds if the command succeeds."""

    def read(answer: CommandOutput) -> ProbeResult:
        return ProbeResult(True, what) if answer.code == 0 else ProbeResult(False, answer.last_word)

    return read


def fails(otherwise: str) -> ResultParser:
    """Holds if the command fails."""

    def read(answer: CommandOutput) -> ProbeResult:
        return ProbeResult(answer.code != 0, "" if answer.code else otherwise)

    return read


def prints_anything(nothing: str) -> ResultParser:
    """Holds if the command prints something, whose first line is the description; `nothing` describes the failure."""

    def read(answer: CommandOutput) -> ProbeResult:
        if answer.code:
            return ProbeResult(False, answer.last_word)
        output = answer.printed.strip()
        return ProbeResult(bool(output), output.splitlines()[0] if output else nothing)

    return read


#: kubectl's errors for missing kinds, namespaces and objects.
NOT_THERE: Final = ("doesn't have a resource type", "no matches for kind", "not found", "NotFound")


def is_gone(answer: CommandOutput) -> bool:
    """Whether kubectl failed because the object or its kind does not exist."""
    return bool(answer.code) and any(word in answer.reported for word in NOT_THERE)


def observe_failure(answer: CommandOutput) -> ProbeResult:
    """Observe a failed command: holds if the object does not exist; else kubectl's error."""
    return ProbeResult(True) if is_gone(answer) else ProbeResult(False, answer.last_word)


def prints_nothing(what: str, spared: tuple[str, ...] = ()) -> ResultParser:
    """Holds if nothing is printed, or the objects' kind does not exist; else the number of `what`.

    Lines that begin with one of `spared` do not count.
    """

    def read(answer: CommandOutput) -> ProbeResult:
        if answer.code:
            return observe_failure(answer)
        lines = (line.strip() for line in answer.printed.splitlines())
        left = sum(1 for line in lines if line and not line.startswith(spared))
        return ProbeResult(left == 0, f"{what}: {left}" if left else "nothing is left")

    return read


def lists_all(wanted: Collection[str]) -> ResultParser:
    """Holds if each of these is a line of the output."""

    def read(answer: CommandOutput) -> ProbeResult:
        if answer.code:
            return ProbeResult(False, answer.last_word)
        listed = {line.strip() for line in answer.printed.splitlines()}
        lacking = [name for name in wanted if name not in listed]
        return ProbeResult(not lacking, f"not enabled: {', '.join(lacking)}" if lacking else f"{len(wanted)} enabled")

    return read


def field_equals(field: str, wanted: object, otherwise: str) -> ResultParser:
    """Holds if the printed document has this value in this field."""

    def read(answer: CommandOutput) -> ProbeResult:
        document = answer.document()
        if document is None:
            return ProbeResult(False, answer.last_word)
        is_so = isinstance(document, Mapping) and document.get(field) == wanted
        return ProbeResult(is_so, "" if is_so else otherwise)

    return read


def is_version(field: Sequence[str], least: tuple[int, ...]) -> ResultParser:
    """Holds if the version at this path of the printed document is at least `least`."""

    def read(answer: CommandOutput) -> ProbeResult:
        value: Any = answer.document()
        if value is None:
            return ProbeResult(False, answer.last_word)
        for key in field:
            value = value.get(key) if isinstance(value, Mapping) else None
        return _compared(str(value or ""), least)

    return read


def _compared(text: str, least: tuple[int, ...]) -> ProbeResult:
    """Compare a version with the minimum; suffixes after the numbers are ignored."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if found is None:
        return ProbeResult(False, "it reports no version")
    numbers = tuple(int(part) for part in found[1].split("."))
    if numbers < least:
        return ProbeResult(False, f"it is {found[1]}; at least {'.'.join(map(str, least))} is required")
    return ProbeResult(True, found[1])


def plan_is_empty(answer: CommandOutput) -> ProbeResult:
    """Read `terraform plan -detailed-exitcode`: 0 no changes, 2 changes, else an error."""
    if answer.code == 0:
        return ProbeResult(True, "no changes")
    if answer.code == 2:
        found = re.search(r"^Plan: (.+?)\.?$", answer.printed, re.MULTILINE)
        return ProbeResult(False, found[1] if found else "outputs change")
    return ProbeResult(False, answer.last_word)


def diff_is_empty(answer: CommandOutput) -> ProbeResult:
    """Read `kubectl diff`: 0 no differences, 1 differences, else an error; each object starts with a line `diff `."""
    if answer.code == 0:
        return ProbeResult(True, "as rendered")
    objects = len(re.findall(r"^diff ", answer.printed, re.MULTILINE))
    if answer.code == 1 and objects:
        return ProbeResult(False, f"{objects} {'object' if objects == 1 else 'objects'} to write")
    return ProbeResult(False, answer.last_word)


def all_are(condition: str, wanted: Collection[str]) -> ResultParser:
    """Holds if each of `wanted` (NAME, or NAMESPACE/NAME) is printed with this condition True."""

    def read(answer: CommandOutput) -> ProbeResult:
        document = answer.document()
        if document is None:
            return ProbeResult(False, answer.last_word)
        found = {name_of(obj): _lacking(obj, condition) for obj in items_of(document)}
        lacking = [f"{name}: {found.get(name, 'not there')}" for name in wanted if found.get(name, "not there")]
        more = f"; {len(lacking) - 3} more" if len(lacking) > 3 else ""
        return ProbeResult(not lacking, "; ".join(lacking[:3]) + more if lacking else f"{len(wanted)} {condition}")

    return read


def none_is(is_so: Callable[[Mapping[str, Any]], bool], what: str) -> ResultParser:
    """Holds if no printed object satisfies `is_so`; also if nothing is printed or the kind does not exist."""

    def read(answer: CommandOutput) -> ProbeResult:
        if answer.code:
            return observe_failure(answer)
        document = answer.document()
        names = [name_of(obj) for obj in items_of(document or {"items": []}) if is_so(obj)]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return ProbeResult(not names, f"{what}: {len(names)} ({shown})" if names else "")

    return read


def is_not_provided(obj: Mapping[str, Any]) -> bool:
    """Whether the embedded platform does not provide the object itself (it would recreate it after deletion)."""
    return PROVIDED not in (obj["metadata"].get("annotations") or {})


def has_quota(workload: Mapping[str, Any]) -> bool:
    """Whether a Workload is admitted and not finished."""
    true = {row["type"] for row in workload.get("status", {}).get("conditions", ()) if row["status"] == "True"}
    return "Admitted" in true and "Finished" not in true


def items_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list; a single object is a list of one."""
    items: Sequence[Mapping[str, Any]] = document.get("items", [document])
    return items


def name_of(obj: Mapping[str, Any]) -> str:
    """Return NAME, or NAMESPACE/NAME."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def _lacking(obj: Mapping[str, Any], kind: str) -> str:
    """Return why an object's condition is not True; '' if it is."""
    for condition in obj.get("status", {}).get("conditions", ()):
        if condition["type"] == kind:
            is_so = condition["status"] == "True"
            return "" if is_so else condition.get("message") or condition.get("reason") or f"not {kind}"
    return f"not {kind} yet"
