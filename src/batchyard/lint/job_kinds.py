"""Lint rules on JobKinds and jobs of custom kinds, and the PriorityClass and pod sets of jobs of each kind."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, group_kind, label
from batchyard.interfaces.client import ObjectReader
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.lint.findings import RuleResult
from batchyard.lint.linted_manifests import LintedManifests
from batchyard.scheduling.workload.adjustments import first_priority_class

if TYPE_CHECKING:
    from batchyard.jobs.described.integration import DescribedJobIntegration


class JobParts(NamedTuple):
    """The PriorityClass of a job ('' for none), its pod sets, and the paths of their templates."""

    pod_class: str
    pod_sets: Sequence[Mapping[str, Any]]
    template_paths: Sequence[str]


def job_parts(job: Obj, objects: ObjectReader) -> JobParts | None:
    """Return the parts of a job, described by a JobKind of `objects` if its kind is custom.

    Return None for other kinds, and for a job that its description does not fit.
    """
    kind = group_kind(job)
    integration = INTEGRATIONS.get(kind)
    if integration is not None:
        replicated_jobs = job["spec"].get("replicatedJobs") or ()
        paths = [f"spec.replicatedJobs[{index}].template.spec.template" for index in range(len(replicated_jobs))]
        template_paths = paths if kind == scheme.JOB_SET else ["spec.template"]
        return JobParts(integration.pod_class(job), integration.pod_sets(job), template_paths)
    if kind in scheme.SERVING_KINDS:
        return _service_parts(job) if label(job, well_known.QUEUE_NAME) else None
    if scheme.is_built_in(kind):
        return None
    from batchyard.jobs.described.integration import ExpressionFailed  # noqa: PLC0415 - CEL takes 0.1 s to load

    described = _find_description(kind, objects.list(scheme.JOB_KIND))
    if described is None:
        return None
    described = described.with_objects(objects.get)
    try:
        if described.is_ignored(job):
            return None
        return JobParts(described.pod_class(job), described.pod_sets(job), described.template_paths(job))
    except ExpressionFailed:
        return None


def _service_parts(service: Obj) -> JobParts:
    """Return the parts of one Workload of an object that serves: of one pod, of all pods, or of one group."""
    from batchyard.jobs.serving.leader_worker_set import unit_pod_sets  # noqa: PLC0415 - few manifests have services

    pod_sets, template_paths = unit_pod_sets(service)
    pod_class = first_priority_class(pod_set["template"] for pod_set in pod_sets)
    return JobParts(pod_class, pod_sets, template_paths)


def _find_description(kind: str, job_kinds: Sequence[Obj]) -> "DescribedJobIntegration | None":
    from batchyard.jobs.described import description, kinds  # noqa: PLC0415 - CEL takes 0.1 s to load

    by_kind = {f"{each['spec']['kind']}.{each['spec']['group']}": each for each in job_kinds}
    try:
        return kinds.find_integration(kind, by_kind)
    except description.InvalidJobKind:
        return None


def invalid_expression(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report the first expression of each JobKind that does not compile."""
    for manifest in _job_kinds_of(linted):
        from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

        for error in controller.expression_errors(manifest.obj):
            fix = "correct the expression; its variables are job, and item in pod sets"
            yield RuleResult(manifest, error.path, error.problem, fix)


def undescribed_job(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job of a custom kind that violates a rule of the description, or for which an expression fails."""
    job_kinds = [manifest.obj for manifest in _job_kinds_of(linted)]
    for manifest in linted.manifests:
        kind = group_kind(manifest.obj)
        if scheme.is_built_in(kind) or (described := _find_description(kind, job_kinds)) is None:
            continue
        from batchyard.jobs.described.integration import ExpressionFailed  # noqa: PLC0415 - as above

        described = described.with_objects(linted.find_object)
        try:
            if label(manifest.obj, well_known.QUEUE_NAME):
                for fault in described.validation_errors(manifest.obj):
                    yield RuleResult(manifest, fault.path, fault.problem, fault.remedy or "correct the field")
            if not described.is_ignored(manifest.obj):
                described.pod_sets(manifest.obj)
        except ExpressionFailed as error:
            fix = "correct the job, or the expression in the JobKind"
            yield RuleResult(manifest, "spec", f"the job gets no Workload: {error}", fix)


def no_simulated_status(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each JobKind whose jobs cannot end in a simulation."""
    for manifest in _job_kinds_of(linted):
        if "simulatedStatus" not in manifest.obj["spec"]:
            problem = "in simulations, jobs of this kind never become ready or end"
            yield RuleResult(manifest, "spec", problem, "add simulatedStatus with the status in each state of the pods")


def _job_kinds_of(linted: LintedManifests) -> list[Manifest]:
    return [manifest for manifest in linted.manifests if group_kind(manifest.obj) == scheme.JOB_KIND]
