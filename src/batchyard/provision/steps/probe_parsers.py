"""How answers are read: pure functions from what a command said to what one sees by it."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from batchyard.api.well_known import PROVIDED
from batchyard.provision.steps.model import Answer, Reading, Seen


def succeeds(what: str = "") -> Reading:
    """It is so where the command succeeds."""

    def read(answer: Answer) -> Seen:
        return Seen(True, what) if answer.code == 0 else Seen(False, answer.last_word)

    return read


def fails(otherwise: str) -> Reading:
    """It is so where the command does not succeed."""

    def read(answer: Answer) -> Seen:
        return Seen(answer.code != 0, "" if answer.code else otherwise)

    return read


def prints_anything(nothing: str) -> Reading:
    """It is so where the command prints something, which is what is seen; `nothing` says what it means if not."""

    def read(answer: Answer) -> Seen:
        if answer.code:
            return Seen(False, answer.last_word)
        said = answer.printed.strip()
        return Seen(bool(said), said.splitlines()[0] if said else nothing)

    return read


#: What kubectl says of kinds, namespaces and objects that are not there.
NOT_THERE: Final = ("doesn't have a resource type", "no matches for kind", "not found", "NotFound")


def is_gone(answer: Answer) -> bool:
    """Whether kubectl fails because what it is asked for is not there, or not even its kind."""
    return bool(answer.code) and any(word in answer.told for word in NOT_THERE)


def seen_gone(answer: Answer) -> Seen:
    """Of a failure: it is so where what is asked for is not there; else what kubectl says."""
    return Seen(True) if is_gone(answer) else Seen(False, answer.last_word)


def prints_nothing(what: str, spared: tuple[str, ...] = ()) -> Reading:
    """It is so where no line is printed, or what is asked for is not there at all; else there are so many of `what`.

    Lines that begin with one of `spared` do not count.
    """

    def read(answer: Answer) -> Seen:
        if answer.code:
            return seen_gone(answer)
        lines = (line.strip() for line in answer.printed.splitlines())
        left = sum(1 for line in lines if line and not line.startswith(spared))
        return Seen(left == 0, f"{what}: {left}" if left else "nothing is left")

    return read


def lists_all(wanted: Collection[str]) -> Reading:
    """It is so where each of these stands on a line of its own."""

    def read(answer: Answer) -> Seen:
        if answer.code:
            return Seen(False, answer.last_word)
        listed = {line.strip() for line in answer.printed.splitlines()}
        lacking = [name for name in wanted if name not in listed]
        return Seen(not lacking, f"not enabled: {', '.join(lacking)}" if lacking else f"{len(wanted)} enabled")

    return read


def says(field: str, wanted: object, otherwise: str) -> Reading:
    """It is so where the document that is printed has this field with this value."""

    def read(answer: Answer) -> Seen:
        document = answer.document()
        if document is None:
            return Seen(False, answer.last_word)
        is_so = isinstance(document, Mapping) and document.get(field) == wanted
        return Seen(is_so, "" if is_so else otherwise)

    return read


def is_version(field: Sequence[str], least: tuple[int, ...]) -> Reading:
    """It is so where the document that is printed has a version in this field (a path) that is no older."""

    def read(answer: Answer) -> Seen:
        value: Any = answer.document()
        if value is None:
            return Seen(False, answer.last_word)
        for key in field:
            value = value.get(key) if isinstance(value, Mapping) else None
        return _compared(str(value or ""), least)

    return read


def _compared(text: str, least: tuple[int, ...]) -> Seen:
    """A version beside the least there must be; what stands behind the numbers does not count."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if found is None:
        return Seen(False, "it says no version")
    numbers = tuple(int(part) for part in found[1].split("."))
    if numbers < least:
        return Seen(False, f"it is {found[1]}, and {'.'.join(map(str, least))} is the least")
    return Seen(True, found[1])


def plan_is_empty(answer: Answer) -> Seen:
    """`terraform plan -detailed-exitcode`: 0 nothing to do, 2 something, else it failed."""
    if answer.code == 0:
        return Seen(True, "no changes")
    if answer.code == 2:
        found = re.search(r"^Plan: (.+?)\.?$", answer.printed, re.MULTILINE)
        return Seen(False, found[1] if found else "outputs change")
    return Seen(False, answer.last_word)


def diff_is_empty(answer: Answer) -> Seen:
    """`kubectl diff`: 0 no differences, 1 some, else it failed; each object's part begins with a line `diff `."""
    if answer.code == 0:
        return Seen(True, "as rendered")
    objects = len(re.findall(r"^diff ", answer.printed, re.MULTILINE))
    if answer.code == 1 and objects:
        return Seen(False, f"{objects} {'object' if objects == 1 else 'objects'} to write")
    return Seen(False, answer.last_word)


def all_are(condition: str, wanted: Collection[str]) -> Reading:
    """It is so where each of `wanted` (NAME, or NAMESPACE/NAME) is printed, and has this condition as True."""

    def read(answer: Answer) -> Seen:
        document = answer.document()
        if document is None:
            return Seen(False, answer.last_word)
        found = {name_of(obj): _lacking(obj, condition) for obj in items_of(document)}
        lacking = [f"{name}: {found.get(name, 'not there')}" for name in wanted if found.get(name, "not there")]
        more = f"; {len(lacking) - 3} more" if len(lacking) > 3 else ""
        return Seen(not lacking, "; ".join(lacking[:3]) + more if lacking else f"{len(wanted)} {condition}")

    return read


def none_is(is_so: Callable[[Mapping[str, Any]], bool], what: str) -> Reading:
    """It is so where no object that is printed is such; nothing printed is none, and so is a kind that is not there."""

    def read(answer: Answer) -> Seen:
        if answer.code:
            return seen_gone(answer)
        document = answer.document()
        names = [name_of(obj) for obj in items_of(document or {"items": []}) if is_so(obj)]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return Seen(not names, f"{what}: {len(names)} ({shown})" if names else "")

    return read


def is_not_provided(obj: Mapping[str, Any]) -> bool:
    """Whether an object is not one that the embedded platform provides itself, and creates again when it is deleted."""
    return PROVIDED not in (obj["metadata"].get("annotations") or {})


def has_quota(workload: Mapping[str, Any]) -> bool:
    """Whether a Workload is admitted and has not ended."""
    true = {row["type"] for row in workload.get("status", {}).get("conditions", ()) if row["status"] == "True"}
    return "Admitted" in true and "Finished" not in true


def items_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The objects of a list, or the one that is no list."""
    items: Sequence[Mapping[str, Any]] = document.get("items", [document])
    return items


def name_of(obj: Mapping[str, Any]) -> str:
    """NAME, or NAMESPACE/NAME."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def _lacking(obj: Mapping[str, Any], kind: str) -> str:
    """Why an object has not this condition as True; '' where it has."""
    for condition in obj.get("status", {}).get("conditions", ()):
        if condition["type"] == kind:
            is_so = condition["status"] == "True"
            return "" if is_so else condition.get("message") or condition.get("reason") or f"not {kind}"
    return f"not {kind} yet"
