"""Conversion of a state to manifests, for commands that read manifests: `lint` and `compare`.

Objects created by controllers are left out: Workloads, Jobs and pods with a controller, nodes created by a Cluster. The
others are submitted at their creation time, counted from the first of them. They run as long as they ran, or as long
as is estimated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, controller_of, group_kind
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant, duration_text
from batchyard.sim.forecasting.run_times import owner_of, rounds_of, with_runtimes
from batchyard.sim.state import State
from batchyard.sim.state_document import LAST_APPLIED, TAKEN_AT, read_state

_WORK: Final = frozenset({scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD, scheme.POD})
#: The kinds that controllers create from other objects.
_MADE: Final = frozenset(
    {
        *(scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.PROVISIONING_REQUEST, scheme.POD_TEMPLATE, scheme.COST_RECORD),
        *(scheme.SERVICE, scheme.CONFIG_MAP, scheme.NODE_POOL),
    }
)
_OF_METADATA: Final = ("name", "namespace", "labels", "annotations")
_MADE_LABELS: Final = frozenset(
    {"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}
)


class StatePart(Enum):
    """The part of a state to convert."""

    ALL = "all"
    WORK = "work"
    CONFIGURATION = "configuration"


def manifest_texts(texts: Iterable[tuple[str, str]], part: StatePart = StatePart.ALL) -> Iterator[tuple[str, str]]:
    """Yield texts with their names; a text that is a state becomes manifests, each object on its previous line."""
    for name, text in texts:
        yield name, (_text_of(text, part) if TAKEN_AT in text and text.lstrip().startswith("{") else text)


def as_manifests(state: State) -> list[Obj | None]:
    """Return the manifest of each object of a state, in its order; None for those that are left out."""
    timed, _ = with_runtimes(state)
    has_cluster = bool(state.of_kind(scheme.CLUSTER))
    kept = [obj for obj in timed.objects.values() if _is_kept(obj, has_cluster=has_cluster)]
    first = min((_created(obj) for obj in kept if group_kind(obj) in _WORK), default=0)
    ran = _ran(timed)
    names = {id(obj) for obj in kept}
    return [_manifest(obj, first, ran) if id(obj) in names else None for obj in timed.objects.values()]


def _text_of(text: str, part: StatePart) -> str:
    lines = ['{"apiVersion":"v1","kind":"List","items":[']
    separator = ""
    state = read_state(text)
    for found in [*as_manifests(state), state.configuration]:
        obj = found if found is not None and _is_of(part, found) else None
        lines.append("" if obj is None else separator + msgspec.json.encode(obj).decode())
        separator = separator if obj is None else ","
    return "\n".join([*lines, "]}"])


def _is_of(part: StatePart, obj: Obj) -> bool:
    return part is StatePart.ALL or (group_kind(obj) in _WORK) == (part is StatePart.WORK)


def _is_kept(obj: Obj, *, has_cluster: bool) -> bool:
    kind = group_kind(obj)
    if kind in _MADE or (kind == scheme.NODE and has_cluster):
        return False
    return kind not in _WORK or controller_of(obj) is None


def _ran(state: State) -> Mapping[str, Duration]:
    """Return the run times of finished Workloads, by the uid of their job."""
    found: dict[str, Duration] = {}
    for workload in state.of_kind(scheme.WORKLOAD):
        conditions = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
        ends, begins = conditions.get("Finished"), conditions.get("Admitted")
        if ends is None or begins is None or not workload_view(workload).finished:
            continue
        of = owner_of(workload, state.objects) or workload
        lasted = parse_time(ends["lastTransitionTime"]) - parse_time(begins["lastTransitionTime"])
        found[of["metadata"]["uid"]] = max(1, lasted // rounds_of(of))
    return found


def _manifest(obj: Obj, first: Instant, ran: Mapping[str, Duration]) -> Obj:
    kind, metadata = group_kind(obj), obj["metadata"]
    kept = {field: metadata[field] for field in _OF_METADATA if metadata.get(field)}
    found = {field: value for field, value in obj.items() if field != "status" or kind == scheme.NODE}
    annotations = {name: text for name, text in (kept.get("annotations") or {}).items() if name != LAST_APPLIED}
    if kind in _WORK:
        annotations[well_known.SUBMIT_AT] = duration_text(max(0, _created(obj) - first))
        if metadata["uid"] in ran and annotation(obj, well_known.RUNTIME) is None:
            annotations[well_known.RUNTIME] = duration_text(ran[metadata["uid"]])
    if kind == scheme.JOB:
        found["spec"] = _job_spec(obj["spec"])
    return {**found, "metadata": {**kept, **({"annotations": annotations} if annotations else {})}}


def _job_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job without the fields that the Job controller added."""
    if spec.get("manualSelector"):
        return dict(spec)
    template = spec["template"]
    metadata = template.get("metadata") or {}
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if name not in _MADE_LABELS}
    kept: Sequence[str] = [field for field in spec if field not in {"selector", "suspend", "template"}]
    return {
        **{field: spec[field] for field in kept},
        "template": {**template, "metadata": {**metadata, "labels": labels}},
    }


def _created(obj: Obj) -> Instant:
    return parse_time(obj["metadata"]["creationTimestamp"])
