"""Validation of the labels and annotations that queue Jobs and JobSets."""

from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.validation import validate, validate_update
from batchyard.api.well_known import (
    POD_SET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)
from object_edits import GONE, begins, with_edits

PREFIX = "kueue.x-k8s.io"
LABELS = "metadata.labels"
NOTES = "metadata.annotations"
NEVER = make.pod_template(restartPolicy="Never")
JOB = make.job(suspend=False, parallelism=4, completions=4, completionMode="Indexed", template=NEVER)
JOBSET = with_defaults(make.jobset(replicated_jobs=[make.replicated_job("a"), make.replicated_job("b", 4)]))
POD_NOTES = "spec.template.metadata.annotations"


def label(name: str) -> str:
    """Return the path of a Kueue label for an edit."""
    return f'{LABELS}."{PREFIX}/{name}"'


def note(name: str) -> str:
    """Return the path of a Kueue annotation for an edit."""
    return f'{NOTES}."{PREFIX}/{name}"'


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({}, id="in a queue"),
        pytest.param({LABELS: GONE}, id="in no queue"),
        pytest.param({label("prebuilt-workload-name"): "wl"}, id="with a Workload"),
        pytest.param({label("max-exec-time-seconds"): "60"}, id="with a time limit"),
        pytest.param({note("job-min-parallelism"): "3"}, id="partial admission"),
        pytest.param({note("elastic-job"): "true"}, id="elastic"),
        pytest.param({note("job-completions-equal-parallelism"): "t"}, id="completions as parallelism"),
        pytest.param(
            {note("job-completions-equal-parallelism"): "false", "spec.parallelism": 3},
            id="completions other than parallelism",
        ),
        pytest.param({note("admission-gated-by"): "a.io/b"}, id="gated"),
    ],
)
def test_valid_queued_job_is_accepted(edits: dict[str, Any]) -> None:
    job = with_edits(JOB, edits)
    assert validate(job) == []
    assert validate_update(job, job) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {label("queue-name"): "A"},
            f'{LABELS}[{PREFIX}/queue-name]: Invalid value: "A": a lowercase RFC 1123 subdomain',
            id="no queue",
        ),
        pytest.param(
            {label("prebuilt-workload-name"): "A"},
            f'{LABELS}[{PREFIX}/prebuilt-workload-name]: Invalid value: "A"',
            id="no Workload",
        ),
        pytest.param(
            {note("prebuilt-workload-name"): "A_"},
            f'{NOTES}[{PREFIX}/prebuilt-workload-name]: Invalid value: "A_"',
            id="no Workload, in an annotation",
        ),
        pytest.param(
            {label("max-exec-time-seconds"): "1h"},
            f'{LABELS}[{PREFIX}/max-exec-time-seconds]: Invalid value: "1h": strconv.Atoi: parsing "1h": invalid',
            id="no number of seconds",
        ),
        pytest.param(
            {label("max-exec-time-seconds"): "0"},
            f"{LABELS}[{PREFIX}/max-exec-time-seconds]: Invalid value: 0: should be greater than 0",
            id="no time",
        ),
        pytest.param(
            {note("job-min-parallelism"): "x"},
            f'{NOTES}[{PREFIX}/job-min-parallelism]: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax',
            id="invalid minimum parallelism",
        ),
        pytest.param(
            {note("job-min-parallelism"): "4"},
            f"{NOTES}[{PREFIX}/job-min-parallelism]: Invalid value: 4: should be between 0 and 3",
            id="a minimum parallelism equal to parallelism",
        ),
        pytest.param(
            {f'{NOTES}."batchyard.dev/partial-start"': "true"},
            f'{NOTES}[batchyard.dev/partial-start]: Invalid value: "true": only an elastic Job that grows in part can',
            id="a partial start of a Job that is not elastic",
        ),
        pytest.param(
            {note("job-min-parallelism"): "2", note("elastic-job"): "true"},
            f'{NOTES}[{PREFIX}/job-min-parallelism]: Invalid value: "2": partial admission and elastic job cannot',
            id="partial and elastic",
        ),
        pytest.param(
            {note("job-completions-equal-parallelism"): "yes"},
            f'{NOTES}[{PREFIX}/job-completions-equal-parallelism]: Invalid value: "yes": strconv.ParseBool',
            id="no boolean",
        ),
        pytest.param(
            {note("job-completions-equal-parallelism"): "true", "spec.completionMode": "NonIndexed"},
            f'{NOTES}[{PREFIX}/job-completions-equal-parallelism]: Invalid value: "true": should not be enabled',
            id="completions without indexes",
        ),
        pytest.param(
            {note("job-completions-equal-parallelism"): "true", "spec.parallelism": 3},
            f"spec.completions: Invalid value: 4: should be equal to parallelism when {PREFIX}/job-completions-equal",
            id="completions other than parallelism",
        ),
        pytest.param(
            {note("admission-gated-by"): "b"},
            f'{NOTES}[{PREFIX}/admission-gated-by]: Invalid value: "b": must be a domain-prefixed path',
            id="no gate",
        ),
    ],
)
def test_invalid_label_or_annotation_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(JOB, edits)), start)


def test_elastic_jobset_is_rejected() -> None:
    faults = validate(with_edits(JOBSET, {note("elastic-job"): "true"}))
    message = 'elastic job is not supported for "jobset.x-k8s.io/v1alpha2, Kind=JobSet"'
    assert begins(faults, f"{NOTES}[{PREFIX}/elastic-job]: Forbidden: {message}")


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {label("queue-name"): "other"},
            f'{LABELS}[{PREFIX}/queue-name]: Invalid value: "other": field is immutable',
            id="the queue",
        ),
        pytest.param(
            {label("prebuilt-workload-name"): "wl"},
            f'{LABELS}[{PREFIX}/prebuilt-workload-name]: Invalid value: "wl": field is immutable',
            id="the Workload",
        ),
        pytest.param(
            {label("max-exec-time-seconds"): "9"},
            f'{LABELS}[{PREFIX}/max-exec-time-seconds]: Invalid value: "9": field is immutable',
            id="the time",
        ),
        pytest.param(
            {label("priority-class"): "high"},
            f'{LABELS}[{PREFIX}/priority-class]: Invalid value: "high": WorkloadPriorityClass cannot be added',
            id="a priority class",
        ),
        pytest.param(
            {note("elastic-job"): "true"},
            f"{NOTES}[{PREFIX}/elastic-job]: Invalid value: true: field is immutable",
            id="elasticity",
        ),
        pytest.param(
            {note("admission-gated-by"): "a.io/b"},
            f"{NOTES}[{PREFIX}/admission-gated-by]: Forbidden: cannot add admission gate after creation",
            id="gates",
        ),
        pytest.param(
            {note("job-completions-equal-parallelism"): "true"},
            f"{NOTES}[{PREFIX}/job-completions-equal-parallelism]: Forbidden: field is immutable while the job is not",
            id="whether completions follow",
        ),
    ],
)
def test_immutable_labels_of_running_job_are_rejected_in_update(edits: dict[str, Any], start: str) -> None:
    assert begins(validate_update(with_edits(JOB, edits), JOB), start)


@pytest.mark.parametrize("obj", [pytest.param(JOB, id="Job"), pytest.param(JOBSET, id="JobSet")])
@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({label("queue-name"): "other"}, id="the queue"),
        pytest.param({label("prebuilt-workload-name"): "wl"}, id="the Workload"),
        pytest.param({label("max-exec-time-seconds"): "9"}, id="the time"),
        pytest.param({label("priority-class"): "high"}, id="a priority class"),
    ],
)
def test_labels_of_suspended_job_are_mutable(obj: dict[str, Any], edits: dict[str, Any]) -> None:
    old = with_edits(obj, {"spec.suspend": True})
    assert validate_update(with_edits(old, edits), old) == []


def test_priority_class_may_change_but_not_be_removed() -> None:
    old = with_edits(JOB, {label("priority-class"): "high", "spec.suspend": True})
    start = f'{LABELS}[{PREFIX}/priority-class]: Invalid value: "": WorkloadPriorityClass cannot be removed'
    assert validate_update(with_edits(old, {label("priority-class"): "low"}), old) == []
    assert begins(validate_update(with_edits(old, {label("priority-class"): GONE}), old), start)


def test_parallelism_of_partially_admitted_job_is_immutable() -> None:
    old = with_edits(JOB, {note("job-min-parallelism"): "1"})
    faults = validate_update(with_edits(old, {"spec.parallelism": 3}), old)
    assert begins(
        faults, "spec.parallelism: Forbidden: cannot change when partial admission is enabled and the job is not"
    )


def test_unchanged_annotation_is_not_validated_in_update() -> None:
    old = with_edits(JOB, {note("job-min-parallelism"): "3", "spec.suspend": True})
    assert validate_update(with_edits(old, {"spec.parallelism": 2}), old) == []


def test_new_annotation_is_validated_in_update() -> None:
    old = with_edits(JOB, {"spec.suspend": True})
    start = f"{NOTES}[{PREFIX}/job-min-parallelism]: Invalid value: 9: should be between 0 and 3"
    assert begins(validate_update(with_edits(old, {note("job-min-parallelism"): "9"}), old), start)


RACK = "cloud.example.com/rack"
LAYERS = '[{"topology": "block", "size": 4}, {"topology": "rack", "size": 2}]'


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({REQUIRED_TOPOLOGY: RACK}, id="required"),
        pytest.param({UNCONSTRAINED_TOPOLOGY: "true"}, id="unconstrained"),
        pytest.param({PREFERRED_TOPOLOGY: RACK, POD_SET_GROUP: "g"}, id="in a group"),
        pytest.param({SLICE_TOPOLOGY: RACK, SLICE_SIZE: "4"}, id="in slices"),
        pytest.param({SLICE_LAYERS: LAYERS}, id="in layers of slices"),
        pytest.param({"other": "note"}, id="nothing"),
    ],
)
def test_valid_topology_request_is_accepted(annotations: dict[str, str]) -> None:
    assert validate(with_edits(JOB, {POD_NOTES: annotations})) == []


@pytest.mark.parametrize(
    ("annotations", "starts"),
    [
        pytest.param(
            {REQUIRED_TOPOLOGY: RACK, PREFERRED_TOPOLOGY: RACK},
            [": Invalid value: must not contain more than one topology annotation: ["],
            id="two modes",
        ),
        pytest.param({REQUIRED_TOPOLOGY: "a b"}, [f'[{REQUIRED_TOPOLOGY}]: Invalid value: "a b"'], id="no label"),
        pytest.param(
            {UNCONSTRAINED_TOPOLOGY: "yes"},
            [f'[{UNCONSTRAINED_TOPOLOGY}]: Invalid value: "yes": must be a boolean value'],
            id="no boolean",
        ),
        pytest.param(
            {SLICE_TOPOLOGY: RACK},
            [f"[{SLICE_SIZE}]: Required value: must be set when '{SLICE_TOPOLOGY}' is specified"],
            id="slices of no size",
        ),
        pytest.param(
            {SLICE_SIZE: "2"},
            [f"[{SLICE_SIZE}]: Forbidden: may not be set when '{SLICE_TOPOLOGY}' is not specified"],
            id="slices of no topology",
        ),
        pytest.param(
            {SLICE_TOPOLOGY: RACK, SLICE_SIZE: "x"},
            [f'[{SLICE_SIZE}]: Invalid value: "x": must be a numeric value'],
            id="no size",
        ),
        pytest.param(
            {SLICE_TOPOLOGY: RACK, SLICE_SIZE: "0"},
            [f'[{SLICE_SIZE}]: Invalid value: "0": must be greater than or equal to 1'],
            id="empty slices",
        ),
        pytest.param(
            {SLICE_TOPOLOGY: RACK, SLICE_SIZE: "5"},
            [f'[{SLICE_SIZE}]: Invalid value: "5": must not be greater than pod set count 4'],
            id="slices larger than all",
        ),
        pytest.param(
            {POD_SET_GROUP: "7", REQUIRED_TOPOLOGY: RACK},
            [f'[{POD_SET_GROUP}]: Invalid value: "7": must not be a number'],
            id="a number for a group",
        ),
        pytest.param(
            {POD_SET_GROUP: "g"},
            [f"[{POD_SET_GROUP}]: Forbidden: may not be set when neither '{PREFERRED_TOPOLOGY}' nor"],
            id="a group without topology",
        ),
        pytest.param(
            {POD_SET_GROUP: "g", REQUIRED_TOPOLOGY: RACK, SLICE_TOPOLOGY: RACK, SLICE_SIZE: "2"},
            [f"[{POD_SET_GROUP}]: Forbidden: may not be set when '{name}'" for name in (SLICE_SIZE, SLICE_TOPOLOGY)],
            id="a group in slices",
        ),
        pytest.param(
            {SLICE_LAYERS: LAYERS, SLICE_TOPOLOGY: RACK, SLICE_SIZE: "2"},
            [f"[{SLICE_LAYERS}]: Forbidden: may not be set when '{name}'" for name in (SLICE_TOPOLOGY, SLICE_SIZE)],
            id="slices twice",
        ),
        pytest.param(
            {SLICE_LAYERS: "{}"}, [f'[{SLICE_LAYERS}]: Invalid value: "{{}}": must be a valid JSON'], id="no list"
        ),
        pytest.param(
            {SLICE_LAYERS: "[]"},
            [f'[{SLICE_LAYERS}]: Invalid value: "[]": topology constraints must contain between 1 and 3 entries'],
            id="no layer",
        ),
        pytest.param(
            {SLICE_LAYERS: '[{"topology": "a", "size": 0}]'},
            [f"[{SLICE_LAYERS}][0].size: Invalid value: 0: must be greater than or equal to 1"],
            id="empty layers",
        ),
        pytest.param(
            {SLICE_LAYERS: '[{"topology": "a", "size": 3}, {"topology": "b", "size": 2}]'},
            [f"[{SLICE_LAYERS}][1].size: Invalid value: 2: must evenly divide the parent layer size 3"],
            id="layers that do not divide",
        ),
        pytest.param(
            {SLICE_LAYERS: '[{"topology": "a", "size": 4}, {"topology": "a", "size": 2}]'},
            [f'[{SLICE_LAYERS}][1].topology: Duplicate value: "a (also at index 0)"'],
            id="a level twice",
        ),
        pytest.param(
            {SLICE_LAYERS: '[{"topology": "a", "size": 8}]'},
            [f"[{SLICE_LAYERS}]: Invalid value: 8: must not be greater than pod set count 4"],
            id="layers larger than all",
        ),
    ],
)
def test_invalid_topology_request_is_rejected(annotations: dict[str, str], starts: list[str]) -> None:
    assert begins(validate(with_edits(JOB, {POD_NOTES: annotations})), *(POD_NOTES + start for start in starts))


def test_elastic_job_with_required_topology_is_rejected() -> None:
    job = with_edits(JOB, {note("elastic-job"): "true", POD_NOTES: {REQUIRED_TOPOLOGY: RACK}})
    start = f"{POD_NOTES}.{REQUIRED_TOPOLOGY}: Forbidden: required topology is not supported with elastic jobs"
    assert begins(validate(job), start)


def grouped(*annotations: dict[str, str]) -> dict[str, Any]:
    """Return the JobSet with these Pod annotations; its second pod set has four Pods."""
    path = "spec.replicatedJobs[{}].template.spec.template.metadata"
    return with_edits(JOBSET, {path.format(i): {"annotations": each} for i, each in enumerate(annotations)})


def test_pod_set_group_with_different_topologies_is_rejected() -> None:
    member, other = ({POD_SET_GROUP: "g", REQUIRED_TOPOLOGY: place} for place in (RACK, "block"))
    path = "spec.replicatedJobs[{}].template.spec.template.metadata.annotations"
    message = f": Invalid value: must specify '{REQUIRED_TOPOLOGY}' or '{PREFERRED_TOPOLOGY}' topology consistent with"
    assert validate(grouped(member, member)) == []
    assert begins(validate(grouped(member, other)), path.format(0) + message, path.format(1) + message)


def test_pod_set_group_must_have_two_pod_sets() -> None:
    faults = validate(grouped({POD_SET_GROUP: "g", REQUIRED_TOPOLOGY: RACK}))
    message = "can only define groups of exactly 2 pod sets, got: 1 pod set(s)"
    path = f"spec.replicatedJobs[0].template.spec.template.metadata.annotations[{POD_SET_GROUP}]"
    assert begins(faults, f'{path}: Invalid value: "g": {message}')


def test_pod_set_group_needs_pod_set_with_single_pod() -> None:
    member = {POD_SET_GROUP: "g", REQUIRED_TOPOLOGY: RACK}
    faults = validate(with_edits(grouped(member, member), {"spec.replicatedJobs[0].replicas": 2}))
    message = "can only define groups where at least one pod set has only 1 replica, got: 2 replica(s) and 4 replica(s)"
    assert [message in fault.problem for fault in faults] == [True, True]
