"""Flavors that nobody gets, and flavors whose nodes keep away the pods that get them."""

from collections.abc import Iterator
from typing import Final

from batchyard.api import well_known
from batchyard.api.views.flavor import Flavor
from batchyard.api.views.pod import Taint
from batchyard.api.views.queues import ClusterQueueView
from batchyard.core.lint.capacity import holders_of
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Found
from batchyard.core.lint.machines import Machines, named
from batchyard.core.placement.rules import tolerates

#: Pods that ask for these tolerate the taints of that name without saying so.
_TOLERATED_ANYWAY: Final = (well_known.GPU, well_known.TPU)
_HARD: Final = ("NoSchedule", "NoExecute")


def unused_flavor(config: Configuration) -> Iterator[Found]:
    """Flavors that no queue gives."""
    used = {flavor: None for _, groups in config.quotas for group in groups for flavor in group.flavors}
    for name, (manifest, _) in config.flavors.items():
        if name not in used:
            problem = f"no ClusterQueue or Cohort has quota of flavor {name}: nobody ever gets it"
            yield Found(manifest, "metadata.name", problem, "give a queue quota of it, or drop it")


def flavor_without_nodes(config: Configuration) -> Iterator[Found]:
    """Flavors that no machine bears the labels of."""
    if not config.park.is_known:
        return
    for name, (manifest, flavor) in config.flavors.items():
        if not flavor.labels or config.park.of(flavor) or config.makes_pools_for(name):
            continue
        queues = config.queues_with(name)
        if not any(holders_of(config, name, resource) for resource in _resources(queues)):
            continue
        labels = ", ".join(f"{key}={value}" for key, value in flavor.labels.items())
        problem = f"no pool or node has the labels {labels}: whoever is admitted in flavor {name} stays Pending"
        yield Found(manifest, "spec.nodeLabels", problem, _nearest_labels(config, flavor))


def flavor_without_quota(config: Configuration) -> Iterator[Found]:
    """Flavors of which a queue can never have anything, because nobody in its cohort has."""
    snapshot = config.snapshot
    for name, (manifest, view) in config.queues.items():
        potential = snapshot.queues[name].node.potential
        for number, group in enumerate(view.groups):
            for index, flavor in enumerate(group.flavors):
                none = [r for r in group.resources if potential[snapshot.id_of(flavor, r)] <= 0]
                if none:
                    there = "in its whole cohort" if view.cohort else "here, and the queue is in no cohort"
                    problem = f"there is no quota of {', '.join(none)} in flavor {flavor} {there}: nobody ever gets it"
                    fix = "give it a nominalQuota, or drop the flavor from the queue"
                    yield Found(manifest, f"spec.resourceGroups[{number}].flavors[{index}]", problem, fix)


def shadowed_flavor(config: Configuration) -> Iterator[Found]:
    """Flavors behind another that has quota for all the work there is."""
    for name, (manifest, view) in config.queues.items():
        for number, group in enumerate(view.groups):
            taker = next((f for f in group.flavors[:-1] if _takes_all(config, view, f)), None)
            if taker is not None:
                rest = group.flavors[group.flavors.index(taker) + 1 :]
                problem = (
                    f"flavor {taker} comes first and has quota for all jobs written here for {name}:"
                    f" they never get to {', '.join(rest)}"
                )
                fix = "put the flavor to be filled first in front, and give it the quota its nodes have"
                yield Found(manifest, f"spec.resourceGroups[{number}].flavors", problem, fix)


def untolerated_flavor(config: Configuration) -> Iterator[Found]:
    """Flavors with taints that neither they nor any job in their queues tolerate."""
    for name, (manifest, flavor) in config.flavors.items():
        works = [work for queue in config.queues_with(name) for work in config.works_by_queue[queue.name]]
        templates = [pod_set.template for work in works for pod_set in work.view.pod_sets]
        for index, taint in enumerate(flavor.taints):
            if not templates or tolerates(flavor.tolerations, taint):
                continue
            if not any(tolerates(template.tolerations, taint) for template in templates):
                shown = _shown(taint)
                problem = (
                    f"none of the {len(works)} jobs in its queues tolerates {shown}: flavor {name} is skipped for all"
                )
                fix = "put the toleration into spec.tolerations of the flavor, or into the pod templates"
                toleration = {field: value for field, value in taint._asdict().items() if value}
                old = (manifest.obj.get("spec") or {}).get("tolerations") or []
                patches = [(manifest, {"spec": {"tolerations": [*old, toleration]}})]
                yield Found(manifest, f"spec.nodeTaints[{index}]", problem, fix, patches)


def undeclared_taint(config: Configuration) -> Iterator[Found]:
    """Taints of all nodes of a flavor that the flavor says nothing of."""
    for name, (manifest, flavor) in config.flavors.items():
        machines = config.park.of(flavor) if flavor.labels else []
        if not machines or config.makes_pools_for(name):
            continue
        common = [taint for taint in _taints(machines[0]) if all(taint in _taints(each) for each in machines[1:])]
        for taint in common:
            if not _is_declared(config, name, flavor, taint):
                problem = (
                    f"the nodes of flavor {name} ({named(machines)}) have the taint"
                    f" {_shown(taint)}, which the flavor does not: jobs that do not tolerate it are admitted to it,"
                    " and their pods stay Pending"
                )
                fix = "put the taint into spec.nodeTaints, or a toleration into spec.tolerations"
                old = (manifest.obj.get("spec") or {}).get("nodeTaints") or []
                added = {field: value for field, value in taint._asdict().items() if value}
                patches = [(manifest, {"spec": {"nodeTaints": [*old, added]}})]
                yield Found(manifest, "spec.nodeTaints", problem, fix, patches)


def _is_declared(config: Configuration, name: str, flavor: Flavor, taint: Taint) -> bool:
    if taint.key == well_known.QUEUED or taint.key in _TOLERATED_ANYWAY or tolerates(flavor.tolerations, taint):
        return True
    if any((own.key, own.effect) == (taint.key, taint.effect) for own in flavor.taints):
        return True
    users = config.users_of(name)
    return bool(users) and all(
        tolerates(work.view.pod_sets[index].template.tolerations, taint) for work, index in users
    )


def _takes_all(config: Configuration, view: ClusterQueueView, flavor: str) -> bool:
    """Whether the queue's own quota of a flavor holds all of its jobs at once."""
    works = dict.fromkeys(config.works_by_queue[view.name])
    users = (
        [(work, index) for work, index in config.users_of(flavor) if work in works] if flavor in config.flavors else []
    )
    if not works or len(users) < sum(len(work.view.pod_sets) for work in works):
        return False
    total: dict[str, int] = {}
    for work, index in users:
        for resource, amount in work.view.pod_sets[index].template.requests:
            total[resource] = total.get(resource, 0) + amount * work.view.counts[index]
    quotas = {q.resource: q.nominal for group in view.groups for q in group.quotas if q.flavor == flavor}
    return all(total.get(resource, 0) <= nominal for resource, nominal in quotas.items())


def _taints(machines: Machines) -> list[Taint]:
    """The taints that keep pods away and that all of its nodes have."""
    first, *others = machines.templates
    return [t for t in first.taints if t.effect in _HARD and all(t in other.taints for other in others)]


def _nearest_labels(config: Configuration, flavor: Flavor) -> str:
    """Which machines come nearest, and what they have instead."""
    templates = [(machines.name, machines.templates[0].labels) for machines in config.park.machines]
    if not templates:
        return "add a pool with these labels"
    shared = [(len(flavor.labels.items() & labels.items()), name, labels) for name, labels in templates]
    count, name, labels = max(shared, key=lambda found: found[0])
    if not count:
        return "add a pool with these labels, or use labels that nodes have"
    other = [f"{key}={labels.get(key, '(none)')}" for key, value in flavor.labels.items() if labels.get(key) != value]
    return f"add a pool with these labels; {name} comes nearest, with {', '.join(other)}"


def _resources(queues: list[ClusterQueueView]) -> list[str]:
    return list(dict.fromkeys(r for queue in queues for group in queue.groups for r in group.resources))


def _shown(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
