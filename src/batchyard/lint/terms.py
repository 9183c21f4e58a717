"""Rules on the provisioning terms of machines: Spot machines are reclaimed, queued machines have a time limit.

Sources: GKE's Spot VMs (a machine has 30 seconds, of which the kubelet leaves ordinary pods 25); GKE's autoscaler,
pkg/provisioningrequests (machines on request run for 7 days at most).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.annotations import whole_number
from batchyard.api.meta import annotation, label
from batchyard.api.views.pod import GRACE_DEFAULT
from batchyard.api.views.queues import FlavorView
from batchyard.autoscaler.provisioning_request_conditions import QUEUED_CLASS
from batchyard.base.instant import SECOND, parse_duration
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import LintedPodSet, RuleResult, Severity
from batchyard.lint.workloads import LintedWork
from batchyard.placement.node_filters import selects

#: The grace period of ordinary pods after the termination notice of a Spot machine.
SPOT_GRACE_SECONDS: Final = 25
LONGEST_RUN_SECONDS: Final = 7 * 24 * 3600
_MAX_RUN: Final = f"{well_known.PROVISIONING_PREFIX}maxRunDurationSeconds"


def grace_beyond_spot(config: Configuration) -> Iterator[RuleResult]:
    """Pods with a grace period longer than on Spot machines; the default grace period is accepted."""
    for part in _on_spot(config):
        spec = part.work.templates[part.index].get("spec") or {}
        grace = spec.get("terminationGracePeriodSeconds")
        if grace not in {None, GRACE_DEFAULT} and grace > SPOT_GRACE_SECONDS:
            problem = (
                f"its pods may run on Spot machines and use a grace period of {grace} s, but a Spot machine gives them"
                f" {SPOT_GRACE_SECONDS} s: unsaved work is lost after that"
            )
            fix = f"save within {SPOT_GRACE_SECONDS} s (best within 15 s) and set this value, or save while it runs"
            yield RuleResult(part.work.manifest, f"{part.path}.terminationGracePeriodSeconds", problem, fix)


def no_retries_on_spot(config: Configuration) -> Iterator[RuleResult]:
    """Work that fails permanently when its first Spot machine is reclaimed."""
    for part in _on_spot(config):
        work, spec = part.work, _job_spec(part)
        if spec is None or spec.get("backoffLimit") != 0 or _ignores_disruptions(spec):
            continue
        if work.obj["kind"] == "JobSet" and (work.obj["spec"].get("failurePolicy") or {}).get("maxRestarts"):
            continue
        path = part.path.removesuffix("template.spec")
        problem = "backoffLimit is 0 and its pods may run on Spot machines: the first reclaimed machine fails the work"
        fix = "allow some retries, and add a podFailurePolicy that ignores pods with the condition DisruptionTarget"
        if work.obj["kind"] == "JobSet":
            fix = "set failurePolicy.maxRestarts of the JobSet"
        yield RuleResult(work.manifest, f"{path}backoffLimit", problem, fix)


def queued_pool_without_check(config: Configuration) -> Iterator[RuleResult]:
    """Work for queued pools in a ClusterQueue that requests no machines."""
    for part in config.parts:
        flavors = [config.flavors[c.flavor][1] for c in part.assignment.choices.values() if c.flavor in config.flavors]
        if any(config.provisions(part.queue.view, flavor.name) for flavor in flavors):
            continue
        pod = part.work.pod(part.index, flavors, queued=True)
        matching = [m for m in config.park.machines if any(selects(pod.shape.rules, t) for t in m.templates)]
        if matching and all(m.terms == "queued" for m in matching):
            names = ", ".join(m.name for m in matching)
            problem = (
                f"its pods can only run on {names}, which serves ProvisioningRequests only, and ClusterQueue"
                f" {part.queue.name} has no AdmissionCheck that creates one: they stay Pending"
            )
            fix = "give the queue an AdmissionCheck of kueue.x-k8s.io/provisioning-request for this flavor"
            yield RuleResult(part.work.manifest, f"{part.path}.nodeSelector", problem, fix)


def run_time_beyond_limit(config: Configuration) -> Iterator[RuleResult]:
    """Work with a run time beyond the limit of machines on request."""
    for work in config.works:
        if not _asks_gke(config, work):
            continue
        given = whole_number(annotation(work.obj, _MAX_RUN) or "")
        limit = LONGEST_RUN_SECONDS if given is None else given
        place = f"metadata.annotations[{_MAX_RUN}]"
        if given is not None and given > LONGEST_RUN_SECONDS:
            problem = f"machines on request run for {LONGEST_RUN_SECONDS} s (7 days) at most, and {given} are requested"
            fix = f'request "{LONGEST_RUN_SECONDS}" or less, and resume from checkpoints'
            patches = [(work.manifest, {"metadata": {"annotations": {_MAX_RUN: str(LONGEST_RUN_SECONDS)}}})]
            yield RuleResult(work.manifest, place, f"{problem}: the request fails", fix, patches)
            continue
        for path, seconds in _run_times(work):
            if seconds > limit:
                most = "as requested" if given is not None else "the maximum"
                problem = f"it may run for {seconds} s, but its machines and pods are deleted after {limit} s ({most})"
                fix = (
                    "request machines for its whole run time" if given is not None else "run shorter, with checkpoints"
                )
                yield RuleResult(work.manifest, path, problem, fix, severity=Severity.WARNING)


def check_without_resource(config: Configuration) -> Iterator[RuleResult]:
    """Capacity checks whose managedResources exclude all resources that the work requests."""
    for part in config.parts:
        for rule in part.queue.view.check_rules:
            managed = _managed_resources(config, rule.name)
            requested = [resource for resource, amount in part.assignment.requests if amount]
            if managed and not any(resource in managed for resource in requested):
                problem = (
                    f"the AdmissionCheck {rule.name} requests machines only for pods that request {', '.join(managed)},"
                    f" and {part.who} requests {', '.join(requested) or 'nothing'}: it is admitted without machines"
                )
                fix = "add its resources to managedResources of the ProvisioningRequestConfig, unless this is intended"
                yield RuleResult(part.work.manifest, f"{part.path}.containers", problem, fix)


def _on_spot(config: Configuration) -> Iterator[LintedPodSet]:
    """The pod sets that may run on Spot machines."""
    for part in config.parts:
        template = part.work.view.pod_sets[part.index].template
        wanted = dict(template.node_selector)
        usable = [
            flavor
            for group in part.queue.view.groups
            for name, wrong in zip(group.flavors, config.snapshot.obstacles.of(template, group.flavors), strict=True)
            if not wrong and (flavor := config.flavors[name][1])
        ]
        if any(is_spot(config, flavor) for flavor in usable) or _says_spot(wanted):
            yield part


def is_spot(config: Configuration, flavor: FlavorView) -> bool:
    """Whether a flavor consists of Spot machines."""
    if _says_spot(flavor.labels):
        return True
    machines = config.park.of(flavor) if flavor.labels else []
    return bool(machines) and all(each.terms == "spot" for each in machines)


def _says_spot(labels: Mapping[str, str]) -> bool:
    return labels.get(well_known.SPOT) == "true" or labels.get(well_known.PROVISIONING) == "spot"


def _job_spec(part: LintedPodSet) -> Any:
    spec = part.work.obj["spec"]
    if part.work.obj["kind"] == "Job":
        return spec
    jobs = spec.get("replicatedJobs") or ()
    return jobs[part.index]["template"]["spec"] if jobs else None


def _ignores_disruptions(spec: Any) -> bool:
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    return any(
        rule["action"] == "Ignore"
        and any(pattern["type"] == "DisruptionTarget" for pattern in rule.get("onPodConditions") or ())
        for rule in rules
    )


def _asks_gke(config: Configuration, work: LintedWork) -> bool:
    """Whether its machines are requested from GKE."""
    queue = config.cluster_queue_of(work)
    names = queue.view.admission_checks if queue is not None else ()
    return any(_class_of(config, name) == QUEUED_CLASS for name in names)


def _config_of(config: Configuration, check: str) -> Any:
    found = config.find(scheme.ADMISSION_CHECK, check)
    name = ((found.obj["spec"].get("parameters") or {}).get("name") or "") if found else ""
    asked = config.find(scheme.PROVISIONING_REQUEST_CONFIG, name)
    return {} if asked is None else asked.obj["spec"]


def _class_of(config: Configuration, check: str) -> str:
    name: str = _config_of(config, check).get("provisioningClassName") or ""
    return name


def _managed_resources(config: Configuration, check: str) -> list[str]:
    return _config_of(config, check).get("managedResources") or []


def _run_times(work: LintedWork) -> Iterator[tuple[str, int]]:
    """Its declared run times: path, and seconds."""
    limit = whole_number(label(work.obj, well_known.MAX_EXEC_TIME) or "")
    if limit:
        yield f"metadata.labels[{well_known.MAX_EXEC_TIME}]", limit
    if work.obj["kind"] == "Job" and work.obj["spec"].get("activeDeadlineSeconds"):
        yield "spec.activeDeadlineSeconds", work.obj["spec"]["activeDeadlineSeconds"]
    for path, template in zip(work.paths, work.templates, strict=True):
        deadline = (template.get("spec") or {}).get("activeDeadlineSeconds")
        if deadline:
            yield f"{path}.spec.activeDeadlineSeconds", deadline
    runtime = annotation(work.obj, well_known.RUNTIME)
    if runtime and runtime[0].isdigit():
        yield f"metadata.annotations[{well_known.RUNTIME}]", parse_duration(runtime) // SECOND
