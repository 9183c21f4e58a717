"""Repair of an invalid object: the same object without its invalid fields.

The rules can then check the rest of the document, and the report can show a valid form of it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.scheme import KINDS

#: One step of a field path: a key in brackets, or a field name.
_PATH_STEP_PATTERN: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: The maximum number of repairs of a document: one repair can reveal the next fault.
_REPAIRS_MAX: Final = 6


def repair_manifest(value: Any) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
    """Remove or correct the invalid fields of a manifest; return it and its decoded object, None on failure."""
    for _ in range(_REPAIRS_MAX):
        if not isinstance(value, Mapping):
            return None
        decoding = decode(value)
        if decoding.obj is not None:
            return value, decoding.obj
        repaired_value = value
        for fault in decoding.faults:
            repaired_value = _remove_faulty_field(repaired_value, fault)
        if repaired_value == value:
            return None
        value = repaired_value
    return None


def _remove_faulty_field(obj: Mapping[str, Any], fault: FieldError) -> Mapping[str, Any]:
    steps = [key or name for key, name in _PATH_STEP_PATTERN.findall(fault.path)]
    if not steps or steps == ["kind"]:
        return obj
    if steps == ["apiVersion"]:
        served_versions = [info.api_version for info in KINDS if info.kind == obj.get("kind")]
        return {**obj, "apiVersion": served_versions[0]} if served_versions else obj
    if fault.problem.startswith("Required value") and steps[-1] == "coveredResources":
        completed_obj: Mapping[str, Any] = _change_element(obj, steps[:-1], _cover_all_resources)
        return completed_obj
    new_obj: Mapping[str, Any] = _change_element(obj, steps[:-1], lambda holder: _remove_element(holder, steps[-1]))
    return new_obj


def _change_element(value: Any, steps: Sequence[str], transform: Any) -> Any:
    if not steps:
        return transform(value)
    step, later_steps = steps[0], steps[1:]
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _change_element(value[step], later_steps, transform)}
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        index = int(step)
        return [*value[:index], _change_element(value[index], later_steps, transform), *value[index + 1 :]]
    return value


def _remove_element(parent_value: Any, step: str) -> Any:
    if isinstance(parent_value, Mapping):
        return {key: value for key, value in parent_value.items() if str(key) != step}
    if isinstance(parent_value, list) and step.isdecimal():
        return [item for index, item in enumerate(parent_value) if index != int(step)]
    return parent_value


def _cover_all_resources(group: Any) -> Any:
    if not isinstance(group, Mapping) or not isinstance(group.get("flavors"), list):
        return group
    resource_lists = [flavor.get("resources") for flavor in group["flavors"] if isinstance(flavor, Mapping)]
    resource_names = [
        resource.get("name")
        for resources in resource_lists
        if isinstance(resources, list)
        for resource in resources
        if isinstance(resource, Mapping)
    ]
    names = list(dict.fromkeys(name for name in resource_names if isinstance(name, str)))
    return {**group, "coveredResources": names} if names else group
