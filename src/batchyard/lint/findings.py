"""What a rule finds: where, what is wrong and what comes of it, and what to do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView
from batchyard.lint.workloads import Work
from batchyard.scheduling.assignment import PodSetAssignment
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_assigner import FlavorSearch
from batchyard.scheduling.snapshot import Snapshot

if TYPE_CHECKING:
    from batchyard.lint.configuration import Configuration

#: Where a rule is described.
DOCUMENT: Final = "docs/lint.md"


class Severity(StrEnum):
    """How bad it is."""

    #: Something that is written here can never work.
    ERROR = "error"
    #: It works otherwise than it says, or only as long as a condition holds.
    WARNING = "warning"
    #: It does nothing, or is worth knowing.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Found:
    """Something wrong with one object, as a rule finds it."""

    manifest: Manifest
    #: The field, such as `spec.resourceGroups[0]`; '' for the object as a whole.
    path: str
    #: What is wrong, and what comes of it.
    problem: str
    #: What would be right.
    fix: str
    #: The same as merge patches (RFC 7386) of objects, where they are known.
    patches: Sequence[tuple[Manifest, Mapping[str, Any]]] = ()
    #: None: that of the rule.
    severity: Severity | None = None


Check = Callable[["Configuration"], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` is None where it is found while documents are read."""

    name: str
    severity: Severity
    #: What it is about, in a few words.
    about: str
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, as users are told."""

    rule: str
    severity: Severity
    source: str
    #: Counted from 1; 0 for the file as a whole.
    document: int
    kind: str
    namespace: str
    name: str
    path: str
    problem: str
    fix: str
    #: Merge patches that mend it, each with the name of its object.
    patches: Sequence[Mapping[str, Any]] = ()
    #: Counted from 1; 0 if it is not known.
    line: int = 0

    @property
    def link(self) -> str:
        """Where the rule is described."""
        return f"{DOCUMENT}#{self.rule}"


def finding_of(rule: Rule, found: Found) -> Finding:
    """What a rule found, with the rule's name."""
    manifest = found.manifest
    metadata = manifest.obj["metadata"]
    return Finding(
        rule=rule.name,
        severity=found.severity or rule.severity,
        source=manifest.source,
        document=manifest.document,
        kind=manifest.obj["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name") or metadata.get("generateName", ""),
        path=f"{manifest.at}.{found.path}" if manifest.at and found.path else manifest.at or found.path,
        problem=found.problem,
        fix=found.fix,
        patches=tuple([_addressed(whose.obj, patch) for whose, patch in found.patches]),
    )


def _addressed(obj: Obj, patch: Mapping[str, Any]) -> dict[str, Any]:
    """A patch with what says whose it is, so that it can be applied as it stands."""
    own = obj["metadata"]
    who = {field: own[field] for field in ("name", "namespace") if field in own}
    metadata = {**who, **(patch.get("metadata") or {})}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **patch, "metadata": metadata}


# --- parts ---
#
# The pod sets of queued work, each with what the scheduler's own search finds for it alone, nothing being in use.


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of them."""

    work: Work
    index: int
    queue: ClusterQueue
    assignment: PodSetAssignment

    @property
    def path(self) -> str:
        """Where its pod spec is written."""
        return f"{self.work.paths[self.index]}.spec"

    @property
    def who(self) -> str:
        """As messages call it."""
        sets = self.work.view.pod_sets
        return "it" if len(sets) == 1 else f"pod set {sets[self.index].name}"


def parts_of(
    works: Sequence[Work], queue_of: Callable[[Work], ClusterQueue | None], snapshot: Snapshot
) -> Iterator[Part]:
    """All whose ClusterQueue is known; as few pods are asked for as the work can do with."""
    for work in works:
        queue = queue_of(work)
        if queue is None:
            continue
        for index, pod_set in enumerate(work.workload["spec"]["podSets"]):
            alone = WorkloadView({"metadata": work.workload["metadata"], "spec": {"podSets": [pod_set]}})
            least = alone.pod_sets[0].min_count
            count = alone.pod_sets[0].count if least is None else least
            search = FlavorSearch(alone, queue, snapshot, None, None)
            yield Part(work, index, queue, search.assign([count]).pod_sets[0])
