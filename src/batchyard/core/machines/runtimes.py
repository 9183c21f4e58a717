"""Run times of simulated pods that a Cluster gives (`spec.runtimes`), for pods that do not say it themselves."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from batchyard.api.meta import Obj
from batchyard.base.instant import Duration, parse_duration


def named_runtime(cluster: Obj | None, names: Sequence[str]) -> Duration | None:
    """Return the run time of the first row that matches one of the names (`namespace/name`); None if none does."""
    for row in _runtimes(cluster).get("jobs") or ():
        if _matches(row["names"], names):
            return parse_duration(row["runtime"])
    return None


def default_runtime(cluster: Obj | None) -> Duration | None:
    """Return the run time of pods that no row names; None if the Cluster gives none."""
    text = _runtimes(cluster).get("default")
    return None if text is None else parse_duration(text)


def _runtimes(cluster: Obj | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {} if cluster is None else cluster["spec"].get("runtimes") or {}
    return found


def _matches(patterns: Iterable[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
