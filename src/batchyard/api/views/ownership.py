"""Ownership of jobs: the chain of Jobs and JobSets above an object.

Owner references are written by users: the owner may be missing, another object of the same name, or part of a cycle.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, key_of, label

#: The kinds of owners of a pod or job that can be queued by themselves.
JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: The maximum length of the chain, as in Kueue.
_LEVELS_MAX: Final = 10


def owning_jobs(obj: Obj, find: Callable[[Key], Obj | None]) -> Iterator[Obj]:
    """Yield the Job or JobSet that controls an object, then the one that controls that, while they exist."""
    for _ in range(_LEVELS_MAX):
        owner, key = controller_of(obj), job_above(obj)
        above = None if key is None else find(key)
        if above is None or owner is None or above["metadata"].get("uid") != owner["uid"]:
            return
        yield above
        obj = above


def job_above(obj: Obj) -> Key | None:
    """Return the key of the Job or JobSet that controls an object, whether it exists or not."""
    owner = controller_of(obj)
    key = None if owner is None else owner_key(owner, obj["metadata"].get("namespace") or "")
    return key if key is not None and key.kind in JOB_KINDS else None


def owner_key(owner: Mapping[str, Any], namespace: str) -> Key:
    """Return the key of the owner in an owner reference."""
    group, slash, _ = owner["apiVersion"].partition("/")
    return Key(f"{owner['kind']}.{group}" if slash else owner["kind"], namespace, owner["name"])


class Ancestry(NamedTuple):
    """The known ancestors of a job."""

    #: The topmost one with a queue name, which is managed by Kueue.
    managed: Key | None
    #: An owner that is not found, so that the ancestors are unknown.
    missing: Key | None = None


def ancestry(job: Obj, find: Callable[[Key], Obj | None]) -> Ancestry:
    """Return the managed ancestor of a job.

    Source: FindAncestorJobManagedByKueue in pkg/controller/jobframework/reconciler.go of Kueue.
    """
    managed, top = None, job
    for top in owning_jobs(job, find):
        if label(top, well_known.QUEUE_NAME):
            managed = key_of(top)
    beyond = job_above(top)
    if beyond is not None and find(beyond) is None:
        return Ancestry(None, missing=beyond)
    return Ancestry(managed)


# --- job ---
#
# Values of a Job's spec that several layers need.


def pods_at_once(spec: Obj) -> int:
    """Return the number of pods of a Job that run at a time: its parallelism, at most its completions."""
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    return parallelism if completions is None else min(parallelism, completions)


# --- namespace ---
#
# The labels of a Namespace for selectors.


#: The label that every Namespace has.
NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace_labels(namespace: Obj) -> Mapping[str, str]:
    """Return the labels of a Namespace, including the label with its name."""
    metadata = namespace["metadata"]
    return {NAME_LABEL: metadata["name"], **(metadata.get("labels") or {})}
