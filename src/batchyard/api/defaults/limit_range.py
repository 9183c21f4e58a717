"""Defaults of LimitRanges. Source: Kubernetes's pkg/apis/core/v1/defaults.go (SetDefaults_LimitRangeItem)."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj, with_path


def limit_range_defaults(limit_range: Obj) -> Obj:
    """A LimitRange whose defaults for containers are all said: a limit is the maximum, a request the limit."""
    limits = (limit_range.get("spec") or {}).get("limits") or []
    done = [_complete(limit) for limit in limits]
    return limit_range if done == limits else with_path(limit_range, ("spec", "limits"), done)


def _complete(limit: Mapping[str, Any]) -> Mapping[str, Any]:
    if limit.get("type") != "Container":
        return limit
    default = {**(limit.get("max") or {}), **(limit.get("default") or {})}
    request = {**(limit.get("min") or {}), **default, **(limit.get("defaultRequest") or {})}
    said = {"default": default, "defaultRequest": request}
    return {**limit, **{field: value for field, value in said.items() if value}}
