"""The Kueue integration of a kind of job that a JobKind describes.

The behaviour is that of Kueue's integrations of such kinds, pkg/controller/jobs/{kubeflow,mpijob,ray*} of Kueue.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple, TypeVar

from batchyard.admission_plugins.built_in import FindObject
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, parse_quantity, with_path
from batchyard.api.schema import validate
from batchyard.api.validation import rules, topology
from batchyard.apiserver.cel_library import evaluate_program, new_environment
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.jobs.described import description
from batchyard.jobs.described.description import DescribedPodSet, InvalidJobKind, JobKindSpec, JobValidation
from batchyard.scheduling.workload.adjustments import first_priority_class

_COUNT_MAX: Final = 2**31 - 1
_TYPE_NAMES: Final[Mapping[type, str]] = {bool: "truth value", str: "string", list: "list", dict: "map"}
_ValueT = TypeVar("_ValueT")


class ExpressionFailed(Exception):  # noqa: N818 - named for the event
    """Raised if an expression of a description fails for a job, or returns a value of another type than expected."""


class PodSetPlace(NamedTuple):
    """A pod set of one job: its description, and where the job has its template."""

    description: DescribedPodSet
    #: The path of the description in its JobKind, such as `spec.podSets[0]`.
    field: str
    #: The object at the description's path, or the item of the list there.
    item: Mapping[str, Any]
    #: The position in the list at the description's path; None if an object is there.
    position: int | None


class DescribedJobIntegration:
    """Kueue integration of the jobs that a description describes; it compiles the expressions of the description.

    Subclasses compute by code the parts of a kind that expressions cannot describe.
    """

    #: The kinds of the objects to which jobs refer.
    referenced_kinds: Sequence[str] = ()
    #: Whether a start and a stop of a job can take several writes.
    starts_in_steps = False

    def __init__(self, spec: JobKindSpec) -> None:
        """Compile the expressions. Raises InvalidJobKind with the field of the first expression that is invalid."""
        self.spec = spec
        self.kind = spec.group_kind
        self.suspend_path: Sequence[str] = spec.suspend.split(".")
        #: Finds the objects to which jobs refer; `with_objects` sets it.
        self.find_object: FindObject = _find_nothing
        self._description_name = f"JobKind {spec.resource}.{spec.group}"
        environment = new_environment("job", "item")
        self._programs = {
            field: _compile_expression(environment, field, text) for field, text in spec.expressions().items()
        }

    def with_objects(self, find_object: FindObject) -> "DescribedJobIntegration":
        """Return an integration that finds the objects to which jobs refer."""
        if not self.referenced_kinds:
            return self
        integration = copy(self)
        integration.find_object = find_object
        return integration

    def prepared_job(self, job: Obj) -> Obj:
        """Return a new job with the fields that the queue controller needs."""
        return job

    def is_suspended(self, job: Obj) -> bool:
        """Return whether the field of the description's `suspend` is true."""
        return workloads.is_set(job, self.suspend_path)

    def is_active(self, job: Obj) -> bool:
        """Return whether the job has active pods."""
        return self._evaluate("spec.active", bool, job)

    def pods_ready(self, job: Obj) -> bool:
        """Return whether all pods of the job are ready."""
        return self._evaluate("spec.ready", bool, job)

    def completion(self, job: Obj) -> workloads.JobCompletion | None:
        """Return success or failure with its message; None if the job has not ended."""
        for outcome in ("succeeded", "failed"):
            field = f"spec.{outcome}"
            if f"{field}.when" in self._programs and self._evaluate(f"{field}.when", bool, job):
                message = self._evaluate(f"{field}.message", str, job)
                return workloads.JobCompletion(outcome == "succeeded", message)
        return None

    def pod_class(self, job: Obj) -> str:
        """Return the PriorityClass that the job names; '' if it names none, or if an expression fails.

        The expression `priorityClass` replaces the templates. Source: getCustomPriorityClassFuncFromJob in
        pkg/controller/jobframework/reconciler.go of Kueue.
        """
        try:
            if self.spec.priority_class:
                return next((str(name) for name in self._evaluate("spec.priorityClass", list, job) if name), "")
            return first_priority_class(self._template_of(job, place) for place in self._places(job))
        except ExpressionFailed:
            return ""

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the job's Workload, in the order of the description."""
        return [self._pod_set(job, place) for place in self._places(job)]

    def simulated_pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of a running job, from which simulations create pods."""
        return self.pod_sets(job)

    def template_paths(self, job: Obj) -> list[str]:
        """Return the path of the template of each pod set in the job."""
        paths: list[str] = []
        for place in self._places(job):
            index = "" if place.position is None else f"[{place.position}]"
            paths.append(f"{place.description.path}{index}.{place.description.template}")
        return paths

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return the numbers of pods that will not run again, by pod set."""
        if not self.spec.reclaimable:
            return []
        field = "spec.reclaimable"
        counts = self._evaluate(field, list, job)
        if not all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in counts):
            raise self._failure(field, "an item has no name")
        pod_counts = [{"name": each["name"], "count": self._count(field, each.get("count"))} for each in counts]
        return [each for each in pod_counts if each["count"]]

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended job with the fields of `injections` in its templates.

        Raises InvalidPodSetInfo if the fields conflict, or if there is not one injection for each pod set.
        """
        places = self._places(job)
        if len(injections) != len(places):
            raise workloads.InvalidPodSetInfo(
                f"invalid podset infos: expecting {len(places)} podset, got {len(injections)}"
            )
        started_job: Obj = with_path(job, self.suspend_path, False)
        for place, injection in zip(places, injections, strict=True):
            template = workloads.inject_pod_set_info(self._template_of(job, place), injection)
            started_job = _with_template(started_job, place, template)
        return started_job

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the write that suspends the job and restores its templates; None if already suspended.

        The templates are restored only if `pod_set_infos` has one item for each pod set.
        """
        if self.is_suspended(job):
            return None
        stopped_job: Obj = with_path(job, self.suspend_path, True)
        places = self._places(job)
        if len(pod_set_infos) == len(places):
            for place, info in zip(places, pod_set_infos, strict=True):
                template = workloads.restore_pod_set_info(self._template_of(job, place), info)
                stopped_job = _with_template(stopped_job, place, template)
        return Update(stopped_job)

    def simulated_status(self, state: str, job: Obj) -> Mapping[str, Any] | None:
        """Return the status of a job in a simulation; None if the description has none for the state of its pods.

        `state` is `starting`, `ready`, `succeeded` or `failed`.
        """
        field = f"spec.simulatedStatus.{state}"
        return self._evaluate(field, dict, job) if field in self._programs else None

    def is_ignored(self, job: Obj) -> bool:
        """Return whether the description excludes this job from queues."""
        return bool(self.spec.ignored) and self._evaluate("spec.ignored", bool, job)

    def is_on_hold(self, job: Obj) -> bool:
        """Return whether the job must release its quota and wait, although it has not ended."""
        return bool(self.spec.on_hold) and self._evaluate("spec.onHold", bool, job)

    def validation_errors(self, job: Obj) -> Iterator[FieldError]:
        """Yield the errors of the description's rules for queued jobs."""
        for index, validation in enumerate(self.spec.validations):
            field = f"spec.validations[{index}]"
            items = workloads.value_at(job, validation.items.split(".")) if validation.items else [None]
            for position, item in enumerate(items if isinstance(items, list) else ()):
                prefix = f"{validation.items}[{position}]." if validation.items else ""
                path = f"{prefix}{validation.field_path}"
                try:
                    if not self._evaluate(f"{field}.rule", bool, job, item):
                        value = self._value(f"{field}.value", job, item) if validation.value else None
                        yield _rule_error(validation, path, value)
                except ExpressionFailed as error:
                    remedy = "correct the job, or the expression in the JobKind"
                    yield rules.invalid_without_value(path, str(error), remedy)

    def topology_errors(self, job: Obj) -> Iterator[FieldError]:
        """Yield the errors of the topology annotations of the pod templates; none if an expression fails."""
        try:
            pod_sets, paths = self.pod_sets(job), self.template_paths(job)
        except ExpressionFailed:
            return
        topologies = [
            topology.PodSetTopology(annotations, f"{path}.metadata.annotations", pod_set["count"])
            for pod_set, path in zip(pod_sets, paths, strict=True)
            if (annotations := (pod_set["template"].get("metadata") or {}).get("annotations"))
        ]
        for each in topologies:
            yield from topology.topology_request_errors(each.annotations, each.path, each.count)
        yield from topology.pod_set_group_errors(topologies)

    def _places(self, job: Obj) -> list[PodSetPlace]:
        places: list[PodSetPlace] = []
        for index, each in enumerate(self.spec.pod_sets):
            field = f"spec.podSets[{index}]"
            if each.when != description.ALWAYS and not self._evaluate(f"{field}.when", bool, job):
                continue
            value = workloads.value_at(job, each.path.split("."))
            if isinstance(value, Mapping):
                places.append(PodSetPlace(each, field, value, None))
            elif isinstance(value, list):
                places += [PodSetPlace(each, field, item, position) for position, item in enumerate(value)]
        for place in places:
            if not isinstance(place.item, Mapping):
                path = f"{place.description.path}[{place.position}]"
                raise ExpressionFailed(f"{place.field}.path of {self._description_name}: {path} is not an object")
        if len(places) > description.POD_SETS_MAX:
            count_text = f"{len(places)} pod sets, and a Workload can have {description.POD_SETS_MAX}"
            raise ExpressionFailed(f"spec.podSets of {self._description_name}: the job has {count_text}")
        return places

    def _pod_set(self, job: Obj, place: PodSetPlace) -> dict[str, Any]:
        each, item = place.description, place.item
        template = self._template_of(job, place)
        if errors := validate("PodTemplateSpec", {**template, "spec": template.get("spec")}):
            field = f"{place.field}.template of {self._description_name}"
            raise ExpressionFailed(f"{field}: the pod template of the job is invalid: {errors[0]}")
        if each.minimum_requests:
            field = f"{place.field}.minimumRequests"
            minimum = self._evaluate(field, dict, job, item)
            try:
                template = _with_minimum_requests(template, minimum)
            except ValueError as error:
                raise self._failure(field, str(error)) from error
        if each.added_containers:
            added_containers = self._evaluate(f"{place.field}.addedContainers", list, job, item)
            containers = [*_containers_of(template), *added_containers]
            template = with_path(template, ("spec", "containers"), containers)
        count_field = f"{place.field}.count"
        return {
            "name": each.name or self._evaluate(f"{place.field}.nameExpression", str, job, item),
            "template": workloads.without_duplicate_env(template),
            "count": self._count(count_field, self._value(count_field, job, item)),
            "topologyRequest": workloads.topology_request(template, **self._topology_indexes(job, place)),
        }

    def _template_of(self, job: Obj, place: PodSetPlace) -> Mapping[str, Any]:
        template = workloads.value_at(place.item, place.description.template.split("."))
        if template is None and place.description.default_template:
            template = self._evaluate(f"{place.field}.defaultTemplate", dict, job, place.item)
        return template if isinstance(template, Mapping) else {}

    def _topology_indexes(self, job: Obj, place: PodSetPlace) -> dict[str, Any]:
        described = place.description.topology
        indexes: dict[str, Any] = {}
        if described.pod_index_label:
            indexes["podIndexLabel"] = described.pod_index_label
        if described.sub_group_index_label:
            indexes["subGroupIndexLabel"] = described.sub_group_index_label
        if described.sub_group_count:
            field = f"{place.field}.topology.subGroupCount"
            indexes["subGroupCount"] = self._count(field, self._value(field, job, place.item))
        return indexes

    def _value(self, field: str, job: Obj, item: Mapping[str, Any] | None = None) -> Any:
        """Return the value of the expression of a field. Raises ExpressionFailed if the expression fails."""
        value, error = evaluate_program(self._programs[field], {"job": job, "item": item or {}})
        if error:
            raise self._failure(field, error)
        return value

    def _evaluate(
        self, field: str, expected: type[_ValueT], job: Obj, item: Mapping[str, Any] | None = None
    ) -> _ValueT:
        value = self._value(field, job, item)
        if not isinstance(value, expected):
            raise self._failure(field, f"the value must be a {_TYPE_NAMES[expected]}, not {value!r:.100}")
        return value

    def _count(self, field: str, value: object) -> int:
        count = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _COUNT_MAX:
            raise self._failure(field, f"the count must be a whole number from 0 to {_COUNT_MAX}, not {value!r:.100}")
        return count

    def _failure(self, field: str, problem: str) -> ExpressionFailed:
        text = self.spec.expressions()[field]
        return ExpressionFailed(f"{field} of {self._description_name} failed: {problem}; the expression is {text}")


def _find_nothing(_key: Key) -> None:
    """Find no object, as in a check of a job without access to other objects."""


def _compile_expression(environment: Any, field: str, text: str) -> Any:
    try:
        return environment.compile(text)
    except RuntimeError as error:  # the only exception of the library
        problem = str(error).partition("<input>:")[2].partition("\n")[0] or str(error)
        raise InvalidJobKind(field, f"invalid CEL expression: {problem}") from error


def _rule_error(validation: JobValidation, path: str, value: Any) -> FieldError:
    message, remedy = validation.message, ""
    match validation.reason:
        case "FieldValueRequired":
            return rules.required(path, message, remedy)
        case "FieldValueForbidden":
            return rules.forbidden(path, message, remedy)
        case "FieldValueTooMany":
            return FieldError(path, f"Too many: {rules.format_json(value)}: {message}", remedy)
    if not validation.value:
        return rules.invalid_without_value(path, message, remedy)
    return rules.invalid(path, value, message, remedy)


def _containers_of(template: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (template.get("spec") or {}).get("containers") or ()


def _with_minimum_requests(template: Mapping[str, Any], minimum: Mapping[str, str]) -> Mapping[str, Any]:
    containers = _containers_of(template)
    if not minimum or not containers:
        return template
    requests = dict((containers[0].get("resources") or {}).get("requests") or {})
    for resource, quantity in minimum.items():
        if parse_quantity(str(requests.get(resource, "0"))) < parse_quantity(quantity):
            requests[resource] = quantity
    first_container = with_path(containers[0], ("resources", "requests"), requests)
    return with_path(template, ("spec", "containers"), [first_container, *containers[1:]])


def _with_template(job: Obj, place: PodSetPlace, template: Mapping[str, Any]) -> Obj:
    path, template_path = place.description.path.split("."), place.description.template.split(".")
    if place.position is None:
        return with_path(job, (*path, *template_path), template)
    items = list(workloads.value_at(job, path))
    items[place.position] = with_path(items[place.position], template_path, template)
    return with_path(job, path, items)
