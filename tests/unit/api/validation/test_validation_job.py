"""Validation of Jobs by the rules of Kubernetes."""

from typing import Any

import pytest

import make
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

JOB = make.job(queue=None, suspend=False, template=make.pod_template(restartPolicy="Never"))
INDEXED = with_edits(JOB, {"spec.completionMode": "Indexed", "spec.completions": 3, "spec.parallelism": 2})
RULES = "spec.podFailurePolicy.rules"
CODES = {"operator": "In", "values": [1, 3]}
FAILING = with_edits(JOB, {RULES: [{"action": "FailJob", "onExitCodes": CODES}]})
SUCCESS = "spec.successPolicy.rules"
UID = "controller-uid"


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(JOB, id="a Job"),
        pytest.param(INDEXED, id="an Indexed Job"),
        pytest.param(with_edits(JOB, {"spec.completions": GONE}), id="a work queue"),
        pytest.param(with_edits(JOB, {"spec.template.spec.restartPolicy": "OnFailure"}), id="restarted in place"),
        pytest.param(with_edits(INDEXED, {"spec.backoffLimitPerIndex": 1, "spec.maxFailedIndexes": 2}), id="by index"),
        pytest.param(FAILING, id="a failure policy"),
        pytest.param(
            with_edits(JOB, {RULES: [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}),
            id="disruptions ignored",
        ),
        pytest.param(
            with_edits(INDEXED, {SUCCESS: [{"succeededIndexes": "0,1-2", "succeededCount": 2}]}), id="success"
        ),
        pytest.param(with_edits(JOB, {"spec.managedBy": "a.io/b"}), id="managed elsewhere"),
        pytest.param(
            with_edits(JOB, {"spec.selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}}),
            id="a generated selector",
        ),
        pytest.param(
            with_edits(
                JOB,
                {
                    "spec.manualSelector": True,
                    "spec.selector": {"matchLabels": {"a": "b"}},
                    "spec.template.metadata": {"labels": {"a": "b", "c": "d"}},
                },
            ),
            id="a manual selector",
        ),
        pytest.param(
            with_edits(JOB, {"spec.template.metadata": {"labels": {"job-name": "job"}}}), id="its name as a label"
        ),
    ],
)
def test_valid_job_is_accepted(obj: dict[str, Any]) -> None:
    assert validate(obj) == []
    assert validate_update(obj, obj) == []


@pytest.mark.parametrize("field", ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"])
def test_negative_job_number_is_rejected(field: str) -> None:
    faults = validate(with_edits(JOB, {f"spec.{field}": -1}))
    assert begins(faults, f"spec.{field}: Invalid value: -1: must be greater than or equal to 0")


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({"spec.completionMode": "X"}, 'spec.completionMode: Unsupported value: "X"', id="no mode"),
        pytest.param(
            {"spec.completions": GONE},
            "spec.completions: Required value: when completion mode is Indexed",
            id="no number of indexes",
        ),
        pytest.param(
            {"spec.parallelism": 100_001},
            "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode",
            id="too much parallelism",
        ),
        pytest.param(
            {"spec.backoffLimitPerIndex": 1, "spec.maxFailedIndexes": 4},
            "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions",
            id="more failures than indexes",
        ),
        pytest.param(
            {"spec.maxFailedIndexes": 1},
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            id="failed indexes that do not fail alone",
        ),
        pytest.param(
            {"spec.completions": 100_001, "spec.backoffLimitPerIndex": 1},
            "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
            id="too many indexes without bound on failures",
        ),
        pytest.param(
            {"spec.completions": 100_001, "spec.backoffLimitPerIndex": 1, "spec.maxFailedIndexes": 10_001},
            "spec.maxFailedIndexes: Invalid value: 10001: must be less than or equal to 10000 when completions are",
            id="too many failures of too many indexes",
        ),
        pytest.param(
            {"spec.backoffLimitPerIndex": 1, "spec.completionMode": "NonIndexed"},
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            id="retries by index without indexes",
        ),
        pytest.param(
            {SUCCESS: [], "spec.completionMode": "NonIndexed"},
            'spec.successPolicy: Invalid value: {"rules":[]}: requires indexed completion mode',
            id="success by index without indexes",
        ),
        pytest.param(
            {"metadata.name": "a" * 62},
            f'metadata.name: Invalid value: "{"a" * 62}": will not able to create pod with invalid DNS label',
            id="a name too long for its pods",
        ),
        pytest.param(
            {SUCCESS: []},
            f"{SUCCESS}: Required value: at least one rules must be specified when the successPolicy is specified",
            id="no rule of success",
        ),
        pytest.param(
            {SUCCESS: [{}]},
            f"{SUCCESS}[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            id="an empty rule of success",
        ),
        pytest.param(
            {SUCCESS: [{"succeededCount": 4}]},
            f"{SUCCESS}[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of specified",
            id="more successes than indexes",
        ),
        pytest.param(
            {SUCCESS: [{"succeededCount": 2, "succeededIndexes": "1"}]},
            f"{SUCCESS}[0].succeededCount: Invalid value: 2: must be less than or equal to 1 (the number of indexes",
            id="more successes than indexes named",
        ),
        pytest.param(
            {SUCCESS: [{"succeededCount": -1}]},
            f"{SUCCESS}[0].succeededCount: Invalid value: -1: must be greater than or equal to 0",
            id="negative successes",
        ),
        pytest.param(
            {SUCCESS: [{"succeededCount": 1}] * 21},
            f"{SUCCESS}: Too many: 21: must have at most 20 items",
            id="too many rules of success",
        ),
    ],
)
def test_invalid_indexed_job_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(INDEXED, edits)), start)


@pytest.mark.parametrize("indexes", ["3", "1,0", "1-1", "2-1", "a", "0,", "-1", "0-"])
def test_invalid_succeeded_indexes_are_rejected(indexes: str) -> None:
    faults = validate(with_edits(INDEXED, {SUCCESS: [{"succeededIndexes": indexes}]}))
    assert begins(faults, f'{SUCCESS}[0].succeededIndexes: Invalid value: "{indexes}": error parsing succeededIndexes')


RESTART = "spec.template.spec.restartPolicy"


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({RESTART: GONE}, f'{RESTART}: Required value: valid values: "OnFailure", "Never"', id="missing"),
        pytest.param({RESTART: "Always"}, f"{RESTART}: Required value: valid values", id="always"),
        pytest.param({RESTART: "X"}, f'{RESTART}: Unsupported value: "X"', id="unknown"),
        pytest.param(
            {RESTART: "OnFailure", RULES: [{"action": "FailJob", "onExitCodes": CODES}]},
            f'{RESTART}: Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified',
            id="restart with failure policy",
        ),
        pytest.param(
            {"spec.podReplacementPolicy": "X"},
            'spec.podReplacementPolicy: Unsupported value: "X": supported values: "Failed", "TerminatingOrFailed"',
            id="no policy of replacement",
        ),
        pytest.param(
            {"spec.podReplacementPolicy": "TerminatingOrFailed", RULES: [{"action": "FailJob", "onExitCodes": CODES}]},
            'spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"',
            id="a replacement before the failure is known",
        ),
        pytest.param(
            {"spec.selector": {"matchLabels": {"a": "b"}}},
            'spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: `selector` not auto-generated',
            id="a selector without manualSelector",
        ),
        pytest.param({"spec.manualSelector": True}, "spec.selector: Required value", id="no selector"),
        pytest.param(
            {"spec.manualSelector": True, "spec.selector": {"matchLabels": {"a": "b"}}},
            "spec.template.metadata.labels: Invalid value: {}: `selector` does not match template `labels`",
            id="a selector of other pods",
        ),
        pytest.param(
            {"spec.manualSelector": True, "spec.selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
            "spec.template.metadata.labels: Invalid value: {}: `selector` does not match template `labels`",
            id="an expression for other pods",
        ),
        pytest.param(
            {"spec.template.metadata": {"labels": {"job-name": "other"}}},
            """spec.template.metadata.labels[job-name]: Invalid value: "other": must be 'job'""",
            id="pods of another Job",
        ),
        pytest.param(
            {"metadata.name": "a" * 64},
            f'spec.template.metadata.labels: Invalid value: "{"a" * 64}": must be no more than 63 characters',
            id="a name too long for the labels of its pods",
        ),
        pytest.param(
            {"spec.selector": {"matchLabels": {UID: "u"}}, "spec.template.metadata": {"labels": {UID: "v"}}},
            """spec.template.metadata.labels: Invalid value: {"controller-uid":"v"}: `selector` does not match""",
            id="labels of another Job",
        ),
        pytest.param({"spec.managedBy": "me"}, 'spec.managedBy: Invalid value: "me": must be a domain', id="manager"),
        pytest.param(
            {"spec.managedBy": f"a.io/{'b' * 60}"},
            "spec.managedBy: Too long: may not be more than 63 bytes",
            id="a long name of the manager",
        ),
        pytest.param(
            {"spec.template.spec.containers": []}, "spec.template.spec.containers: Required value", id="no containers"
        ),
    ],
)
def test_invalid_job_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(JOB, edits)), start)


@pytest.mark.parametrize(
    ("rule", "starts"),
    [
        pytest.param({"onExitCodes": CODES}, [".action: Required value: valid values"], id="no action"),
        pytest.param({"action": "X", "onExitCodes": CODES}, ['.action: Unsupported value: "X"'], id="unknown action"),
        pytest.param(
            {"action": "FailIndex", "onExitCodes": CODES},
            ['.action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set'],
            id="failing an index that does not fail alone",
        ),
        pytest.param(
            {"action": "Count"},
            [": Invalid value: specifying one of OnExitCodes and OnPodConditions is required"],
            id="no requirement",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": CODES, "onPodConditions": [{"type": "A"}]},
            [": Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"],
            id="two requirements",
        ),
        pytest.param(
            {"action": "Count", "onPodConditions": [{"type": "a b", "status": "X"}]},
            ['.onPodConditions[0].type: Invalid value: "a b"', '.onPodConditions[0].status: Unsupported value: "X"'],
            id="no condition",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "X", "values": [1]}},
            ['.onExitCodes.operator: Unsupported value: "X": supported values: "In", "NotIn"'],
            id="no operator",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "In", "values": []}},
            [".onExitCodes.values: Invalid value: []: at least one value is required"],
            id="no exit codes",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "In", "values": [0, 1]}},
            [".onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator"],
            id="success as a failure",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "In", "values": [1, 1]}},
            [".onExitCodes.values[1]: Duplicate value: 1"],
            id="an exit code twice",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [2, 1]}},
            [".onExitCodes.values: Invalid value: [2,1]: must be ordered"],
            id="exit codes out of order",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "In", "values": list(range(1, 257))}},
            [".onExitCodes.values: Too many: 256: must have at most 255 items"],
            id="too many exit codes",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {"operator": "In", "values": [0] * 256}},
            [".onExitCodes.values: Too many: 256: must have at most 255 items"],
            id="too many exit codes without checks of each",
        ),
        pytest.param(
            {"action": "Count", "onExitCodes": {**CODES, "containerName": "x"}},
            ['.onExitCodes.containerName: Invalid value: "x": must be one of the container or initContainer names'],
            id="exit codes of no container",
        ),
    ],
)
def test_invalid_failure_policy_rule_is_rejected(rule: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(JOB, {RULES: [rule]})), *(f"{RULES}[0]{start}" for start in starts))


def test_failure_policy_rule_over_20_conditions_is_rejected() -> None:
    rule = {"action": "Count", "onPodConditions": [{"type": "A"}] * 21}
    start = f"{RULES}[0].onPodConditions: Too many: 21: must have at most 20 items"
    assert begins(validate(with_edits(JOB, {RULES: [rule]})), start)


def test_max_failed_indexes_over_limit_is_rejected() -> None:
    edits = {"spec.completions": 200_000, "spec.backoffLimitPerIndex": 1, "spec.maxFailedIndexes": 100_001}
    starts = [
        f"spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to {n}" for n in (100000, 10000)
    ]
    assert begins(validate(with_edits(INDEXED, edits)), *starts)


def test_failure_policy_over_20_rules_is_rejected() -> None:
    rules = [{"action": "FailJob", "onExitCodes": CODES}] * 21
    assert begins(validate(with_edits(JOB, {RULES: rules})), f"{RULES}: Too many: 21: must have at most 20 items")


@pytest.mark.parametrize(
    ("old", "edits", "start"),
    [
        pytest.param(
            JOB, {"spec.completions": 2}, "spec.completions: Invalid value: 2: field is immutable", id="number"
        ),
        pytest.param(
            INDEXED,
            {"spec.completions": 4},
            "spec.completions: Invalid value: 4: can only be modified in tandem with spec.parallelism",
            id="the number of indexes alone",
        ),
        pytest.param(
            INDEXED,
            {"spec.completionMode": "NonIndexed"},
            'spec.completionMode: Invalid value: "NonIndexed": field is immutable',
            id="the mode",
        ),
        pytest.param(JOB, {"spec.managedBy": "a.io/b"}, "spec.managedBy: Invalid value", id="the manager"),
        pytest.param(
            FAILING, {"spec.podFailurePolicy": GONE}, "spec.podFailurePolicy: Invalid value: null", id="rules"
        ),
        pytest.param(
            JOB,
            {"spec.template.spec.nodeSelector": {"a": "b"}},
            "spec.template: Invalid value: {",
            id="where a running Job runs",
        ),
        pytest.param(
            with_edits(JOB, {"spec.suspend": True}),
            {"spec.template.spec.containers[0].image": "other"},
            "spec.template: Invalid value: {",
            id="what a suspended Job runs",
        ),
    ],
)
def test_immutable_job_fields_are_rejected_in_update(old: dict[str, Any], edits: dict[str, Any], start: str) -> None:
    assert begins(validate_update(with_edits(old, edits), old), start)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"spec.template.spec.nodeSelector": {"a": "b"}}, id="its nodes"),
        pytest.param({"spec.template.spec.tolerations": [{"operator": "Exists"}]}, id="what it tolerates"),
        pytest.param({"spec.template.metadata": {"labels": {"a": "b"}}}, id="labels"),
        pytest.param({"spec.template.spec.affinity": {"nodeAffinity": {}}}, id="node affinity"),
        pytest.param({"spec.template.spec.containers[0].resources": {"requests": {"cpu": "9"}}}, id="requests"),
        pytest.param({"spec.suspend": False, "spec.template.spec.nodeSelector": {"a": "b"}}, id="nodes at its start"),
        pytest.param({"spec.parallelism": 5}, id="parallelism"),
    ],
)
def test_scheduling_fields_of_suspended_job_are_mutable(edits: dict[str, Any]) -> None:
    old = with_edits(JOB, {"spec.suspend": True})
    assert validate_update(with_edits(old, edits), old) == []


def test_pod_affinity_of_suspended_job_is_immutable() -> None:
    term = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    old = with_edits(JOB, {"spec.suspend": True, "spec.template.spec.affinity": {"podAffinity": term}})
    moved = with_edits(old, {"spec.template.spec.affinity.nodeAffinity": {}})
    assert validate_update(moved, old) == []
    assert begins(
        validate_update(with_edits(moved, {"spec.template.spec.affinity.podAffinity": {}}), old), "spec.template: In"
    )


def test_node_selector_may_change_in_update_that_suspends_job() -> None:
    new = with_edits(JOB, {"spec.suspend": True, "spec.template.spec.nodeSelector": {"a": "b"}})
    assert validate_update(new, JOB) == []


@pytest.mark.parametrize("before", [2, 3])
def test_indexed_job_completions_may_change_with_parallelism(before: int) -> None:
    old = with_edits(INDEXED, {"spec.parallelism": before})
    assert validate_update(with_edits(old, {"spec.parallelism": 5, "spec.completions": 5}), old) == []


def test_succeeded_indexes_over_64_kib_are_rejected() -> None:
    listed = ",".join(map(str, range(0, 30_000, 2)))
    faults = validate(with_edits(INDEXED, {"spec.completions": 30_000, SUCCESS: [{"succeededIndexes": listed}]}))
    assert begins(faults, f"{SUCCESS}[0].succeededIndexes: Too long: may not be more than 65536 bytes")
