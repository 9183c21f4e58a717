"""The webhooks by kind and operation, under the names that Kueue's and JobSet's webhooks have.

Sources: Kueue's config/components/webhook, JobSet's config/components/webhook. The CEL rules of their CRDs are
checked by webhooks here, so some kinds have a webhook more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard import controller_groups
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind, kind_info

#: The URL paths of the webhooks.
MUTATE: Final = "/mutate"
VALIDATE: Final = "/validate"
CONVERT: Final = "/convert"
#: A Namespace whose Jobs and pods are excluded: a cluster must be able to start without the operator.
SYSTEM: Final = "kube-system"
#: The label that distinguishes pods of JobSets.
POD_LABEL: Final = well_known.JOB_SET_NAME
_CREATED: Final = ("CREATE",)
_WRITTEN: Final = ("CREATE", "UPDATE")


class Hook(NamedTuple):
    """One webhook: the requests that it handles."""

    name: str
    info: ServedKind
    operations: Sequence[str]
    mutates: bool
    #: Subresources that it also handles.
    parts: Sequence[str] = ()

    @property
    def resources(self) -> list[str]:
        """The resources in the notation of webhook rules."""
        return [self.info.plural, *(f"{self.info.plural}/{part}" for part in self.parts)]

    @property
    def is_of_work(self) -> bool:
        """Whether it handles the users' workloads, which exist in every Namespace."""
        return self.info.constant in {scheme.JOB, scheme.JOB_SET, scheme.POD}


_MUTATED: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR),
        *(scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
    ),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
_VALIDATED: Final = {
    controller_groups.ADMISSION: (
        *(scheme.JOB, scheme.JOB_SET, scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD),
        *(scheme.LOCAL_QUEUE, scheme.ADMISSION_CHECK, scheme.TOPOLOGY),
    ),
    controller_groups.JOBSET: (scheme.JOB_SET, scheme.POD),
}
#: Kinds whose status subresource is validated too.
_WITH_STATUS: Final = (scheme.WORKLOAD,)


def hooks(of: Sequence[str]) -> Sequence[Hook]:
    """The webhooks of controller groups, mutating ones first."""
    return [*_hooks(of, mutates=True), *_hooks(of, mutates=False)]


def _hooks(of: Sequence[str], *, mutates: bool) -> Iterator[Hook]:
    table = _MUTATED if mutates else _VALIDATED
    for kind in dict.fromkeys(kind for group in of for kind in table.get(group, ())):
        info = kind_info(kind)
        operations = _CREATED if mutates or kind == scheme.POD else _WRITTEN
        parts = ("status",) if kind in _WITH_STATUS and not mutates else ()
        yield Hook(f"{'m' if mutates else 'v'}{info.singular}.kb.io", info, operations, mutates, parts)


# --- lookups ---
#
# Lookups of an answer: it is computed from the known objects, and again after a missing object was fetched.


class ObjectQuery(NamedTuple):
    """An object by its key, or the pods of a Job by the Job's uid."""

    key: Key
    owner: str = ""


class ObjectNotFetched(Exception):  # noqa: N818 - reads better
    """An answer requires an object that has not been fetched yet."""

    def __init__(self, question: ObjectQuery) -> None:
        super().__init__(str(question))
        self.question = question


class FetchedObjects:
    """The fetched objects for one answer; raises Unknown for others."""

    def __init__(self, namespace: str, known: Mapping[ObjectQuery, Sequence[Obj]]) -> None:
        self._namespace = namespace
        self._known = known

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        found = self._found(ObjectQuery(key))
        return found[0] if found else None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """The pods of a Job."""
        return self._found(ObjectQuery(Key("", self._namespace, ""), uid))

    def _found(self, question: ObjectQuery) -> Sequence[Obj]:
        if question not in self._known:
            raise ObjectNotFetched(question)
        return self._known[question]
