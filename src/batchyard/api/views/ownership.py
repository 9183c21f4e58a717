"""Which jobs an object belongs to, one above the other.

Owner references are written by users: they may name what is not there or is another object by now, and go in circles.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, key_of, label

#: What may be above a pod or a job, and is queued by itself where it names a queue.
JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: How many of them are looked at, as many as Kueue looks at.
_LEVELS_MAX: Final = 10


def jobs_above(obj: Obj, find: Callable[[Key], Obj | None]) -> Iterator[Obj]:
    """The Job or JobSet that controls an object, the one that controls that, and so on, as far as they are there."""
    for _ in range(_LEVELS_MAX):
        owner, key = controller_of(obj), job_above(obj)
        above = None if key is None else find(key)
        if above is None or owner is None or above["metadata"].get("uid") != owner["uid"]:
            return
        yield above
        obj = above


def job_above(obj: Obj) -> Key | None:
    """The Job or JobSet that controls an object, be it there or gone."""
    owner = controller_of(obj)
    key = None if owner is None else owner_key(owner, obj["metadata"].get("namespace") or "")
    return key if key is not None and key.kind in JOB_KINDS else None


def owner_key(owner: Mapping[str, Any], namespace: str) -> Key:
    """The key of an owner that an owner reference names."""
    group, slash, _ = owner["apiVersion"].partition("/")
    return Key(f"{owner['kind']}.{group}" if slash else owner["kind"], namespace, owner["name"])


class Ancestry(NamedTuple):
    """What is known of the jobs above a job."""

    #: The topmost one that names a queue, and so is managed.
    managed: Key | None
    #: An owner that is not to be seen: who is above is not known.
    missing: Key | None = None


def ancestry(job: Obj, find: Callable[[Key], Obj | None]) -> Ancestry:
    """Who manages a job besides itself.

    Source: FindAncestorJobManagedByKueue in pkg/controller/jobframework/reconciler.go of Kueue.
    """
    managed, top = None, job
    for top in jobs_above(job, find):
        if label(top, well_known.QUEUE_NAME):
            managed = key_of(top)
    beyond = job_above(top)
    if beyond is not None and find(beyond) is None:
        return Ancestry(None, missing=beyond)
    return Ancestry(managed)


# --- job ---
#
# What is asked of a Job's spec in more than one layer.


def pods_at_once(spec: Obj) -> int:
    """How many pods of a Job run at a time: its parallelism, but never more than there are completions to reach."""
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    return parallelism if completions is None else min(parallelism, completions)


# --- namespace ---
#
# A Namespace as selectors see it.


#: The label that each Namespace has.
NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace_labels(namespace: Obj) -> Mapping[str, str]:
    """Its labels; Kubernetes adds its name as one."""
    metadata = namespace["metadata"]
    return {NAME_LABEL: metadata["name"], **(metadata.get("labels") or {})}
