"""Validation rules between the fields of a platform: references, uniqueness, and Google Cloud's constraints.

Errors of the generated objects are found when they are rendered (`manifests`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import nearest, shown
from batchyard.provision.engine import NAMESPACES, configuration_faults
from batchyard.provision.google import google_faults
from batchyard.provision.manifests.stack import NAMESPACE as MONITORING
from batchyard.provision.model import (
    MetricsCollector,
    Part,
    PlatformEngine,
    PlatformFlavor,
    PlatformModel,
    Queue,
)

_RELEASE: Final = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
#: Subjects that stand for all users or all pods.
_ALL_SUBJECTS: Final = frozenset(
    {"system:authenticated", "system:unauthenticated", "system:anonymous", "system:serviceaccounts"}
)
#: Namespaces that no platform deletes: those of Kubernetes and of the engines.
_KEPT_NAMESPACES: Final = frozenset({*NAMESPACES.values(), "jobset-system"})
_OF_KUBERNETES: Final = "kube-"
_HAVE_QUOTAS: Final = ("queueClasses", "queues", "cohorts")
#: Resource names without a domain. Kueue accepts others of this form too, for example custom counts.
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage", "pods")


def faults_of(platform: PlatformModel, spec: Part) -> Iterator[FieldError]:
    """Yield all errors of a platform whose structure is valid."""
    yield from _flavor_faults(platform)
    yield from _class_faults(platform, spec)
    yield from _resource_faults(spec)
    for queue in platform.queues:
        yield from _queue_faults(queue, platform)
    yield from _twice(platform)
    yield from _cohort_faults(platform)
    yield from _priority_faults(platform, spec)
    yield from _team_names(platform)
    yield from _engine_faults(platform)
    yield from _check_faults(spec)
    yield from _budget_faults(platform)
    if platform.google is not None:
        yield from google_faults(platform, platform.google)
    if platform.monitoring.collector is MetricsCollector.POD_MONITORING and platform.google is None:
        remedy = "write ServiceMonitor, for a cluster with the Prometheus Operator, or None"
        yield FieldError("spec.monitoring.collector", "PodMonitoring is a kind of GKE, and this is none", remedy)


def _unknown(path: str, name: str, what: str, known: Iterable[str]) -> Iterator[FieldError]:
    """Yield an error if the name is not among `known`."""
    names = list(known)
    if name not in names:
        close = nearest(name, names)
        remedy = f"did you mean {close}?" if close else f"known here: {', '.join(names) or 'none'}"
        yield FieldError(path, f"there is no {what} {shown(name)}", remedy)


def _flavor_faults(platform: PlatformModel) -> Iterator[FieldError]:
    pools = [row["name"] for row in platform.node_pools]
    topologies = [each.name for each in platform.topologies]
    for index, flavor in enumerate(platform.flavors):
        path = f"spec.flavors[{index}]"
        for number, pool in enumerate(flavor.pools):
            yield from _unknown(f"{path}.pools[{number}]", pool, "node pool", pools)
        if flavor.topology:
            yield from _unknown(f"{path}.topologyName", flavor.topology, "topology", topologies)


def _class_faults(platform: PlatformModel, spec: Part) -> Iterator[FieldError]:
    """Check that teams' queues name known classes, and classes known flavors, whether used or not."""
    classes = [row["name"] for row in spec.get("queueClasses") or ()]
    for index, row in enumerate(spec.get("queueClasses") or ()):
        rows = row["flavors"]
        yield from _flavor_names(f"spec.queueClasses[{index}]", [each["name"] for each in rows], platform.flavors)
    for index, team in enumerate(spec["teams"]):
        for number, row in enumerate(team.get("queues") or ()):
            path = f"spec.teams[{index}].queues[{number}]"
            yield from _unknown(f"{path}.class", row["class"], "queue class", classes)
            yield from _flavor_names(path, [each["name"] for each in row.get("flavors") or ()], platform.flavors)
    for index, row in enumerate(spec.get("queues") or ()):
        path = f"spec.queues[{index}]"
        yield from _flavor_names(path, [each["name"] for each in row["flavors"]], platform.flavors)
        for number, name in enumerate(row.get("teams") or ()):
            yield from _unknown(f"{path}.teams[{number}]", name, "team", [team.name for team in platform.teams])
    for index, row in enumerate(spec.get("cohorts") or ()):
        names = [each["name"] for each in row.get("flavors") or ()]
        yield from _flavor_names(f"spec.cohorts[{index}]", names, platform.flavors)


def _flavor_names(path: str, names: Sequence[str], flavors: Sequence[PlatformFlavor]) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        yield from _unknown(f"{path}.flavors[{index}].name", name, "flavor", [flavor.name for flavor in flavors])


def _resource_faults(spec: Part) -> Iterator[FieldError]:
    """Report probable typos in resource names: Kueue accepts quotas of any resource."""
    rows = [(f"spec.{of}[{index}]", row) for of in _HAVE_QUOTAS for index, row in enumerate(spec.get(of) or ())]
    for index, team in enumerate(spec["teams"]):
        rows += [(f"spec.teams[{index}].queues[{i}]", row) for i, row in enumerate(team.get("queues") or ())]
    for path, row in rows:
        for number, flavor in enumerate(row.get("flavors") or ()):
            for name in flavor.get("resources") or ():
                close = None if "/" in name or name in _RESOURCES else nearest(name, _RESOURCES)
                if close:
                    remedy = f"did you mean {close}? Those of devices have a domain, such as nvidia.com/gpu"
                    where = f"{path}.flavors[{number}].resources[{name}]"
                    yield FieldError(where, f"Kubernetes has no resource {shown(name)}", remedy)


def _queue_faults(queue: Queue, platform: PlatformModel) -> Iterator[FieldError]:
    checks = [check.name for check in platform.admission_checks]
    for index, row in enumerate(queue.admission_checks):
        yield from _unknown(f"{queue.path}.admissionChecks[{index}].name", row["name"], "admission check", checks)
    yield from _group_faults(queue)


def _group_faults(queue: Queue) -> Iterator[FieldError]:
    """Check that flavors of a queue have either the same resources or none in common."""
    seen: dict[str, tuple[str, frozenset[str]]] = {}
    for index, flavor in enumerate(queue.flavors):
        resources = frozenset(flavor.resources)
        for resource in flavor.resources:
            other, others = seen.setdefault(resource, (flavor.name, resources))
            if others != resources:
                missing = ", ".join(sorted(resources ^ others))
                yield FieldError(
                    f"{queue.path}.flavors[{index}].resources",
                    f"{flavor.name} and {other} both have {resource}, and only one of them has {missing}",
                    "list the same resources in all flavors of a group",
                )
                break


def _twice(platform: PlatformModel) -> Iterator[FieldError]:
    """Check that ClusterQueues, LocalQueues of a namespace, and teams' namespaces are unique."""
    queues: set[str] = set()
    locals_: set[tuple[str, str]] = set()
    for queue in platform.queues:
        if queue.name in queues:
            yield FieldError(queue.path, f"there is a ClusterQueue {shown(queue.name)} already", "use another name")
        queues.add(queue.name)
        for local in queue.local_queues:
            key = local.namespace, local.name
            if key in locals_:
                problem = f"there is a LocalQueue {shown(local.name)} in {local.namespace} already"
                yield FieldError(queue.path, problem, "give one of them another localQueue")
            locals_.add(key)
    owners: dict[str, str] = {}
    for team in platform.teams:
        other = owners.setdefault(team.namespace, team.name)
        if other != team.name:
            problem = f"{team.namespace} is the namespace of {other} already"
            yield FieldError(f"{team.path}.namespace", problem, "give each team a namespace of its own")


def _cohort_faults(platform: PlatformModel) -> Iterator[FieldError]:
    """Check that named Cohorts are listed, if any are listed, and that there are no cycles."""
    names = [cohort.name for cohort in platform.cohorts]
    parents = {cohort.name: cohort.parent for cohort in platform.cohorts}
    for index, cohort in enumerate(platform.cohorts):
        path = f"spec.cohorts[{index}].parentName"
        if cohort.parent:
            yield from _unknown(path, cohort.parent, "cohort", names)
        above, steps = cohort.parent, 0
        while above and above != cohort.name and steps < len(names):
            above, steps = parents.get(above, ""), steps + 1
        if above == cohort.name:
            yield FieldError(path, f"{cohort.name} is above itself", "make one of these cohorts the root")
    if not names:
        return
    for team in platform.teams:
        if team.cohort:
            yield from _unknown(f"{team.path}.cohortName", team.cohort, "cohort", names)
    for queue in platform.queues:
        if queue.cohort and queue.cohort not in {team.cohort for team in platform.teams}:
            yield from _unknown(f"{queue.path}.cohortName", queue.cohort, "cohort", names)


def _priority_faults(platform: PlatformModel, spec: Part) -> Iterator[FieldError]:
    defaults = [index for index, each in enumerate(platform.priorities) if each.is_default]
    for index in defaults[1:]:
        first = platform.priorities[defaults[0]].name
        yield FieldError(f"spec.priorities[{index}].default", f"{first} is the default already", "keep one of them")
    for index, row in enumerate(spec.get("priorities") or ()):
        if row["name"].startswith("system-"):
            yield FieldError(f"spec.priorities[{index}].name", "names with system- are Kubernetes's own", "rename it")


def _team_names(platform: PlatformModel) -> Iterator[FieldError]:
    """Check teams' namespaces and members: destroying a platform deletes its teams' namespaces."""
    kept = _KEPT_NAMESPACES | ({MONITORING} if platform.monitoring.stack is not None else frozenset())
    for team in platform.teams:
        if team.namespace in kept or team.namespace.startswith(_OF_KUBERNETES):
            problem = f"{team.namespace} is a namespace of Kubernetes or of the engine or its monitoring, and no team's"
            yield FieldError(f"{team.path}.namespace", problem, "give the team another namespace")
        for field, people in (("members", team.members), ("admins", team.admins)):
            for name in (*people.groups, *people.users):
                if name in _ALL_SUBJECTS:
                    problem = f"{name} includes all users, and {team.name} would not be a separate tenant"
                    yield FieldError(f"{team.path}.{field}", problem, "name the groups of the team")


def _engine_faults(platform: PlatformModel) -> Iterator[FieldError]:
    """Check the versions and the images."""
    for field, version in (("kueue", platform.kueue_version), ("jobSet", platform.job_set_version)):
        if version and not _RELEASE.fullmatch(version):
            problem = f"{shown(version)} is no release"
            yield FieldError(f"spec.versions.{field}", problem, "write it as v0.19.2")
    yield from configuration_faults(platform)
    for field, image in _images(platform):
        if any(letter.isspace() for letter in image):
            yield FieldError(field, f"{shown(image)} is no image", "write it as REGISTRY/NAME:TAG")


def _images(platform: PlatformModel) -> Iterator[tuple[str, str]]:
    """Yield the images that the file may name, with their fields."""
    yield "spec.operator.image", platform.operator.image
    stack = platform.monitoring.stack
    if stack is not None:
        yield "spec.monitoring.stack.prometheusImage", stack.prometheus_image
        yield "spec.monitoring.stack.grafanaImage", stack.grafana_image
        yield "spec.monitoring.stack.kubeStateMetricsImage", stack.kube_state_metrics_image


def _check_faults(spec: Part) -> Iterator[FieldError]:
    for index, row in enumerate(spec.get("admissionChecks") or ()):
        if "provisioning" not in row and "controllerName" not in row:
            problem = "no controller handles this check"
            remedy = "write provisioning for a check of capacity, or the controllerName of your controller"
            yield FieldError(f"spec.admissionChecks[{index}]", problem, remedy)
        if "provisioning" in row and "parameters" in row:
            problem = "provisioning already defines the parameters"
            yield FieldError(f"spec.admissionChecks[{index}].parameters", problem, "keep one of them")


def _budget_faults(platform: PlatformModel) -> Iterator[FieldError]:
    for team in platform.teams:
        if team.budget is not None and platform.engine is PlatformEngine.KUEUE:
            remedy = "leave it out, or choose engine: batchyard"
            yield FieldError(f"{team.path}.budget", "Kueue does not enforce budgets", remedy)
