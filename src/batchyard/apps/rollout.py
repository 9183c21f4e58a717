"""The sizes of a Deployment's ReplicaSets during a rollout and when its replicas change.

Source: pkg/controller/deployment of Kubernetes (rolling.go, sync.go, util/deployment_util.go).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import floor
from typing import Final, NamedTuple

from batchyard.api import meta
from batchyard.apps import children
from batchyard.apps.children import replicas_of, status_count

DESIRED_REPLICAS: Final = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS: Final = "deployment.kubernetes.io/max-replicas"


class SizeChange(NamedTuple):
    """A change of a ReplicaSet's replicas."""

    name: str
    old_size: int
    new_size: int


class ReplicaSets:
    """The new and the old ReplicaSets of a Deployment, with the changes that one reconcile makes."""

    def __init__(self, deployment: meta.Obj, new: meta.Obj | None, old: Sequence[meta.Obj]) -> None:
        self._deployment = deployment
        self.new = new
        #: The old ReplicaSets, in the order in which they were created.
        self.old = sorted(old, key=children.oldest_first)
        self._stored = {each["metadata"]["name"]: each for each in (*self.old, *(() if new is None else (new,)))}

    def new_first(self) -> Sequence[meta.Obj]:
        """Return all ReplicaSets, the new one first."""
        return self.old if self.new is None else [self.new, *self.old]

    def add_new(self, replica_set: meta.Obj) -> None:
        """Add the created ReplicaSet of the current template."""
        self.new = replica_set

    def replace(self, replica_set: meta.Obj) -> None:
        """Replace a ReplicaSet by a changed copy."""
        name = replica_set["metadata"]["name"]
        if self.new is not None and self.new["metadata"]["name"] == name:
            self.new = replica_set
        else:
            self.old = [replica_set if each["metadata"]["name"] == name else each for each in self.old]

    def changed_sets(self) -> Sequence[meta.Obj]:
        """Return the changed ReplicaSets."""
        return [each for each in self.new_first() if each is not self._stored.get(each["metadata"]["name"])]

    def size_changes(self) -> Iterator[SizeChange]:
        """Yield the changes of sizes of stored ReplicaSets, the new one first."""
        for each in self.new_first():
            stored = self._stored.get(each["metadata"]["name"])
            if stored is not None and replicas_of(stored) != replicas_of(each):
                yield SizeChange(each["metadata"]["name"], replicas_of(stored), replicas_of(each))

    def status_counts(self) -> Mapping[str, int]:
        """Return the counts in the status of the Deployment; counts of 0 are left out."""
        # The status counts the pods; a ReplicaSet's spec changes before its status.
        available_count = self._status_total("availableReplicas")
        counts = {
            "replicas": self._status_total("replicas"),
            "updatedReplicas": 0 if self.new is None else status_count(self.new, "replicas"),
            "readyReplicas": self._status_total("readyReplicas"),
            "availableReplicas": available_count,
            "unavailableReplicas": max(0, self._total_size() - available_count),
        }
        counts = {field: value for field, value in counts.items() if value}
        terminating_counts = [(each.get("status") or {}).get("terminatingReplicas", 0) for each in self.new_first()]
        return {**counts, "terminatingReplicas": sum(terminating_counts)}

    # Rolling updates.

    def size_of_created_set(self) -> int:
        """Return the initial size of the ReplicaSet of a new template."""
        return self._allowed_size(0) if is_rolling(self._deployment) else replicas_of(self._deployment)

    def grow_new_set(self) -> bool:
        """Resize the new ReplicaSet as far as maxSurge allows; return whether its size changed."""
        if self.new is None:
            return False
        size, desired_size = replicas_of(self.new), replicas_of(self._deployment)
        return self.resize_new_set(desired_size if size >= desired_size else self._allowed_size(size))

    def shrink_old_sets(self) -> bool:
        """Resize the old ReplicaSets as far as maxUnavailable allows; return whether any size changed.

        Unhealthy pods go first, then pods of the oldest ReplicaSets.
        """
        if self.new is None or not sum(map(replicas_of, self.old)):
            return False
        min_available = replicas_of(self._deployment) - max_unavailable(self._deployment)
        new_unavailable_count = replicas_of(self.new) - status_count(self.new, "availableReplicas")
        removable_count = self._total_size() - min_available - new_unavailable_count
        if removable_count <= 0:
            return False
        cleaned_count = self._remove_unhealthy(removable_count)
        return bool(cleaned_count + self._remove_available(self._status_total("availableReplicas") - min_available))

    def scale_down_old_sets(self) -> bool:
        """Resize all old ReplicaSets to 0; return whether any size changed."""
        active_sets = [each for each in self.old if replicas_of(each)]
        for each in active_sets:
            self._resize(each, 0)
        return bool(active_sets)

    def resize_new_set(self, size: int) -> bool:
        """Resize the new ReplicaSet; return whether its size changed."""
        if self.new is None or replicas_of(self.new) == size:
            return False
        self._resize(self.new, size)
        return True

    def _remove_unhealthy(self, removable_count: int) -> int:
        removed_count = 0
        for each in self.old:
            size = replicas_of(each)
            unhealthy_count = min(removable_count - removed_count, size - status_count(each, "availableReplicas"))
            if size and unhealthy_count > 0:
                self._resize(each, size - unhealthy_count)
                removed_count += unhealthy_count
        return removed_count

    def _remove_available(self, removable_count: int) -> int:
        removed_count = 0
        for each in self.old:
            count = min(replicas_of(each), removable_count - removed_count)
            if count > 0:
                self._resize(each, replicas_of(each) - count)
                removed_count += count
        return removed_count

    def _allowed_size(self, size: int) -> int:
        desired_size = replicas_of(self._deployment)
        free_count = desired_size + max_surge(self._deployment) - self._total_size()
        return size if free_count <= 0 else size + min(free_count, desired_size - size)

    # Changes of the Deployment's replicas.

    def has_new_size(self) -> bool:
        """Return whether the Deployment's replicas changed: an active ReplicaSet has the annotation of another size."""
        annotations = [meta.annotation(each, DESIRED_REPLICAS) for each in self.new_first() if replicas_of(each)]
        sizes = [meta.parse_integer(text, bits=32) for text in annotations if text is not None]
        return any(size is not None and 0 <= size != replicas_of(self._deployment) for size in sizes)

    def scale(self) -> None:
        """Resize the ReplicaSets for the Deployment's replicas: the only active one, or all in proportion."""
        desired_size = replicas_of(self._deployment)
        active_sets = [each for each in self.new_first() if replicas_of(each)]
        if len(active_sets) <= 1:
            only_set = next(iter(active_sets), self.new or (self.old[-1] if self.old else None))
            if only_set is not None and replicas_of(only_set) != desired_size:
                self._resize(only_set, desired_size)
        elif self._is_saturated():
            self.scale_down_old_sets()
        elif is_rolling(self._deployment):
            self._scale_in_proportion(active_sets)

    def _is_saturated(self) -> bool:
        if self.new is None:
            return False
        desired_size = replicas_of(self._deployment)
        annotated_size = meta.parse_integer(meta.annotation(self.new, DESIRED_REPLICAS) or "")
        sizes = (replicas_of(self.new), annotated_size, status_count(self.new, "availableReplicas"))
        return all(size == desired_size for size in sizes)

    def _scale_in_proportion(self, active_sets: Sequence[meta.Obj]) -> None:
        desired_size = replicas_of(self._deployment)
        allowed_size = desired_size + max_surge(self._deployment) if desired_size else 0
        missing_count = allowed_size - sum(map(replicas_of, active_sets))
        by_age = children.newest_first if missing_count > 0 else children.oldest_first
        ordered_sets = sorted(active_sets, key=lambda each: (-replicas_of(each), by_age(each)))
        added_count, new_sizes = 0, list[int]()
        for each in ordered_sets:
            change = self._proportion(each, missing_count, added_count)
            new_sizes.append(replicas_of(each) + change)
            added_count += change
        if missing_count:
            new_sizes[0] = max(0, new_sizes[0] + missing_count - added_count)
        for each, size in zip(ordered_sets, new_sizes, strict=True):
            self._resize(each, size)

    def _proportion(self, replica_set: meta.Obj, missing_count: int, added_count: int) -> int:
        remaining_count = missing_count - added_count
        if not remaining_count:
            return 0
        fraction = self._fraction(replica_set)
        return min(fraction, remaining_count) if missing_count > 0 else max(fraction, remaining_count)

    def _fraction(self, replica_set: meta.Obj) -> int:
        size, desired_size = replicas_of(replica_set), replicas_of(self._deployment)
        if not desired_size:
            return -size
        total_before = meta.parse_integer(meta.annotation(replica_set, MAX_REPLICAS) or "", bits=32)
        if total_before is None or total_before <= 0:
            total_before = status_count(self._deployment, "replicas")
        if not total_before:
            return 0
        return floor(size * (desired_size + max_surge(self._deployment)) / total_before + 0.5) - size

    def _resize(self, replica_set: meta.Obj, size: int) -> None:
        annotations = {**(replica_set["metadata"].get("annotations") or {}), **size_annotations(self._deployment)}
        if size == replicas_of(replica_set) and annotations == replica_set["metadata"].get("annotations"):
            return
        resized = meta.with_path(replica_set, ("spec", "replicas"), size)
        self.replace(meta.with_metadata(resized, annotations=annotations))

    def _total_size(self) -> int:
        return sum(map(replicas_of, self.new_first()))

    def _status_total(self, field: str) -> int:
        return sum(status_count(each, field) for each in self.new_first())


class _Fenceposts(NamedTuple):
    surge: int
    unavailable: int


def _fenceposts(deployment: meta.Obj) -> _Fenceposts:
    if not is_rolling(deployment):
        return _Fenceposts(0, 0)
    settings = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    size = replicas_of(deployment)
    surge = children.scaled_value(settings.get("maxSurge"), size, round_up=True)
    unavailable = children.scaled_value(settings.get("maxUnavailable"), size, round_up=False)
    # Otherwise no pod could be replaced.
    return _Fenceposts(surge, unavailable or int(surge == 0))


def max_surge(deployment: meta.Obj) -> int:
    """Return how many pods a rolling update may create above the desired replicas."""
    return _fenceposts(deployment).surge


def max_unavailable(deployment: meta.Obj) -> int:
    """Return how many of the desired replicas may be unavailable during a rolling update; 0 for other strategies."""
    return min(_fenceposts(deployment).unavailable, replicas_of(deployment))


def size_annotations(deployment: meta.Obj) -> dict[str, str]:
    """Return the annotations of a ReplicaSet: the Deployment's replicas, and the maximum that includes the surge."""
    size = replicas_of(deployment)
    return {DESIRED_REPLICAS: str(size), MAX_REPLICAS: str(size + max_surge(deployment))}


def is_rolling(deployment: meta.Obj) -> bool:
    """Return whether the strategy of a Deployment is RollingUpdate, the default."""
    return bool((deployment["spec"].get("strategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")
