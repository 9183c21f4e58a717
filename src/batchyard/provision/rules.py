"""Validation rules between the fields of a platform.yaml: references, uniqueness, names, and cloud constraints.

Errors of the rendered objects are found by `manifests.faults`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import find_nearest_name, format_value
from batchyard.provision import model
from batchyard.provision.engine import ENGINE_NAMESPACES, configuration_errors
from batchyard.provision.google import google_errors
from batchyard.provision.manifests.stack import NAMESPACE as MONITORING

_RELEASE_VERSION_PATTERN: Final = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
#: Subjects that stand for all users or all pods.
_ALL_SUBJECTS: Final = frozenset(
    {"system:authenticated", "system:unauthenticated", "system:anonymous", "system:serviceaccounts"}
)
#: Namespaces that no platform deletes: those of Kubernetes and of the engines.
_RESERVED_NAMESPACES: Final = frozenset({*ENGINE_NAMESPACES.values(), "jobset-system"})
_KUBERNETES_PREFIX: Final = "kube-"
_SECTIONS_WITH_QUOTAS: Final = ("queueClasses", "queues", "cohorts")
#: Resource names without a domain. Kueue accepts others of this form too, for example custom counts.
_CORE_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage", "pods")


def platform_errors(platform: model.PlatformModel, spec: model.Part) -> Iterator[FieldError]:
    """Yield the errors of the rules that a platform violates; the structure of its `spec` must be valid."""
    yield from _flavor_errors(platform)
    yield from _reference_errors(platform, spec)
    yield from _misspelled_resource_errors(spec)
    for queue in platform.queues:
        yield from _queue_errors(queue, platform)
    yield from _duplicate_errors(platform)
    yield from _cohort_errors(platform)
    yield from _priority_errors(platform, spec)
    yield from _team_errors(platform)
    yield from _engine_errors(platform)
    yield from _admission_check_errors(spec)
    yield from _budget_errors(platform)
    if platform.google is not None:
        yield from google_errors(platform, platform.google)
    if platform.monitoring.collector is model.MetricsCollector.POD_MONITORING and platform.google is None:
        remedy = "use ServiceMonitor (needs the Prometheus Operator) or None"
        yield FieldError("spec.monitoring.collector", "PodMonitoring needs GKE, but spec.google is not set", remedy)


def _report_unknown(path: str, name: str, kind_of_object: str, known_names: Iterable[str]) -> Iterator[FieldError]:
    names = list(known_names)
    if name not in names:
        nearest = find_nearest_name(name, names)
        remedy = f"did you mean {nearest}?" if nearest else f"defined in this file: {', '.join(names) or 'none'}"
        yield FieldError(path, f"this file defines no {kind_of_object} {format_value(name)}", remedy)


def _flavor_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    pool_names = [row["name"] for row in platform.node_pools]
    topology_names = [each.name for each in platform.topologies]
    for index, flavor in enumerate(platform.flavors):
        path = f"spec.flavors[{index}]"
        for number, pool in enumerate(flavor.pools):
            yield from _report_unknown(f"{path}.pools[{number}]", pool, "node pool", pool_names)
        if flavor.topology:
            yield from _report_unknown(f"{path}.topologyName", flavor.topology, "topology", topology_names)


def _reference_errors(platform: model.PlatformModel, spec: model.Part) -> Iterator[FieldError]:
    class_names = [row["name"] for row in spec.get("queueClasses") or ()]
    for index, row in enumerate(spec.get("queueClasses") or ()):
        flavor_rows = row["flavors"]
        names = [each["name"] for each in flavor_rows]
        yield from _flavor_name_errors(f"spec.queueClasses[{index}]", names, platform.flavors)
    for index, team in enumerate(spec["teams"]):
        for number, row in enumerate(team.get("queues") or ()):
            path = f"spec.teams[{index}].queues[{number}]"
            yield from _report_unknown(f"{path}.class", row["class"], "queue class", class_names)
            yield from _flavor_name_errors(path, [each["name"] for each in row.get("flavors") or ()], platform.flavors)
    for index, row in enumerate(spec.get("queues") or ()):
        path = f"spec.queues[{index}]"
        yield from _flavor_name_errors(path, [each["name"] for each in row["flavors"]], platform.flavors)
        for number, name in enumerate(row.get("teams") or ()):
            yield from _report_unknown(f"{path}.teams[{number}]", name, "team", [team.name for team in platform.teams])
    for index, row in enumerate(spec.get("cohorts") or ()):
        names = [each["name"] for each in row.get("flavors") or ()]
        yield from _flavor_name_errors(f"spec.cohorts[{index}]", names, platform.flavors)


def _flavor_name_errors(
    path: str, names: Sequence[str], flavors: Sequence[model.PlatformFlavor]
) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        yield from _report_unknown(f"{path}.flavors[{index}].name", name, "flavor", [flavor.name for flavor in flavors])


def _misspelled_resource_errors(spec: model.Part) -> Iterator[FieldError]:
    """Report resource names that are probably misspelled; others are valid, because Kueue accepts any resource name."""
    sections = [
        (f"spec.{section}[{index}]", row)
        for section in _SECTIONS_WITH_QUOTAS
        for index, row in enumerate(spec.get(section) or ())
    ]
    for index, team in enumerate(spec["teams"]):
        sections += [(f"spec.teams[{index}].queues[{i}]", row) for i, row in enumerate(team.get("queues") or ())]
    for path, row in sections:
        for number, flavor in enumerate(row.get("flavors") or ()):
            for name in flavor.get("resources") or ():
                nearest = None if "/" in name or name in _CORE_RESOURCES else find_nearest_name(name, _CORE_RESOURCES)
                if nearest:
                    remedy = f"did you mean {nearest}? Device resources have a domain, such as nvidia.com/gpu"
                    field_path = f"{path}.flavors[{number}].resources[{name}]"
                    yield FieldError(field_path, f"Kubernetes has no resource {format_value(name)}", remedy)


def _queue_errors(queue: model.Queue, platform: model.PlatformModel) -> Iterator[FieldError]:
    check_names = [check.name for check in platform.admission_checks]
    for index, row in enumerate(queue.admission_checks):
        path = f"{queue.path}.admissionChecks[{index}].name"
        yield from _report_unknown(path, row["name"], "admission check", check_names)
    yield from _resource_group_errors(queue)


def _resource_group_errors(queue: model.Queue) -> Iterator[FieldError]:
    first_by_resource: dict[str, tuple[str, frozenset[str]]] = {}
    for index, flavor in enumerate(queue.flavors):
        resources = frozenset(flavor.resources)
        for resource in flavor.resources:
            first_flavor, first_resources = first_by_resource.setdefault(resource, (flavor.name, resources))
            if first_resources != resources:
                extra_names = ", ".join(sorted(resources ^ first_resources))
                yield FieldError(
                    f"{queue.path}.flavors[{index}].resources",
                    f"{flavor.name} and {first_flavor} have quota for {resource}, but not both for {extra_names}",
                    "list the same resources in all flavors of a group",
                )
                break


def _duplicate_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    queue_names: set[str] = set()
    local_queue_keys: set[tuple[str, str]] = set()
    for queue in platform.queues:
        if queue.name in queue_names:
            problem = f"another ClusterQueue is also named {format_value(queue.name)}"
            yield FieldError(queue.path, problem, "use another name")
        queue_names.add(queue.name)
        for local_queue in queue.local_queues:
            key = local_queue.namespace, local_queue.name
            if key in local_queue_keys:
                problem = f"another LocalQueue in namespace {key[0]} is also named {format_value(key[1])}"
                yield FieldError(queue.path, problem, "set another localQueue for one of them")
            local_queue_keys.add(key)
    team_by_namespace: dict[str, str] = {}
    for team in platform.teams:
        owning_team = team_by_namespace.setdefault(team.namespace, team.name)
        if owning_team != team.name:
            problem = f"team {owning_team} already has the namespace {team.namespace}"
            yield FieldError(f"{team.path}.namespace", problem, "set a different namespace for each team")


def _cohort_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    """Yield an error for each cohort that is named but not listed, if any are listed, and for cycles of parents."""
    names = [cohort.name for cohort in platform.cohorts]
    parent_by_cohort = {cohort.name: cohort.parent for cohort in platform.cohorts}
    for index, cohort in enumerate(platform.cohorts):
        path = f"spec.cohorts[{index}].parentName"
        if cohort.parent:
            yield from _report_unknown(path, cohort.parent, "cohort", names)
        ancestor, ancestor_count = cohort.parent, 0
        while ancestor and ancestor != cohort.name and ancestor_count < len(names):
            ancestor, ancestor_count = parent_by_cohort.get(ancestor, ""), ancestor_count + 1
        if ancestor == cohort.name:
            problem = f"cohort {cohort.name} is its own ancestor"
            yield FieldError(path, problem, "remove parentName from one cohort of this cycle")
    if not names:
        return
    for team in platform.teams:
        if team.cohort:
            yield from _report_unknown(f"{team.path}.cohortName", team.cohort, "cohort", names)
    for queue in platform.queues:
        if queue.cohort and queue.cohort not in {team.cohort for team in platform.teams}:
            yield from _report_unknown(f"{queue.path}.cohortName", queue.cohort, "cohort", names)


def _priority_errors(platform: model.PlatformModel, spec: model.Part) -> Iterator[FieldError]:
    default_indexes = [index for index, each in enumerate(platform.priorities) if each.is_default]
    for index in default_indexes[1:]:
        first_default = platform.priorities[default_indexes[0]].name
        path = f"spec.priorities[{index}].default"
        yield FieldError(
            path, f"priority {first_default} is already the default", "set default: true for one priority only"
        )
    for index, row in enumerate(spec.get("priorities") or ()):
        if row["name"].startswith("system-"):
            problem = f"{row['name']} has the prefix system-, which Kubernetes reserves"
            yield FieldError(f"spec.priorities[{index}].name", problem, "use another name")


def _team_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    """Report teams with a reserved namespace, and members or admins that include all users.

    Reserved namespaces are errors, because `destroy` would delete them.
    """
    reserved_names = _RESERVED_NAMESPACES | ({MONITORING} if platform.monitoring.stack is not None else frozenset())
    for team in platform.teams:
        if team.namespace in reserved_names or team.namespace.startswith(_KUBERNETES_PREFIX):
            problem = f"the namespace {team.namespace} is reserved for Kubernetes, the engine or its monitoring"
            yield FieldError(f"{team.path}.namespace", problem, "set another namespace for the team")
        for field, people in (("members", team.members), ("admins", team.admins)):
            for name in (*people.groups, *people.users):
                if name in _ALL_SUBJECTS:
                    problem = f"{name} includes all users, so the team {team.name} would not be isolated"
                    yield FieldError(f"{team.path}.{field}", problem, "list the groups of the team")


def _engine_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    for field, version in (("kueue", platform.kueue_version), ("jobSet", platform.job_set_version)):
        if version and not _RELEASE_VERSION_PATTERN.fullmatch(version):
            problem = f"{format_value(version)} is not a release version"
            yield FieldError(f"spec.versions.{field}", problem, "use the form v0.19.2")
    yield from configuration_errors(platform)
    for field, image in _configured_images(platform):
        if any(letter.isspace() for letter in image):
            problem = f"{format_value(image)} is not an image reference"
            yield FieldError(field, problem, "use the form REGISTRY/NAME:TAG")


def _configured_images(platform: model.PlatformModel) -> Iterator[tuple[str, str]]:
    yield "spec.operator.image", platform.operator.image
    stack = platform.monitoring.stack
    if stack is not None:
        yield "spec.monitoring.stack.prometheusImage", stack.prometheus_image
        yield "spec.monitoring.stack.grafanaImage", stack.grafana_image
        yield "spec.monitoring.stack.kubeStateMetricsImage", stack.kube_state_metrics_image


def _admission_check_errors(spec: model.Part) -> Iterator[FieldError]:
    for index, row in enumerate(spec.get("admissionChecks") or ()):
        if "provisioning" not in row and "controllerName" not in row:
            problem = f"the admission check {row['name']} names no controller"
            remedy = "set provisioning for a capacity check, or the controllerName of your controller"
            yield FieldError(f"spec.admissionChecks[{index}]", problem, remedy)
        if "provisioning" in row and "parameters" in row:
            problem = "provisioning and parameters are both set, but provisioning defines the parameters"
            yield FieldError(f"spec.admissionChecks[{index}].parameters", problem, "remove one of them")


def _budget_errors(platform: model.PlatformModel) -> Iterator[FieldError]:
    for team in platform.teams:
        if team.budget is not None and platform.engine is model.PlatformEngine.KUEUE:
            remedy = "remove the budget, or use engine: batchyard"
            yield FieldError(f"{team.path}.budget", "Kueue does not enforce budgets", remedy)
