"""Validation of JobSets."""

from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.manifests import decode
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

JOBS = "spec.replicatedJobs"
POD = f"{JOBS}[0].template.spec.template"
RULES = "spec.failurePolicy.rules"
COORDINATOR = "spec.coordinator"
RAW = make.jobset(queue=None, replicated_jobs=[make.replicated_job("driver"), make.replicated_job("worker", 2)])
JOBSET = with_edits(with_defaults(RAW), {"spec.suspend": False})
NINETEEN = [{**JOBSET["spec"]["replicatedJobs"][0], "name": f"job{number}"} for number in range(19)]
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
QUEUED = {"kueue.x-k8s.io/queue-name": "q"}
CLAIM = {"templates": [{"metadata": {"name": "disk"}, "spec": {}}]}
CLAIMED = with_edits(
    JOBSET,
    {
        "spec.volumeClaimPolicies": [CLAIM],
        f"{POD}.spec.containers[0].volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
    },
)


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(JOBSET, id="as it is"),
        pytest.param(with_defaults(make.jobset()), id="of one Job"),
        pytest.param(
            with_edits(JOBSET, {f"{JOBS}[1].dependsOn": [{"name": "driver", "status": "Ready"}]}), id="in turn"
        ),
        pytest.param(with_edits(JOBSET, {f"{JOBS}[1].replicas": 0}), id="of no replicas"),
        pytest.param(
            with_edits(JOBSET, {f"{JOBS}[1].template.spec.{f}": GONE for f in ("parallelism", "completions")}),
            id="without parallelism and completions",
        ),
        pytest.param(with_edits(JOBSET, {"spec.network.subdomain": "net"}), id="in a subdomain"),
        pytest.param(with_edits(JOBSET, {"spec.managedBy": "a.io/b"}), id="managed elsewhere"),
        pytest.param(
            with_edits(JOBSET, {"spec.successPolicy.targetReplicatedJobs": ["worker"]}),
            id="success of a single replicatedJob",
        ),
        pytest.param(with_edits(JOBSET, {COORDINATOR: {"replicatedJob": "worker", "jobIndex": 1}}), id="coordinated"),
        pytest.param(
            with_edits(
                JOBSET, {RULES: [{"name": "r", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}]}
            ),
            id="with rules of failure",
        ),
        pytest.param(CLAIMED, id="with a disk"),
        pytest.param(with_edits(JOBSET, {JOBS: []}), id="without jobs, not queued"),
        pytest.param(
            with_edits(JOBSET, {"metadata.name": GONE, "metadata.generateName": "set-"}), id="with a generated name"
        ),
    ],
)
def test_valid_jobset_is_accepted(obj: dict[str, Any]) -> None:
    assert validate(obj) == []
    assert validate_update(obj, obj) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {f"{JOBS}[0].dependsOn": [{"name": "worker", "status": "Ready"}]},
            f"{JOBS}[0].dependsOn: Forbidden: DependsOn can't be set for the first ReplicatedJob",
            id="the first waits",
        ),
        pytest.param(
            {f"{JOBS}[1].dependsOn": [{"name": "later", "status": "Ready"}]},
            f'{JOBS}[1].dependsOn[0].name: Invalid value: "later": '
            "replicatedJob: worker cannot depend on replicatedJob: later",
            id="dependency on a missing job",
        ),
        pytest.param(
            {
                f"{JOBS}[1].dependsOn": [{"name": "driver", "status": "Ready"}],
                "spec.startupPolicy.startupPolicyOrder": "InOrder",
            },
            'spec: Invalid value: "object": StartupPolicy and DependsOn APIs are mutually exclusive',
            id="two orders",
        ),
        pytest.param({f"{JOBS}[1].name": "driver"}, f'{JOBS}[1].name: Duplicate value: "driver"', id="a name twice"),
        pytest.param(
            {f"{JOBS}[0].groupName": "A"},
            f'{JOBS}[0].groupName: Invalid value: "A": a DNS-1035 label must consist of',
            id="no group",
        ),
        pytest.param(
            {f"{JOBS}[0].groupName": "a" * 64},
            f'{JOBS}[0].groupName: Invalid value: "{"a" * 64}": .spec.replicatedJob[].groupName is too long',
            id="a long group",
        ),
        pytest.param(
            {f"{JOBS}[0].name": "a" * 58},
            f'{JOBS}[0].name: Invalid value: "js-{"a" * 58}-0-0-abcde": JobSet name is too long, pod names',
            id="pods of long names",
        ),
        pytest.param(
            {f"{JOBS}[0].name": "a" * 60},
            f'{JOBS}[0].name: Invalid value: "js-{"a" * 60}-0": JobSet name is too long, job names generated',
            id="Jobs of long names",
        ),
        pytest.param(
            {f"{JOBS}[0].replicas": 2**16, f"{JOBS}[0].template.spec.parallelism": 2**15},
            f"{JOBS}[0].replicas: Invalid value: 65536: the product of replicas and parallelism must not exceed "
            "2147483647 for replicatedJob 'driver'",
            id="more pods than can be counted",
        ),
        pytest.param(
            {"spec.network.subdomain": "a" * 64},
            f'spec.network.subdomain: Invalid value: "{"a" * 64}": .spec.network.subdomain is too long',
            id="a long subdomain",
        ),
        pytest.param(
            {"spec.network.subdomain": "1a"},
            'spec.network.subdomain: Invalid value: "1a": a DNS-1035 label',
            id="no subdomain",
        ),
        pytest.param({"spec.managedBy": "me"}, 'spec.managedBy: Invalid value: "me": must be', id="no manager"),
        pytest.param(
            {"spec.managedBy": f"a.io/{'b' * 60}"},
            "spec.managedBy: Too long: may not be more than 63",
            id="long manager",
        ),
        pytest.param(
            {"spec.successPolicy.targetReplicatedJobs": ["x"]},
            "spec.successPolicy.targetReplicatedJobs[0]: "
            "Invalid value: \"x\": invalid replicatedJob name 'x' does not appear in .spec.ReplicatedJobs",
            id="success of a missing replicatedJob",
        ),
        pytest.param({f"{POD}.spec.containers": []}, f"{POD}.spec.containers: Required value", id="no containers"),
        pytest.param(
            {f"{JOBS}[0].template.spec.completions": GONE},
            f"{JOBS}[0].template.spec.completions: Required value: when completion mode is Indexed",
            id="no number of indexes",
        ),
        pytest.param(
            {f"{JOBS}[0].template.metadata": {"labels": {"a": "b c"}}},
            f'{JOBS}[0].template.metadata.labels: Invalid value: "b c": a valid label',
            id="no label of a Job",
        ),
        pytest.param(
            {"metadata.annotations": {EXCLUSIVE: ""}},
            f"metadata.annotations[{EXCLUSIVE}]: Required value: can not be empty",
            id="empty exclusive topology",
        ),
        pytest.param(
            {f"{JOBS}[1].template.metadata": {"annotations": {EXCLUSIVE: "a b"}}},
            f'{JOBS}[1].template.metadata.annotations[{EXCLUSIVE}]: Invalid value: "a b": name part must consist',
            id="invalid exclusive topology",
        ),
        pytest.param(
            {"metadata.labels": QUEUED, JOBS: []},
            f"{JOBS}: Required value: a JobSet in a queue needs at least one replicatedJob",
            id="queued without jobs",
        ),
        pytest.param(
            {"metadata.labels": QUEUED, JOBS: NINETEEN},
            f"{JOBS}: Too many: 19: must have at most 18 items",
            id="queued with too many jobs",
        ),
    ],
)
def test_invalid_jobset_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(JOBSET, edits)), start)


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        pytest.param(
            {"name": "1"},
            "[0].name: Invalid value: \"1\": invalid failure policy rule name '1', a failure",
            id="no name",
        ),
        pytest.param(
            {"name": "a" * 129},
            f'[0].name: Invalid value: "{"a" * 129}": invalid failure policy rule name of length 129',
            id="a long name",
        ),
        pytest.param(
            {"action": "RestartJob"},
            "[0].action: Forbidden: RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not",
            id="an action that is off",
        ),
        pytest.param(
            {"targetReplicatedJobs": ["x"]},
            "[0].targetReplicatedJobs[0]: Invalid value: \"x\": invalid replicatedJob name 'x' in failure policy",
            id="missing replicatedJob",
        ),
        pytest.param(
            {"onJobFailureReasons": ["x"]},
            "[0].onJobFailureReasons[0]: Invalid value: \"x\": invalid job failure reason 'x' in failure policy",
            id="no reason",
        ),
    ],
)
def test_invalid_failure_policy_rule_is_rejected(rule: dict[str, Any], start: str) -> None:
    faults = validate(with_edits(JOBSET, {RULES: [{"name": "r", "action": "FailJobSet", **rule}]}))
    assert begins(faults, f"{RULES}{start}")


def test_failure_policy_rule_without_name_gets_default_name() -> None:
    """The CRD requires a name, but webhooks run first; JobSet's examples omit the name."""
    decoded = decode(with_edits(RAW, {RULES: [{"action": "FailJobSet"}]}))
    assert decoded.faults == []
    assert decoded.obj is not None
    assert [rule["name"] for rule in decoded.obj["spec"]["failurePolicy"]["rules"]] == ["failurePolicyRule0"]


def test_duplicate_failure_policy_rule_name_is_rejected() -> None:
    rule = {"name": "r", "action": "FailJobSet"}
    message = "rule names are not unique, rules with indices [0 1] all have the same name 'r'"
    assert begins(
        validate(with_edits(JOBSET, {RULES: [rule, rule]})), f'{RULES}[1].name: Invalid value: "r": {message}'
    )


def test_in_place_restart_strategy_is_rejected() -> None:
    faults = validate(with_edits(JOBSET, {"spec.failurePolicy.restartStrategy": "InPlaceRestart"}))
    assert begins(
        faults, "spec.failurePolicy.restartStrategy: Forbidden: InPlaceRestart restart strategy cannot be set"
    )


@pytest.mark.parametrize(
    ("coordinator", "edits", "start"),
    [
        pytest.param(
            {"replicatedJob": "x"}, {}, '.replicatedJob: Invalid value: "x": coordinator replicatedJob x', id="no"
        ),
        pytest.param(
            {"replicatedJob": "worker", "jobIndex": 2},
            {},
            ".jobIndex: Invalid value: 2: coordinator job index 2 is invalid for replicatedJob worker",
            id="no Job",
        ),
        pytest.param(
            {"replicatedJob": "worker", "podIndex": 1},
            {},
            ".podIndex: Invalid value: 1: coordinator pod index 1 is invalid for replicatedJob worker job index 0",
            id="no pod",
        ),
        pytest.param(
            {"replicatedJob": "worker"},
            {f"{JOBS}[1].template.spec.completionMode": "NonIndexed"},
            '.replicatedJob: Invalid value: "worker": job for coordinator pod must be indexed completion mode',
            id="no index",
        ),
        pytest.param(
            {"replicatedJob": "worker"},
            {"spec.network.subdomain": "a" * 60},
            f': Invalid value: "js-worker-0-0.{"a" * 60}": spec will lead to invalid label value',
            id="a long endpoint",
        ),
    ],
)
def test_invalid_coordinator_is_rejected(coordinator: dict[str, Any], edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(JOBSET, {**edits, COORDINATOR: coordinator})), f"{COORDINATOR}{start}")


CLAIMS = "spec.volumeClaimPolicies[0]"


@pytest.mark.parametrize(
    ("edits", "starts"),
    [
        pytest.param(
            {f"{CLAIMS}.templates[0].metadata.namespace": "x"},
            [f'{CLAIMS}: Invalid value: "object": namespace cannot be set for VolumeClaimPolicies templates'],
            id="in another namespace",
        ),
        pytest.param(
            {f"{CLAIMS}.templates": CLAIM["templates"] * 2},
            [f'{CLAIMS}.templates[1].metadata.name: Invalid value: "disk": names must be unique'],
            id="twice",
        ),
        pytest.param(
            {"metadata.name": "a" * 40, f"{POD}.spec.volumes": [{"name": "disk", "emptyDir": {}}]},
            [f'{POD}.spec.volumes[0].name: Invalid value: "disk": volume name conflicts with VolumeClaimPolicy'],
            id="named as a volume",
        ),
        pytest.param(
            {f"{POD}.spec.containers[0].volumeMounts": []},
            [f"{JOBS}: Invalid value: replicatedJob containers don't have a matching volumeMount: disk from Volume"],
            id="not mounted",
        ),
    ],
)
def test_invalid_volume_claim_policy_is_rejected(edits: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(CLAIMED, edits)), *starts)


def test_invalid_claim_template_name_is_rejected() -> None:
    policy = {"templates": [{"metadata": {"name": "A"}, "spec": {}}]}
    mounts = [{"name": "A", "mountPath": "/disk"}]
    obj = with_edits(JOBSET, {"spec.volumeClaimPolicies": [policy], f"{POD}.spec.containers[0].volumeMounts": mounts})
    assert begins(validate(obj), f'{CLAIMS}.templates[0].metadata.name: Invalid value: "A": a lowercase RFC 1123')


def test_long_claim_template_name_is_rejected() -> None:
    name = "d" * 61
    policy = {"templates": [{"metadata": {"name": name}, "spec": {}}]}
    mounts = [{"name": name, "mountPath": "/disk"}]
    obj = with_edits(JOBSET, {"spec.volumeClaimPolicies": [policy], f"{POD}.spec.containers[0].volumeMounts": mounts})
    message = "VolumeClaimPolicies template name is too long"
    assert begins(validate(obj), f'{CLAIMS}.templates[0].metadata.name: Invalid value: "{name}": {message}')


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {"spec.successPolicy": {"operator": "Any"}},
            'spec.successPolicy: Invalid value: "object": Value is immutable',
            id="the success policy",
        ),
        pytest.param(
            {"spec.network.subdomain": "net"},
            'spec.network: Invalid value: "object": Value is immutable',
            id="the network",
        ),
        pytest.param({"spec.managedBy": "a.io/b"}, 'spec.managedBy: Invalid value: "a.io/b"', id="the manager"),
        pytest.param({f"{JOBS}[1].replicas": 3}, f"{JOBS}: Invalid value: [", id="replicas"),
        pytest.param({f"{POD}.spec.nodeSelector": {"a": "b"}}, f"{JOBS}: Invalid value: [", id="nodes while it runs"),
        pytest.param(
            {"spec.suspend": True, f"{POD}.spec.containers[0].image": "x"},
            f"{JOBS}: Invalid value: [",
            id="what it runs",
        ),
    ],
)
def test_immutable_jobset_fields_are_rejected_in_update(edits: dict[str, Any], start: str) -> None:
    assert begins(validate_update(with_edits(JOBSET, edits), JOBSET), start)


def test_volume_claim_policies_are_immutable() -> None:
    new = with_edits(CLAIMED, {f"{CLAIMS}.retentionPolicy": {"whenDeleted": "Retain"}})
    start = 'spec.volumeClaimPolicies: Invalid value: "array": Value is immutable'
    assert begins(validate_update(new, CLAIMED), start)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"spec.suspend": True}, id="it is suspended"),
        pytest.param({"spec.suspend": True, f"{POD}.spec.nodeSelector": {"a": "b"}}, id="nodes"),
        pytest.param({"spec.suspend": True, f"{POD}.spec.tolerations": [{"operator": "Exists"}]}, id="tolerations"),
        pytest.param({"spec.suspend": True, f"{POD}.metadata": {"labels": {"a": "b"}}}, id="labels of pods"),
        pytest.param({"metadata.labels": {"a": "b"}}, id="labels"),
        pytest.param({"spec.ttlSecondsAfterFinished": 9}, id="TTL"),
    ],
)
def test_mutable_jobset_fields_are_accepted_in_update(edits: dict[str, Any]) -> None:
    assert validate_update(with_edits(JOBSET, edits), JOBSET) == []
