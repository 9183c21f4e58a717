"""Rules on mismatches between topologies, chips and machines.

Sources: GKE's autoscaler, IsMultiHostTpuPodslice and the tables of its machine types; JobSet's one Job a slice.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api import well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.ownership import pods_at_once
from batchyard.cloud.catalog.machine_types import Catalog, builtin_catalog, catalog_of
from batchyard.cloud.catalog.pools import chips_in
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import RuleResult
from batchyard.lint.workloads import LintedWork

_SEPARATOR: Final = "x"


def tpu_topology_mismatch(config: Configuration) -> Iterator[RuleResult]:
    """Jobs whose total chips differ from the slice that they select."""
    for work in config.works:
        for job, path, index in _jobs_of(work):
            topology, per_pod = _tpu(work, index)
            if not topology or not per_pod:
                continue
            chips, pods = chips_in(topology), pods_at_once(job)
            if per_pod < chips and pods * per_pod == chips:
                continue
            if per_pod == chips:  # each pod uses a whole slice: any number is valid
                continue
            problem = (
                f"a slice of topology {topology} has {chips} chips, and each Job has {pods} pods of {per_pod}:"
                f" {_consequence(pods * per_pod, chips)}"
            )
            fix = f"set parallelism and completions to {max(1, chips // per_pod)}, or choose another topology"
            yield RuleResult(work.manifest, f"{path}.parallelism", problem, fix)


def tpu_chips_left(config: Configuration) -> Iterator[RuleResult]:
    """Pods that leave chips of their machine unused, which no other pod can use."""
    for work in config.works:
        for index, path in enumerate(work.paths):
            pod = work.pod(index)
            per_pod = dict(pod.requests).get(well_known.TPU)
            if not per_pod:
                continue
            wanted = dict(pod.node_selector)
            matching = [m for m in config.park.machines if m.selected_by(wanted)]
            counts = {t.allocatable.get(well_known.TPU, 0) for machines in matching for t in machines.templates}
            if counts and all(per_pod < count for count in counts):
                least = min(counts)
                problem = (
                    f"a pod requests {per_pod} of {least} chips of its machine: the others stay idle, and TPU programs"
                )
                problem += " that require all chips of a slice do not start"
                yield RuleResult(work.manifest, f"{path}.spec.containers", problem, f"request google.com/tpu: {least}")


def accelerator_mismatch(config: Configuration) -> Iterator[RuleResult]:
    """Selectors for accelerators that the selected machine type lacks."""
    catalog = builtin_catalog() if config.park.cluster is None else catalog_of(config.park.cluster)
    for manifest, path, labels in _selectors(config):
        accelerator = labels.get(well_known.ACCELERATOR) or labels.get(well_known.TPU_ACCELERATOR)
        name = labels.get(well_known.INSTANCE_TYPE) or ""
        if accelerator and name in catalog.machines and not _goes_with(catalog, name, accelerator):
            own = catalog.machines[name].accelerator
            has = f"has {own.count} {own.type}" if own else f"cannot be given {accelerator}"
            problem = f"{name} {has}, but {accelerator} is selected: no node matches both"
            fix = f"select {own.type}, or remove the machine type" if own else "remove the machine type"
            yield RuleResult(manifest, f"{path}[{well_known.INSTANCE_TYPE}]", problem, fix)
        if labels.get(well_known.SPOT) == "true" and labels.get(well_known.PROVISIONING, "spot") != "spot":
            problem = (
                f"{well_known.SPOT}: true and {well_known.PROVISIONING}: {labels[well_known.PROVISIONING]} contradict"
            )
            yield RuleResult(
                manifest, f"{path}[{well_known.PROVISIONING}]", f"{problem} each other", "keep one of them"
            )


def _goes_with(catalog: Catalog, name: str, accelerator: str) -> bool:
    machine = catalog.machine(name)
    return (machine.accelerator is not None and machine.accelerator.type == accelerator) or catalog.can_attach(
        machine, accelerator
    )


def _selectors(config: Configuration) -> Iterator[tuple[Manifest, str, Mapping[str, str]]]:
    for work in config.works:
        for path, template in zip(work.paths, work.templates, strict=True):
            yield work.manifest, f"{path}.spec.nodeSelector", (template.get("spec") or {}).get("nodeSelector") or {}
    for manifest, flavor in config.flavors.values():
        yield manifest, "spec.nodeLabels", flavor.labels


def _jobs_of(work: LintedWork) -> Iterator[tuple[Obj, str, int]]:
    """The Job specs of work, each with its path and the index of its pod set. One Job runs on one slice."""
    if work.obj["kind"] == "Job":
        yield work.obj["spec"], "spec", 0
    for index, replicated in enumerate(work.obj["spec"].get("replicatedJobs") or ()):
        yield replicated["template"]["spec"], f"spec.replicatedJobs[{index}].template.spec", index


def _tpu(work: LintedWork, index: int) -> tuple[str, int]:
    """The topology that pods select, and the chips of each; '' and 0 if they select none."""
    spec = work.templates[index].get("spec") or {}
    topology = (spec.get("nodeSelector") or {}).get(well_known.TPU_TOPOLOGY, "")
    sides = topology.split(_SEPARATOR)
    if not all(side.isdecimal() and side.isascii() for side in sides):
        return "", 0
    return topology, dict(work.view.pod_sets[index].template.requests).get(well_known.TPU, 0)


def _consequence(asked: int, chips: int) -> str:
    if asked > chips:
        return "the pods beyond the slice never get a node of it"
    return "some hosts have no pod, but TPU programs wait for all hosts of their slice"
