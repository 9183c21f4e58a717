"""Rules of workload controllers: they select their own pods, and some fields are immutable.

Sources: Kubernetes's pkg/apis/apps/validation and pkg/apis/batch/validation (CronJobs).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import cron, scheme
from batchyard.api.cron import TIME_ZONES
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, group_kind
from batchyard.api.meta import selector as parsed_selector
from batchyard.api.schema import meaning_of
from batchyard.api.validation import job, pods, rules

_LABELS: Final = "spec.template.metadata.labels"
_COUNTS: Final = ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
#: The mutable fields of a StatefulSet, in the order in which Kubernetes names them.
_CHANGEABLE: Final = (
    *("replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy"),
    "minReadySeconds",
)
_CRON_NAME_MAX: Final = 52
_ZONE: Final = re.compile(r"^(?:CRON_)?TZ=[^ ]* *")
#: The maximum length of an unknown time zone in a message.
_ZONE_SHOWN_MAX: Final = 200
_POLICIES: Final = ("Allow", "Forbid", "Replace")


def selecting_faults(obj: Obj) -> Iterator[FieldError]:
    """Validate a Deployment, ReplicaSet, StatefulSet or DaemonSet."""
    yield from rules.metadata_faults(obj)
    spec = obj["spec"]
    for field in _COUNTS:
        if (spec.get(field) or 0) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], rules.NEGATIVE, "use 0 or more")
    template = spec.get("template") or {}
    yield from _selector_faults(spec.get("selector"), (template.get("metadata") or {}).get("labels") or {}, obj["kind"])
    claims = [(claim.get("metadata") or {}).get("name") or "" for claim in spec.get("volumeClaimTemplates") or ()]
    yield from pods.pod_template_faults(template, "spec.template", claims)
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        problem = f'Unsupported value: "{policy}": supported values: "Always"'
        yield FieldError("spec.template.spec.restartPolicy", problem, "drop it, or use a Job")


def selecting_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update: the selector is immutable."""
    yield from selecting_faults(new)
    if not meaning_of(group_kind(new)).is_same(
        "LabelSelector", new["spec"].get("selector"), old["spec"].get("selector")
    ):
        yield rules.immutable("spec.selector", new["spec"].get("selector"))


def stateful_set_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a StatefulSet: most of its spec is immutable."""
    yield from selecting_faults(new)
    spec, before = new["spec"], old["spec"]
    kept = [field for field in dict.fromkeys((*spec, *before)) if field not in _CHANGEABLE]
    meaning = meaning_of(scheme.STATEFUL_SET)
    if not all(meaning.is_same_field("StatefulSetSpec", field, spec, before) for field in kept):
        names = ", ".join(f"'{name}'" for name in _CHANGEABLE[:-1])
        message = f"updates to statefulset spec for fields other than {names} and '{_CHANGEABLE[-1]}' are forbidden"
        yield rules.forbidden("spec", message, "make another StatefulSet")


def cron_job_faults(obj: Obj) -> Iterator[FieldError]:
    """Validate a CronJob."""
    yield from rules.metadata_faults(obj)
    name, spec = obj["metadata"].get("name", ""), obj["spec"]
    if len(name) > _CRON_NAME_MAX:
        message = f"must be no more than {_CRON_NAME_MAX} characters"
        yield rules.invalid("metadata.name", name, message, "shorten it: its Jobs are named after it")
    yield from _schedule_faults(spec["schedule"])
    yield from _time_zone_faults(spec.get("timeZone"))
    policy = spec.get("concurrencyPolicy", "Allow")
    if policy not in _POLICIES:
        supported = ", ".join(f'"{each}"' for each in _POLICIES)
        problem = f'Unsupported value: "{policy}": supported values: {supported}'
        yield FieldError("spec.concurrencyPolicy", problem, "use one of these")
    for field in ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        if (spec.get(field) or 0) < 0:
            yield rules.invalid(f"spec.{field}", spec[field], rules.NEGATIVE, "use 0 or more")
    yield from job.spec_faults((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")


def _selector_faults(selector: Mapping[str, Any] | None, labels: Mapping[str, str], kind: str) -> Iterator[FieldError]:
    if selector is None:
        return  # the schema reports it as required
    wrong = list(rules.selector_faults(selector, "spec.selector"))
    yield from wrong
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        message = f"empty selector is invalid for {kind.lower()}"
        yield rules.invalid("spec.selector", selector, message, "select the labels of the template")
    selected = None if wrong else parsed_selector(selector)
    if selected is not None and not selected.matches(labels):
        message = "`selector` does not match template `labels`"
        yield rules.invalid(_LABELS, labels, message, "give the template the labels of the selector")


def _schedule_faults(schedule: str) -> Iterator[FieldError]:
    remedy = "write it as 0 3 * * 1: minute, hour, day, month, day of the week"
    if not schedule:
        yield rules.required("spec.schedule", "", remedy)
        return
    if len(schedule.encode()) > cron.LENGTH_MAX:
        yield rules.too_long("spec.schedule", cron.LENGTH_MAX, remedy)
        return
    is_zoned = "TZ" in schedule
    try:
        cron.check_schedule(_ZONE.sub("", schedule) if is_zoned else schedule)
    except cron.ScheduleError as error:
        yield rules.invalid("spec.schedule", schedule, str(error), remedy)
    if is_zoned:
        message = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield rules.invalid("spec.schedule", schedule, message, "set timeZone")


def _time_zone_faults(zone: str | None) -> Iterator[FieldError]:
    """A time zone is a name of the IANA database."""
    path, remedy = "spec.timeZone", "use a name of the IANA time zone database, such as Europe/Berlin"
    if zone is None:
        return
    if not zone:
        yield rules.invalid(path, zone, "timeZone must be nil or non-empty string", remedy)
    elif zone.lower() == "local":
        message = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield rules.invalid(path, zone, message, remedy)
    elif zone not in TIME_ZONES:
        yield rules.invalid(path, zone, f"unknown time zone {zone[:_ZONE_SHOWN_MAX]}", remedy)
