"""The description of a kind of job (JobKind): where its fields are, and CEL expressions that read its state.

Expressions read the variable `job`, and in pod sets also `item`: the object of the pod set's `path`. Fields that the
queue controller changes (`suspend`, templates) have paths instead: names of fields, separated by dots.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from batchyard.api.errors import FieldError
from batchyard.api.scheme import ServedKind, custom_job_kind
from batchyard.api.yaml_documents import read_documents

_FILES: Final = ("kubeflow.yaml", "ray.yaml", "trainer.yaml", "appwrapper.yaml", "spark.yaml")
#: The most pod sets of one Workload. Source: apis/kueue/v1beta2/workload_types.go of Kueue.
POD_SETS_MAX: Final = 18
#: The reasons of field errors, as in the details of an API status.
ValidationReason: TypeAlias = Literal[
    "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden", "FieldValueTooMany"
]
#: The expression that is true for every job.
ALWAYS: Final = "true"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a description; unknown fields are errors."""


class TopologyIndexes(_Part, frozen=True, kw_only=True):
    """The labels of pods with their index in the pod set, and in a subgroup; CEL for the number of subgroups."""

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
    when: str = ALWAYS
    #: CEL: containers that the Workload counts in addition to those of the template.
    added_containers: str = ""
    #: CEL: the least requests of the first container that the Workload counts, such as `{'cpu': '200m'}`.
    minimum_requests: str = ""
    topology: TopologyIndexes = TopologyIndexes()

    def expressions(self) -> dict[str, str]:
        """Return the expressions of the pod set by the path of their field; '' for those that are not set."""
        return {
            "nameExpression": self.name_expression,
            "defaultTemplate": self.default_template,
            "count": self.count,
            "when": self.when,
            "addedContainers": self.added_containers,
            "minimumRequests": self.minimum_requests,
            "topology.subGroupCount": self.topology.sub_group_count or "",
        }


class Outcome(_Part, frozen=True, kw_only=True):
    """CEL: when a job has ended in this way, and the message of its end."""

    when: str
    message: str = "''"


class JobValidation(_Part, frozen=True, kw_only=True):
    """A rule that queued jobs must satisfy, with the field names of x-kubernetes-validations."""

    #: CEL: whether the job is valid.
    rule: str
    #: The path of the field in the error; with `items`, that of a field of the item.
    field_path: str
    message: str
    reason: ValidationReason = "FieldValueInvalid"
    #: CEL: the value in the error, for the reasons FieldValueInvalid and FieldValueTooMany.
    value: str = ""
    #: The path of a list: the rule applies to each of its items, the variable `item`.
    items: str = ""


class SimulatedStatus(_Part, frozen=True, kw_only=True):
    """CEL: the status of a job in a simulation, in each state of its pods. A suspended job has the status `{}`."""

    ready: str
    starting: str = "{}"
    succeeded: str = ""
    failed: str = ""


class JobKindSpec(_Part, frozen=True, kw_only=True):
    """The description of one kind of job. Expressions without a comment return booleans."""

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
    #: CEL: a list of names of PriorityClasses; the first that is not empty counts. Without it, the templates name it.
    priority_class: str = ""
    #: CEL: a list of objects with `name` and `count`: pods that will not run again.
    reclaimable: str = ""
    #: The job is not queued, although it names a queue.
    ignored: str = ""
    #: The job keeps no quota and waits, although it has not ended.
    on_hold: str = ""
    validations: tuple[JobValidation, ...] = ()
    simulated_status: SimulatedStatus | None = None

    @property
    def group_kind(self) -> str:
        """The name of the kind in the store, such as `PyTorchJob.kubeflow.org`."""
        return f"{self.kind}.{self.group}"

    def expressions(self) -> dict[str, str]:
        """Return the expressions of the description by the path of their field."""
        fields = {f"spec.{name}": getattr(self, name) for name in ("active", "ready", "reclaimable", "ignored")}
        fields |= {"spec.onHold": self.on_hold, "spec.priorityClass": self.priority_class}
        for name in ("succeeded", "failed"):
            outcome = getattr(self, name)
            if outcome is not None:
                fields |= {f"spec.{name}.when": outcome.when, f"spec.{name}.message": outcome.message}
        for position, pod_set in enumerate(self.pod_sets):
            fields |= {f"spec.podSets[{position}].{field}": text for field, text in pod_set.expressions().items()}
        for position, validation in enumerate(self.validations):
            fields[f"spec.validations[{position}].rule"] = validation.rule
            fields[f"spec.validations[{position}].value"] = validation.value
        if self.simulated_status is not None:
            status = self.simulated_status
            for name in ("starting", "ready", "succeeded", "failed"):
                fields[f"spec.simulatedStatus.{name}"] = getattr(status, name)
        return {field: text for field, text in fields.items() if text}


class InvalidJobKind(Exception):  # noqa: N818 - named like the reasons of Kubernetes
    """Raised if a description of a kind of job is invalid."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.error = FieldError(path, message, "correct the field of the JobKind")


def parse_job_kind(manifest: Mapping[str, Any]) -> JobKindSpec:
    """Return the description in a JobKind manifest. Raises InvalidJobKind with the path of the first invalid field."""
    try:
        return msgspec.convert(manifest.get("spec"), JobKindSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidJobKind(f"spec{path.rstrip('`')}", message) from error


@cache
def built_in_descriptions() -> Mapping[str, JobKindSpec]:
    """Return the descriptions in batchyard's files, by the kind of their jobs."""
    specs = [parse_job_kind(manifest) for manifest in built_in_manifests()]
    return {spec.group_kind: spec for spec in specs}


def built_in_manifests() -> Iterator[Mapping[str, Any]]:
    """Yield the JobKind manifests in batchyard's files."""
    for name in _FILES:
        text = (pkgutil.get_data(__package__, f"built_in/{name}") or b"").decode()
        yield from (document.value for document in read_documents(text))


def served_kind(spec: JobKindSpec) -> ServedKind:
    """Return the kind of the described jobs, with the names and the version of the description."""
    return custom_job_kind(spec.kind, spec.group, spec.version, spec.resource)
