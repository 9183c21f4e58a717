"""Kueue's Configuration file: accepted fields of each version, and reported faults."""

import pytest

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.api.scheme import CONFIGURATION, kind_info

NEW = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
OLD = NEW.replace("v1beta2", "v1beta1")
BOTH = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
#: The configuration in Kueue's release manifests.
RELEASED = """\
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
webhook: {port: 9443}
leaderElection: {leaderElect: true, resourceName: c1f6bfd2.kueue.x-k8s.io}
controller: {groupKindConcurrency: {Job.batch: 5, Pod: 5}}
clientConnection: {qps: 300, burst: 500}
integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset, pod, deployment]}
"""


def faults(text: str) -> list[str]:
    """Return the lines of the fault report for a text."""
    with pytest.raises(InvalidConfiguration) as raised:
        read_configuration("kueue.yaml", text)
    return str(raised.value).splitlines()


def gates(found: Obj) -> dict[str, bool]:
    return dict(found.get("featureGates") or {})


def test_missing_configuration_fields_get_kueue_defaults() -> None:
    result = read_configuration("kueue.yaml", NEW + RELEASED)
    assert result["waitForPodsReady"] == {
        "timeout": "30m",
        "blockAdmission": False,
        "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 60, "backoffMaxSeconds": 3600},
    }
    assert "fairSharing" not in result


def test_v1beta1_wait_for_pods_ready_is_off_by_default_with_own_defaults() -> None:
    silent, on = (read_configuration("k", OLD + more) for more in ("", "waitForPodsReady: {enable: true}\n"))
    assert silent["apiVersion"] == kind_info(CONFIGURATION).api_version
    assert gates(silent) == {"DisableWaitForPodsReady": True}
    assert gates(on) == {}
    assert (on["waitForPodsReady"]["timeout"], on["waitForPodsReady"]["blockAdmission"]) == ("5m", True)


@pytest.mark.parametrize(
    ("stated", "strategies"),
    [
        ("{enable: false}", None),
        ("{enable: true}", BOTH),
        ("{enable: true, preemptionStrategies: [LessThanInitialShare]}", BOTH[1:]),
    ],
)
def test_v1beta1_fair_sharing_switch_sets_strategies(stated: str, strategies: list[str] | None) -> None:
    result = read_configuration("k", f"{OLD}fairSharing: {stated}\n").get("fairSharing")
    assert result == (None if strategies is None else {"preemptionStrategies": strategies})


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("waitForPodReady: {}", "waitForPodReady: unknown field; did you mean waitForPodsReady?"),
        ("waitForPodsReady: {timeout: soon}", "waitForPodsReady.timeout: Invalid value: 'soon' is not a duration"),
        ("waitForPodsReady: {timeout: 5}", "waitForPodsReady.timeout: Invalid value"),
        ("waitForPodsReady: {requeuingStrategy: {timestamp: Never}}", "waitForPodsReady.requeuingStrategy.timestamp"),
        ("waitForPodsReady: {requeuingStrategy: {backoffLimitCount: -1}}", "waitForPodsReady.requeuingStrategy.back"),
        ("fairSharing: {}", "fairSharing.preemptionStrategies: Required value: must be specified; use ["),
        ("fairSharing: {preemptionStrategies: [Fair]}", "fairSharing.preemptionStrategies: Unsupported value"),
        ("featureGates: {DisableWaitForPodReady: true}", "featureGates: Invalid value: "),
        ("integrations: {frameworks: [batch/jobs]}", 'integrations.frameworks[0]: Unsupported value: "batch/jobs"'),
        ("integrations: {frameworks: [pod, pod]}", 'integrations.frameworks[1]: Duplicate value: "pod"'),
        ("resources: {transformations: [{input: pods}]}", "resources.transformations[0].input: Invalid value: "),
        (
            "resources: {transformations: [{input: a, multiplyBy: pods}]}",
            'resources.transformations[0].multiplyBy: Invalid value: "pods": the key is reserved for internal kueue',
        ),
        (
            "resources: {transformations: [{input: a, outputs: {pods: 1}}]}",
            "resources.transformations[0].outputs[pods]",
        ),
        ("resources: {transformations: [{input: a}, {input: a}]}", "resources.transformations[1]: Duplicate value"),
        (
            "resources: {transformations: [{input: a, strategy: Drop}]}",
            'resources.transformations[0].strategy: Unsupported value: "Drop": supported values: "Retain", "Replace"',
        ),
        ("metrics: {customLabels: [{name: 1a}]}", "metrics.customLabels[0].name: Invalid value: "),
        ("metrics: {customLabels: [{name: a_}]}", "metrics.customLabels[0].name: Invalid value: "),
        ("metrics: {customLabels: [{name: a}, {name: a}]}", "metrics.customLabels[1].name: Duplicate value: "),
        (
            "metrics: {customLabels: [{name: a, sourceKind: Workload}]}",
            "metrics.customLabels[0].trackedValues: Invalid value: []: must not be empty when sourceKind is",
        ),
        (
            "metrics: {customLabels: [{name: a, sourceLabelKey: b, sourceAnnotationKey: c}]}",
            "metrics.customLabels[0]: Invalid value: ",
        ),
        (
            f"metrics: {{customLabels: [{', '.join(f'{{name: l{n}}}' for n in range(7))}]}}",
            "metrics.customLabels: Invalid value: ",
        ),
        (
            "metrics: {localQueueMetrics: {localQueueSelector: {matchLabels: {a/b/c: d}}}}",
            "metrics.localQueueMetrics.localQueueSelector.matchLabels: Invalid value: ",
        ),
        ("leaderElection: {leaderElection: true}", "leaderElection.leaderElection: unknown field"),
    ],
)
def test_configuration_fault_is_reported_with_line_and_remedy(line: str, reported: str) -> None:
    (result,) = faults(f"{NEW}# more\n{line}\n")
    assert result.startswith(f"kueue.yaml:4: {reported}")
    assert "; " in result


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("waitForPodsReady: {enable: false}", "to disable it, set featureGates: {DisableWaitForPodsReady: true}"),
        (
            "fairSharing: {enable: true, preemptionStrategies: [LessThanInitialShare]}",
            "to disable it, remove fairSharing",
        ),
    ],
)
def test_v1beta1_switch_in_v1beta2_is_rejected_with_replacement(line: str, remedy: str) -> None:
    (result,) = faults(NEW + line)
    assert "unknown field; v1beta2 does not have this field" in result
    assert result.endswith(remedy)


def test_all_configuration_faults_are_reported_together() -> None:
    assert len(faults(NEW + "foo: 1\nbar: 2\nwaitForPodsReady: {timeout: soon}\n")) == 3


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "kueue.yaml: the file is empty"),
        (f"{NEW}---\n{NEW}", "kueue.yaml: the file has 2 YAML documents"),
        ("apiVersion: v1\nkind: ConfigMap\n", "kueue.yaml:2: kind: ConfigMap is not the kind of a Kueue Configuration"),
        ("kind: Configuration\n", "kueue.yaml:1: apiVersion: Required value"),
        (
            "apiVersion: config.kueue.x-k8s.io/v1\nkind: Configuration\n",
            'kueue.yaml:1: apiVersion: "config.kueue.x-k8s.io/v1" has no kind',
        ),
        ("a: [", "kueue.yaml:1: "),
        (f"{NEW}health:\n  a: b: c\n", "kueue.yaml:4: mapping values are not allowed"),
    ],
)
def test_invalid_configuration_file_is_rejected(text: str, reported: str) -> None:
    (result,) = faults(text)
    assert result.startswith(reported)
