"""Whether the pods of queued work fit the nodes of the flavors it may get, going by the rules of placement."""

from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.manifests import Manifest
from batchyard.api.quantity import format_amount
from batchyard.api.views.flavor import Flavor
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod import Taint
from batchyard.api.views.pods import PodView
from batchyard.core.lint.machines import Machines, Park, named
from batchyard.core.lint.parts import Part
from batchyard.core.placement.rules import selects, tolerates
from batchyard.core.quality import Mode
from batchyard.core.snapshot import Snapshot

#: So many choices of flavors are looked at for a pod set of several resource groups.
_CHOICES_MAX: Final = 64


class Places(Protocol):
    """What there is."""

    @property
    def park(self) -> Park:
        """The machines."""

    @property
    def flavors(self) -> Mapping[str, tuple[Manifest, Flavor]]:
        """The flavors by name."""

    @property
    def snapshot(self) -> Snapshot:
        """The queues."""


class Fit(NamedTuple):
    """What stands between the pods of a part and nodes, if they get certain flavors."""

    rule: str
    problem: str
    fix: str


Fits: TypeAlias = Mapping[tuple[str, ...], Fit | None]


def fits_of(parts: Sequence[Part], places: Places) -> list[tuple[Part, Fits]]:
    """For each part that can be admitted: by choice of flavors, what stands in the way of its pods; None: nothing."""
    if not places.park.is_known:
        return []
    return [(part, _fits(part, places)) for part in parts if part.assignment.mode is not Mode.NO_FIT]


def _fits(part: Part, places: Places) -> Fits:
    usable = [_usable(part, group, places) for group in range(len(part.queue.view.groups))]
    choices = islice(product(*[flavors for flavors in usable if flavors]), _CHOICES_MAX)
    return {choice: _fit(part, choice, places) for choice in choices}


def _usable(part: Part, number: int, places: Places) -> list[str]:
    """The flavors of a group that a part could get; none if it asks for nothing of the group."""
    group, snapshot = part.queue.view.groups[number], places.snapshot
    template = part.work.view.pod_sets[part.index].template
    asked = {r: amount * part.assignment.count for r, amount in template.requests if r in group.resources and amount}
    if not asked:
        return []
    obstacles = snapshot.obstacles.of(template, group.flavors)
    potential = part.queue.node.potential
    return [
        flavor
        for flavor, obstacle in zip(group.flavors, obstacles, strict=True)
        if not obstacle and all(amount <= potential[snapshot.id_of(flavor, r)] for r, amount in asked.items())
    ]


def _fit(part: Part, choice: Sequence[str], places: Places) -> Fit | None:
    flavors: list[Flavor] = [places.flavors[name][1] for name in choice]
    pod = part.work.pod(part.index, flavors, queued=True)  # who asks for machines first is another rule
    matching = [each for each in places.park.machines if any(selects(pod.shape.rules, t) for t in each.templates)]
    open_to = [each for each in matching if _room(pod, each, only_taints=True)]
    if places.park.could_make(pod):
        return None
    if not matching:
        labels = ", ".join(f"{key}={value}" for key, value in pod.node_selector) or "what its affinity wants"
        fix = "ask for labels that nodes have, or add a pool that has them"
        return Fit("no-such-node", f"no pool or node has {labels}", fix)
    if not open_to:
        taint = _untolerated(pod, matching[0].templates)
        shown = f"{taint.key}={taint.value}:{taint.effect}"
        fix = f"tolerate {taint.key} in the pod template, or in spec.tolerations of the flavor"
        return Fit("untolerated-taint", f"{named(matching)} has the taint {shown}, which its pods do not tolerate", fix)
    if not any(_room(pod, each) for each in open_to):
        return _too_large_for(pod, open_to)
    return _too_many(pod, part.assignment.count, open_to)


def _room(pod: PodView, machines: Machines, *, only_taints: bool = False) -> int:
    """How many of such pods one of the machines holds; at least one where only labels and taints count."""
    return max((_room_on(pod, template, only_taints) for template in machines.templates), default=0)


def _room_on(pod: PodView, node: NodeView, only_taints: bool) -> int:
    rules = pod.shape.rules
    if not selects(rules, node) or _untolerated(pod, [node]).key:
        return 0
    if only_taints:
        return 1
    return min((node.allocatable.get(resource, 0) // amount for resource, amount in pod.requests), default=1)


def _untolerated(pod: PodView, nodes: Sequence[NodeView]) -> Taint:
    """The first taint that keeps the pod away; one without a key if there is none."""
    for node in nodes:
        for taint in node.taints:
            if taint.effect != "PreferNoSchedule" and not tolerates(pod.tolerations, taint):
                return taint
    return Taint("", "", "")


def _too_large_for(pod: PodView, machines: Sequence[Machines]) -> Fit:
    best = max(machines, key=lambda each: sum(_has(pod, each.templates[0]).values()))
    node = best.templates[0]
    short = [r for r, fits in _has(pod, node).items() if not fits]
    told = ", ".join(
        f"{format_amount(r, dict(pod.requests)[r])} {r} of {format_amount(r, node.allocatable.get(r, 0))}"
        for r in short
    )
    problem = f"one pod asks for more than any node has for pods; on {best.name}: {told}"
    fix = "ask for less than a node's allocatable, which is less than the machine has, or add a pool of larger machines"
    return Fit("pod-larger-than-node", problem, fix)


def _has(pod: PodView, node: NodeView) -> dict[str, bool]:
    return {resource: amount <= node.allocatable.get(resource, 0) for resource, amount in pod.requests}


def _too_many(pod: PodView, count: int, machines: Sequence[Machines]) -> Fit | None:
    room = sum(each.most * _room(pod, each) for each in machines)
    if room >= count:
        return None
    fix = f"run at most {room} pods at once, or let the pools grow to hold {count}"
    return Fit("too-few-nodes", f"it has {count} pods at once, and {named(machines)} hold at most {room} of them", fix)
