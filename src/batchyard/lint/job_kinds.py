"""The parts of jobs that rules need, and lint rules on JobKinds and on jobs of the kinds that they describe."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, group_kind
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.lint.findings import RuleResult
from batchyard.lint.linted_manifests import LintedManifests

if TYPE_CHECKING:
    from batchyard.jobs.described.integration import DescribedJobIntegration


class JobParts(NamedTuple):
    """The PriorityClass of a job ('' for none), its pod sets, and the paths of their templates."""

    pod_class: str
    pod_sets: Sequence[Mapping[str, Any]]
    template_paths: Sequence[str]


def job_parts(job: Obj, job_kinds: Sequence[Obj]) -> JobParts | None:
    """Return the parts of a job, described by one of `job_kinds` if its kind is custom.

    Return None for other kinds, and for a job that its description does not fit.
    """
    kind = group_kind(job)
    integration = INTEGRATIONS.get(kind)
    if integration is not None:
        replicated_jobs = job["spec"].get("replicatedJobs") or ()
        paths = [f"spec.replicatedJobs[{index}].template.spec.template" for index in range(len(replicated_jobs))]
        template_paths = paths if kind == scheme.JOB_SET else ["spec.template"]
        return JobParts(integration.pod_class(job), integration.pod_sets(job), template_paths)
    if scheme.is_built_in(kind):
        return None
    from batchyard.jobs.described.integration import ExpressionFailed  # noqa: PLC0415 - CEL takes 0.1 s to load

    described = _find_description(kind, job_kinds)
    if described is None:
        return None
    try:
        if described.is_ignored(job):
            return None
        return JobParts(described.pod_class(job), described.pod_sets(job), described.template_paths(job))
    except ExpressionFailed:
        return None


def _find_description(kind: str, job_kinds: Sequence[Obj]) -> "DescribedJobIntegration | None":
    from batchyard.jobs.described import description, integration  # noqa: PLC0415 - CEL takes 0.1 s to load

    by_kind = {f"{each['spec']['kind']}.{each['spec']['group']}": each for each in job_kinds}
    try:
        return integration.find_integration(kind, by_kind)
    except description.InvalidJobKind:
        return None


def invalid_expression(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report the first expression of each JobKind that does not compile."""
    for manifest in _job_kinds_of(linted):
        from batchyard.jobs.described import admission  # noqa: PLC0415 - CEL takes 0.1 s to load

        for error in admission.expression_errors(manifest.obj):
            fix = "correct the expression; its variables are job, and item in pod sets"
            yield RuleResult(manifest, error.path, error.problem, fix)


def undescribed_job(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job of a custom kind for which an expression of the description fails."""
    job_kinds = [manifest.obj for manifest in _job_kinds_of(linted)]
    for manifest in linted.manifests:
        kind = group_kind(manifest.obj)
        if scheme.is_built_in(kind) or (described := _find_description(kind, job_kinds)) is None:
            continue
        from batchyard.jobs.described.integration import ExpressionFailed  # noqa: PLC0415 - as above

        try:
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
