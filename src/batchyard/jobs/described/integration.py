"""The Kueue integration of a kind of job that a JobKind describes.

The behaviour is that of Kueue's integrations of such kinds, pkg/controller/jobs/{kubeflow,mpijob,ray*} of Kueue.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.meta import Obj, parse_quantity, with_path
from batchyard.apiserver.cel_library import evaluate_program, new_environment
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.jobs.described import description
from batchyard.jobs.described.description import DescribedPodSet, InvalidJobKind, JobKindSpec


class PodSetPlace(NamedTuple):
    """A pod set of one job: its description, and where the job has its template."""

    description: DescribedPodSet
    #: The object at the description's path, or the item of the list there.
    item: Mapping[str, Any]
    #: The position in the list at the description's path; None if an object is there.
    position: int | None


class DescribedJobIntegration:
    """Kueue integration of the jobs that a description describes; it compiles the expressions of the description."""

    def __init__(self, spec: JobKindSpec) -> None:
        """Compile the expressions. Raises InvalidJobKind with the field of the first expression that is invalid."""
        self.spec = spec
        self.kind = spec.group_kind
        self.suspend_path: Sequence[str] = spec.suspend.split(".")
        environment = new_environment("job", "item")
        self._programs = {
            text: _compile_expression(environment, field, text)
            for field, text in description.expressions_of(spec).items()
        }

    def is_suspended(self, job: Obj) -> bool:
        """Return whether the field of the description's `suspend` is true."""
        return workloads.is_set(job, self.suspend_path)

    def is_active(self, job: Obj) -> bool:
        """Return whether the job has active pods."""
        return self._evaluate(self.spec.active, job) is True

    def pods_ready(self, job: Obj) -> bool:
        """Return whether all pods of the job are ready."""
        return self._evaluate(self.spec.ready, job) is True

    def completion(self, job: Obj) -> workloads.JobCompletion | None:
        """Return success or failure with its message; None if the job has not ended."""
        for outcome, succeeded in ((self.spec.succeeded, True), (self.spec.failed, False)):
            if outcome is not None and self._evaluate(outcome.when, job) is True:
                return workloads.JobCompletion(succeeded, str(self._evaluate(outcome.message, job)))
        return None

    def templates(self, job: Obj) -> Sequence[Mapping[str, Any]]:
        """Return the pod templates in the job."""
        return [self._template_of(job, place) for place in self._places(job)]

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the job's Workload, in the order of the description."""
        return [self._pod_set(job, place) for place in self._places(job)]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return the numbers of pods that will not run again, by pod set."""
        if not self.spec.reclaimable:
            return []
        counts = self._evaluate(self.spec.reclaimable, job) or ()
        return [{"name": each["name"], "count": int(each["count"])} for each in counts if each["count"] > 0]

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

    def priority_class(self, job: Obj) -> str:
        """Return the name of the PriorityClass that the job names outside of its templates; '' if it names none."""
        names = self._evaluate(self.spec.priority_class, job) if self.spec.priority_class else ()
        return next((name for name in names if name), "")

    def is_ignored(self, job: Obj) -> bool:
        """Return whether the description excludes this job from queues."""
        return bool(self.spec.ignored) and self._evaluate(self.spec.ignored, job) is True

    def is_on_hold(self, job: Obj) -> bool:
        """Return whether the job must release its quota and wait, although it has not ended."""
        return bool(self.spec.on_hold) and self._evaluate(self.spec.on_hold, job) is True

    def _places(self, job: Obj) -> list[PodSetPlace]:
        places: list[PodSetPlace] = []
        for each in self.spec.pod_sets:
            if each.when != "true" and self._evaluate(each.when, job) is not True:
                continue
            value = workloads.value_at(job, each.path.split("."))
            if isinstance(value, Mapping):
                places.append(PodSetPlace(each, value, None))
            elif isinstance(value, list):
                places += [PodSetPlace(each, item, position) for position, item in enumerate(value)]
        return places

    def _pod_set(self, job: Obj, place: PodSetPlace) -> dict[str, Any]:
        each, item = place.description, place.item
        template = self._template_of(job, place)
        if each.minimum_requests:
            template = _with_minimum_requests(template, self._evaluate(each.minimum_requests, job, item))
        if each.added_containers:
            containers = [*_containers_of(template), *self._evaluate(each.added_containers, job, item)]
            template = with_path(template, ("spec", "containers"), containers)
        return {
            "name": each.name or str(self._evaluate(each.name_expression, job, item)),
            "template": workloads.without_duplicate_env(template),
            "count": int(self._evaluate(each.count, job, item)),
            "topologyRequest": workloads.topology_request(template, **self._topology_indexes(job, place)),
        }

    def _template_of(self, job: Obj, place: PodSetPlace) -> Mapping[str, Any]:
        template = workloads.value_at(place.item, place.description.template.split("."))
        if template is None and place.description.default_template:
            template = self._evaluate(place.description.default_template, job, place.item)
        return template if isinstance(template, Mapping) else {}

    def _topology_indexes(self, job: Obj, place: PodSetPlace) -> dict[str, Any]:
        topology = place.description.topology
        indexes: dict[str, Any] = {}
        if topology.pod_index_label:
            indexes["podIndexLabel"] = topology.pod_index_label
        if topology.sub_group_index_label:
            indexes["subGroupIndexLabel"] = topology.sub_group_index_label
        if topology.sub_group_count:
            indexes["subGroupCount"] = int(self._evaluate(topology.sub_group_count, job, place.item))
        return indexes

    def _evaluate(self, text: str, job: Obj, item: Mapping[str, Any] | None = None) -> Any:
        """Return the value of an expression. Raises InvalidPodSetInfo if the expression fails for this job."""
        value, error = evaluate_program(self._programs[text], {"job": job, "item": item or {}})
        if error:
            kind_name = f"{self.spec.resource}.{self.spec.group}"
            raise workloads.InvalidPodSetInfo(f"expression {text!r} of JobKind {kind_name!r} failed: {error}")
        return value


def _compile_expression(environment: Any, field: str, text: str) -> Any:
    description.check_expression_length(field, text)
    try:
        return environment.compile(text)
    except RuntimeError as error:  # the only exception of the library
        raise InvalidJobKind(field, f"invalid CEL expression: {error}") from error


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
