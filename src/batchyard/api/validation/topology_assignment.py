"""Rules of where the pods of a pod set were placed. Source: the rules in Kueue's Workload CRD."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults

_ONE_OF_TWO = "exactly one of the fields in [universal individual] must be set"


def assignment_faults(assignment: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Every slice says, for each of its domains, the value of each level and the number of pods."""
    slices, levels = assignment.get("slices"), assignment.get("levels") or ()
    if slices is None:
        yield faults.required(f"{path}.slices", "", "give the domains of the pods, each with a value for every level")
        return
    if any(len(each.get("valuesPerLevel") or ()) != len(levels) for each in slices):
        message = "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment"
        yield faults.broken_rule(path, "object", message, f"give values for the {len(levels)} levels")
    for i, each in enumerate(slices):
        yield from _slice_faults(each, f"{path}.slices[{i}]")


def _slice_faults(part: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Values and counts are the same for all domains of the slice, or one is given for each."""
    count, pods = part["domainCount"], part.get("podCounts") or {}
    if (pods.get("universal") is None) == (pods.get("individual") is None):
        yield faults.broken_rule(f"{path}.podCounts", "object", _ONE_OF_TWO, "give one of universal and individual")
    elif pods.get("individual") is not None and len(pods["individual"]) != count:
        message = "podCounts.individual must have length equal to domainCount"
        yield faults.broken_rule(path, "object", message, f"give {count} counts")
    for j, values in enumerate(part.get("valuesPerLevel") or ()):
        if (values.get("universal") is None) == (values.get("individual") is None):
            at = f"{path}.valuesPerLevel[{j}]"
            yield faults.broken_rule(at, "object", _ONE_OF_TWO, "give one of universal and individual")
        elif values.get("individual") is not None and len(values["individual"]["roots"]) != count:
            message = (
                "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this "
                "TopologyAssignmentSlice"
            )
            yield faults.broken_rule(path, "object", message, f"give {count} roots")
