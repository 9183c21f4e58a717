"""Invalid annotations for simulated pods are reported, also those in templates."""

import pytest

import make
from batchyard.sim.scenario import annotation_errors


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("runtime", "ten", "'ten' is not a duration; write it as 90s, 1h30m or 0.5s"),
        ("checkpoint-every", "often", "'often' is not a duration; write it as 90s, 1h30m or 0.5s"),
        (
            "checkpoint-every",
            "0s",
            "the checkpoint interval must be greater than 0; use a duration such as 5m, or remove the annotation",
        ),
        ("exit-code", "256", "'256' is not a valid exit code; use a number from 0 to 255"),
        ("exit-code", "-1", "'-1' is not a valid exit code; use a number from 0 to 255"),
        ("exit-code", "one", "'one' is not a valid exit code; use a number from 0 to 255"),
    ],
)
def test_invalid_annotation_is_reported_with_remedy(name: str, text: str, reported: str) -> None:
    key = f"batchyard.dev/{name}"
    assert [*map(str, annotation_errors(make.job(annotations={key: text})))] == [
        f"metadata.annotations[{key}]: {reported}"
    ]


def test_annotations_in_templates_are_validated() -> None:
    noted = {"annotations": {"batchyard.dev/exit-code": "x"}}
    template = {"metadata": noted, **make.pod_template()}
    replicated = make.replicated_job(template=template)
    replicated["template"]["metadata"] = noted
    result = [
        fault.path for fault in annotation_errors(make.jobset(replicated_jobs=[make.replicated_job(), replicated]))
    ]
    places = ["spec.replicatedJobs[1].template.", "spec.replicatedJobs[1].template.spec.template."]
    assert result == [f"{place}metadata.annotations[batchyard.dev/exit-code]" for place in places]


def test_valid_annotations_have_no_faults() -> None:
    notes = {"batchyard.dev/runtime": "0s", "batchyard.dev/exit-code": "255", "batchyard.dev/checkpoint-every": "1m"}
    assert [*annotation_errors(make.job(annotations=notes))] == []
