"""The description of a kind of job (JobKind): where its fields are, and CEL expressions that read its state.

Expressions read the variable `job`, and in pod sets also `item`: the object of the pod set's `path`. Fields that the
queue controller changes (`suspend`, templates) have paths instead: names of fields, separated by dots.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from batchyard.api.errors import FieldError

_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*")
#: The most pod sets of one Workload. Source: apis/kueue/v1beta2/workload_types.go of Kueue.
POD_SETS_MAX: Final = 18
_EXPRESSION_LENGTH_MAX: Final = 4096


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a description; unknown fields are errors."""


class ManagedByField(_Part, frozen=True, kw_only=True):
    """The field that names the controller of a job, and the name of its usual controller."""

    path: str
    controller: str


class TopologyIndexes(_Part, frozen=True, kw_only=True):
    """The labels of pods that tell their index in the pod set, and in a subgroup; CEL for the number of subgroups."""

    pod_index_label: str | None = None
    sub_group_index_label: str | None = None
    sub_group_count: str | None = None


class DescribedPodSet(_Part, frozen=True, kw_only=True):
    """One pod set, or one for each item of a list at `path`. A job without a value at `path` lacks the pod set."""

    #: The name, or with `name_expression` CEL that computes it.
    name: str = ""
    name_expression: str = ""
    path: str
    #: The path of the pod template in the object at `path`.
    template: str = "template"
    #: CEL: the pod template of a job without one. A start writes it to the job.
    default_template: str = ""
    #: CEL: the number of pods.
    count: str = "1"
    #: CEL: whether the job has this pod set.
    when: str = "true"
    #: CEL: containers that the Workload counts in addition to those of the template.
    added_containers: str = ""
    #: CEL: the least requests of the first container that the Workload counts, such as `{'cpu': '200m'}`.
    minimum_requests: str = ""
    topology: TopologyIndexes = TopologyIndexes()


class Outcome(_Part, frozen=True, kw_only=True):
    """CEL: when a job has ended in this way, and the message of its end."""

    when: str
    message: str = "''"


class JobKindSpec(_Part, frozen=True, kw_only=True):
    """The description of one kind of job. Expressions without a comment tell whether a statement is true."""

    #: The name of the kind in `integrations.frameworks` of Kueue's Configuration.
    framework: str
    group: str
    version: str
    kind: str
    resource: str
    #: The path of the field that stops the job.
    suspend: str
    pod_sets: tuple[DescribedPodSet, ...]
    active: str
    ready: str
    succeeded: Outcome | None = None
    failed: Outcome | None = None
    managed_by: ManagedByField | None = None
    #: CEL: a list of names of PriorityClasses; the first that is not empty counts.
    priority_class: str = ""
    #: CEL: a list of objects with `name` and `count`: pods that will not run again.
    reclaimable: str = ""
    #: The job is not queued, although it names a queue.
    ignored: str = ""
    #: The job keeps no quota and waits, although it has not ended.
    on_hold: str = ""

    @property
    def group_kind(self) -> str:
        """The name of the kind in the store, such as `PyTorchJob.kubeflow.org`."""
        return f"{self.kind}.{self.group}"


class InvalidJobKind(Exception):  # noqa: N818 - named like the reasons of Kubernetes
    """Raised if a description of a kind of job is invalid."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.error = FieldError(path, message)


def parse_job_kind(manifest: Mapping[str, Any]) -> JobKindSpec:
    """Return the description in a JobKind manifest. Raises InvalidJobKind with the path of the first invalid field."""
    try:
        spec = msgspec.convert(manifest.get("spec"), JobKindSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidJobKind(f"spec{path.rstrip('`')}", message) from error
    _check_paths(spec)
    _check_pod_sets(spec)
    expected_name = f"{spec.resource}.{spec.group}"
    if manifest["metadata"]["name"] != expected_name:
        raise InvalidJobKind("metadata.name", f"must be {expected_name!r}, the resource and the group of the kind")
    return spec


def _check_paths(spec: JobKindSpec) -> None:
    paths = {"spec.suspend": spec.suspend}
    if spec.managed_by is not None:
        paths["spec.managedBy.path"] = spec.managed_by.path
    for position, pod_set in enumerate(spec.pod_sets):
        paths[f"spec.podSets[{position}].path"] = pod_set.path
        paths[f"spec.podSets[{position}].template"] = pod_set.template
    for field, path in paths.items():
        if not _PATH.fullmatch(path):
            raise InvalidJobKind(field, f"{path!r} is not a path of fields such as 'spec.suspend'")


def _check_pod_sets(spec: JobKindSpec) -> None:
    if not 1 <= len(spec.pod_sets) <= POD_SETS_MAX:
        raise InvalidJobKind("spec.podSets", f"must have 1 to {POD_SETS_MAX} items")
    for position, pod_set in enumerate(spec.pod_sets):
        field = f"spec.podSets[{position}]"
        if bool(pod_set.name) == bool(pod_set.name_expression):
            raise InvalidJobKind(field, "must have either name or nameExpression")


def expressions_of(spec: JobKindSpec) -> dict[str, str]:
    """Return the expressions of a description by the path of their field."""
    fields = {f"spec.{name}": getattr(spec, name) for name in ("active", "ready", "reclaimable", "ignored")}
    fields |= {"spec.onHold": spec.on_hold, "spec.priorityClass": spec.priority_class}
    for name in ("succeeded", "failed"):
        outcome = getattr(spec, name)
        if outcome is not None:
            fields |= {f"spec.{name}.when": outcome.when, f"spec.{name}.message": outcome.message}
    for position, pod_set in enumerate(spec.pod_sets):
        prefix = f"spec.podSets[{position}]"
        fields |= {
            f"{prefix}.nameExpression": pod_set.name_expression,
            f"{prefix}.defaultTemplate": pod_set.default_template,
            f"{prefix}.count": pod_set.count,
            f"{prefix}.when": pod_set.when,
            f"{prefix}.addedContainers": pod_set.added_containers,
            f"{prefix}.minimumRequests": pod_set.minimum_requests,
            f"{prefix}.topology.subGroupCount": pod_set.topology.sub_group_count or "",
        }
    return {field: text for field, text in fields.items() if text}


def check_expression_length(field: str, text: str) -> None:
    """Raise InvalidJobKind if an expression is too long to compile."""
    if len(text) > _EXPRESSION_LENGTH_MAX:
        raise InvalidJobKind(field, f"must have at most {_EXPRESSION_LENGTH_MAX} characters")
