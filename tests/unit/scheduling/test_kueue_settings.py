"""Kueue's Configuration: settings used in decisions, and ignored or unsupported settings."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.kueue_configuration import InvalidConfiguration, complete_configuration, read_configuration
from batchyard.api.meta import Obj
from batchyard.api.validation.feature_gates import GATE_DEPENDENCIES
from batchyard.api.well_known import GATES
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.fair_sharing.admission_fair_sharing import AdmissionFairSharing
from batchyard.scheduling.kueue_configuration import (
    KueueSettings,
    decision_fields,
    deployment_fields,
    ignored_settings,
    managed_namespaces,
    parse_kueue_settings,
    unsupported_field_errors,
    unsupported_fields,
)
from batchyard.scheduling.kueue_gates import GATE_RULES, GateEffect
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.resource_charging import ResourceRules, ResourceTransformation
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp


def configuration(*lines: str) -> Obj:
    head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    return read_configuration("k", head + "\n".join(lines))


def test_empty_configuration_has_defaults_of_kueue() -> None:
    assert parse_kueue_settings(configuration()) == KueueSettings()
    assert KueueSettings().pods_ready == PodsReadyPolicy(timeout=30 * MINUTE)
    assert parse_kueue_settings(configuration("waitForPodsReady: {timeout: 0s}")).pods_ready == PodsReadyPolicy(
        timeout=30 * MINUTE
    )


def test_wait_for_pods_ready_is_parsed() -> None:
    strategy = "{timestamp: Creation, backoffLimitCount: 3, backoffBaseSeconds: 5, backoffMaxSeconds: 50}"
    waits = f"{{timeout: 90s, recoveryTimeout: 0s, blockAdmission: true, requeuingStrategy: {strategy}}}"
    assert parse_kueue_settings(configuration(f"waitForPodsReady: {waits}")).pods_ready == PodsReadyPolicy(
        90 * SECOND, 0, True, RequeuingTimestamp.CREATION, 3, 5 * SECOND, 50 * SECOND
    )


def test_feature_gate_disables_wait_for_pods_ready() -> None:
    line = "waitForPodsReady: {timeout: 5m}"
    assert parse_kueue_settings(configuration(line, "featureGates: {DisableWaitForPodsReady: true}")).pods_ready is None
    assert (
        parse_kueue_settings(configuration(line, "featureGates: {DisableWaitForPodsReady: false}")).pods_ready
        is not None
    )


def test_fair_sharing_uses_configured_strategies() -> None:
    fair = parse_kueue_settings(configuration("fairSharing: {preemptionStrategies: [LessThanInitialShare]}")).policy
    assert fair == SchedulingPolicy(fair_sharing=True, preemption_strategies=(FairSharingStrategy.INITIAL_SHARE,))
    assert parse_kueue_settings(configuration()).policy.fair_strategies == ()
    assert KueueSettings().with_fair_sharing().policy.fair_strategies == tuple(FairSharingStrategy)


@pytest.mark.parametrize(
    "lines",
    [
        ("namespace: kueue",),
        ("managedJobsNamespaceSelector: {matchLabels: {batch: x}}", "namespace: kueue"),
        ("waitForPodsReady: {timeout: 5m}", "integrations: {labelKeysToCopy: [team]}"),
        ("fairSharing: {preemptionStrategies: [LessThanInitialShare]}",),
        ("manageJobsWithoutQueueName: true",),
        ("integrations: {frameworks: [batch/job], externalFrameworks: [AppWrapper.v1beta2.workload.codeflare.dev]}",),
        ("featureGates: {DisableWaitForPodsReady: true}", "metrics: {bindAddress: ':8443'}"),
        ("resources: {transformations: [{input: a, outputs: {b: 1}}]}",),
        ("resources: {quotaCheckStrategy: IgnoreUndeclared}",),
        ("admissionFairSharing: {usageHalfLifeTime: 1h}", "featureGates: {AdmissionFairSharing: true}"),
    ],
)
def test_decision_fields_keep_all_settings(lines: tuple[str, ...]) -> None:
    whole = configuration(*lines)
    settings = parse_kueue_settings(whole)
    assert settings != KueueSettings()
    reduced = decision_fields(whole)
    assert parse_kueue_settings(complete_configuration(reduced)) == settings
    assert "metrics" not in reduced


def test_deployment_fields_are_listed() -> None:
    result = configuration(
        *("namespace: kueue", "webhook: {port: 9443}", "metrics: {bindAddress: ':8443'}"),
        "waitForPodsReady: {timeout: 1m}",
    )
    assert list(deployment_fields(result)) == ["metrics.bindAddress", "webhook"]
    assert [*unsupported_fields(result), *ignored_settings(result)] == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("multiKueue: {origin: here}", "multiKueue"),
        (
            "featureGates: {FlavorFungibility: false, FlavorFungibilityPreserveScanProgress: false}",
            "featureGates.FlavorFungibility",
        ),
        (
            "resources: {deviceClassMappings: [{name: example.com/gpu, deviceClassNames: [gpu]}]}",
            "resources.deviceClassMappings",
        ),
    ],
)
def test_unsupported_setting_is_rejected(line: str, path: str) -> None:
    (fault,) = unsupported_field_errors(configuration(line))
    assert (fault.path, fault.remedy) == (path, "remove the field")


def test_resource_rules_are_parsed() -> None:
    transformation = "{input: gpu, strategy: Replace, multiplyBy: cpu, outputs: {credits: 500m}}"
    line = f"resources: {{excludeResourcePrefixes: [a/], transformations: [{transformation}]}}"
    transformations = (ResourceTransformation("gpu", (("credits", 500_000_000),), False, "cpu"),)
    assert parse_kueue_settings(configuration(line)).resources == ResourceRules(("a/",), transformations)
    allowance = configuration("resources: {transformations: [{input: gpu, outputs: {free: '-2', bytes: 5Ki}}]}")
    (negative,) = parse_kueue_settings(allowance).resources.transformations
    assert negative == ResourceTransformation("gpu", (("free", -2 * 10**9), ("bytes", 5120 * 10**9)))
    ignoring = "resources: {quotaCheckStrategy: IgnoreUndeclared}"
    assert parse_kueue_settings(configuration(ignoring)).resources.ignores_undeclared
    off = "featureGates: {QuotaCheckStrategy: false}"
    assert not parse_kueue_settings(configuration(ignoring, off)).resources.ignores_undeclared


@pytest.mark.parametrize(
    "line",
    [
        "manageJobsWithoutQueueName: true",
        "resources: {quotaCheckStrategy: BlockUndeclared}",
        "featureGates: {FlavorFungibility: true, PriorityBoost: false}",
    ],
)
def test_explicit_default_is_accepted(line: str) -> None:
    assert list(unsupported_field_errors(configuration(line))) == []


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}", []),
        ("featureGates: {VisibilityOnDemand: true}", []),
        ("featureGates: {VisibilityOnDemand: false, PartialAdmission: false}", ["featureGates VisibilityOnDemand"]),
    ],
)
def test_ignored_settings_are_listed(line: str, reported: list[str]) -> None:
    assert list(ignored_settings(configuration(line))) == reported


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("integrations: {frameworks: [batch/job]}", (scheme.JOB,)),
        ("integrations: {frameworks: [jobset.x-k8s.io/jobset, pod]}", (scheme.JOB_SET, scheme.POD)),
        ("integrations: {frameworks: [kubeflow.org/mpijob]}", ("MPIJob.kubeflow.org",)),
        ("integrations: {frameworks: [statefulset]}", (scheme.STATEFUL_SET, scheme.POD)),
        ("integrations: {frameworks: [pod, deployment]}", (scheme.POD, scheme.DEPLOYMENT)),
        ("integrations: {labelKeysToCopy: [team]}", tuple(scheme.JOB_FRAMEWORKS.values())),
        ("featureGates: {SparkApplicationIntegration: false}", tuple(scheme.JOB_FRAMEWORKS.values())[:-1]),
    ],
)
def test_frameworks_enable_kinds_of_jobs(line: str, kinds: tuple[str, ...]) -> None:
    assert parse_kueue_settings(configuration(line)).managed_jobs.kinds == kinds


def test_spark_integration_requires_its_gate() -> None:
    line = "integrations: {frameworks: [batch/job, sparkoperator.k8s.io/sparkapplication]}"
    (error,) = unsupported_field_errors(configuration(line))
    assert error.path == "integrations.frameworks[1]"
    assert error.problem == (
        "sparkoperator.k8s.io/sparkapplication integration is alpha feature. please enable SparkApplicationIntegration "
        "featuregate"
    )
    text = f"{line}\nfeatureGates: {{SparkApplicationIntegration: true}}"
    assert list(unsupported_field_errors(configuration(text))) == []


def test_labels_of_kueue_are_not_copied_from_jobs() -> None:
    line = "integrations: {labelKeysToCopy: [team, kueue.x-k8s.io/multikueue-origin]}"
    assert parse_kueue_settings(configuration(line)).copied_labels == ("team",)


WORKLOAD_LABELS = (
    "metrics: {customLabels: [{name: tier}, {name: team, sourceKind: Workload, trackedValues: [a]}, "
    "{name: center, sourceKind: Workload, sourceAnnotationKey: cost/center, trackedValues: [b]}]}"
)


@pytest.mark.parametrize(
    ("is_enabled", "copied"), [("true", (("zone", "team"), ("cost/center",))), ("false", (("zone",), ()))]
)
def test_sources_of_custom_labels_of_workloads_are_copied_from_jobs(is_enabled: str, copied: object) -> None:
    gate = f"featureGates: {{CustomMetricLabels: {is_enabled}}}"
    result = configuration(gate, WORKLOAD_LABELS, "integrations: {labelKeysToCopy: [zone]}")
    settings = parse_kueue_settings(result)
    assert (settings.copied_labels, settings.copied_annotations) == copied
    assert list(unsupported_fields(result)) == []


def test_custom_labels_of_workloads_are_part_of_recorded_configuration() -> None:
    recorded = decision_fields(configuration(WORKLOAD_LABELS))
    assert [label["name"] for label in recorded["metrics"]["customLabels"]] == ["team", "center"]
    assert "metrics" not in decision_fields(configuration("metrics: {customLabels: [{name: tier}]}"))


def test_managed_jobs_are_parsed() -> None:
    external = "integrations: {externalFrameworks: [AppWrapper.v1beta2.workload.codeflare.dev]}"
    result = parse_kueue_settings(configuration("manageJobsWithoutQueueName: true", external)).managed_jobs
    kinds = tuple(scheme.JOB_FRAMEWORKS.values())
    app_wrapper = ("workload.codeflare.dev/v1beta2", "AppWrapper")
    assert result == ManagedJobs(managed_namespaces(), True, kinds, (app_wrapper,))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("admissionFairSharing: {}",), AdmissionFairSharing(0, 5 * MINUTE)),
        (
            ("admissionFairSharing: {usageHalfLifeTime: 168h, usageSamplingInterval: 0s, resourceWeights: {cpu: 2}}",),
            AdmissionFairSharing(168 * HOUR, 5 * MINUTE, {"cpu": 2.0}),
        ),
        (("admissionFairSharing: {}", "featureGates: {AdmissionFairSharing: false}"), None),
        (
            ("admissionFairSharing: {}", "featureGates: {AdmissionFairSharingAnchorAtQuotaReservation: true}"),
            AdmissionFairSharing(0, is_anchored_at_reservation=True),
        ),
        (("namespace: kueue",), None),
    ],
)
def test_admission_fair_sharing_is_read(lines: tuple[str, ...], expected: AdmissionFairSharing | None) -> None:
    assert parse_kueue_settings(configuration(*lines)).admission_fair_sharing == expected
    assert [*ignored_settings(configuration(*lines))] == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("admissionFairSharing: {usageHalfLifeTime: -1s}",), "admissionFairSharing.usageHalfLifeTime"),
        (("admissionFairSharing: {usageSamplingInterval: -1s}",), "admissionFairSharing.usageSamplingInterval"),
        (
            ("admissionFairSharing: {resourceWeights: {cpu: -0.5}}",),
            "admissionFairSharing.resourceWeights[cpu]: Invalid value: -0.5: must be greater than or equal to 0",
        ),
        (
            (
                "admissionFairSharing: {}",
                "featureGates: {AdmissionFairSharing: false, AdmissionFairSharingAnchorAtQuotaReservation: true}",
            ),
            "AdmissionFairSharingAnchorAtQuotaReservation requires AdmissionFairSharing",
        ),
    ],
)
def test_invalid_admission_fair_sharing_is_rejected(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        configuration(*lines)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("managedJobsNamespaceSelector: {matchLabels: {}}",), 'should not match the "kube-system" namespace'),
        (
            ("managedJobsNamespaceSelector: {matchLabels: {kubernetes.io/metadata.name: batch}}", "namespace: batch"),
            'should not match the "batch" namespace',
        ),
        (("integrations: {externalFrameworks: [AppWrapper.v1beta2]}",), "must be format, 'Kind.version.group.com'"),
        (("integrations: {externalFrameworks: [Job.v1.batch]}",), 'Duplicate value: "Job.v1.batch"'),
    ],
)
def test_invalid_selection_of_jobs_is_rejected(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        configuration(*lines)


UNSCHEDULED_GATE = "featureGates: {WaitForPodsReadyUnscheduledTimeout: true}"


def test_timeouts_of_feature_gates_are_parsed() -> None:
    result = parse_kueue_settings(configuration("waitForPodsReady: {unscheduledTimeout: 5m}", UNSCHEDULED_GATE))
    assert (result.pods_ready, result.tracks_scheduling) == (PodsReadyPolicy(unscheduled_timeout=5 * MINUTE), True)
    gate = "featureGates: {WorkloadLevelWaitForPodsReady: true}"
    assert parse_kueue_settings(configuration(gate)).timeout_on_workload_max == 120 * MINUTE
    line = "waitForPodsReady: {maxTimeoutOnWorkload: 5m}"
    assert parse_kueue_settings(configuration(line, gate)).timeout_on_workload_max == 5 * MINUTE
    assert parse_kueue_settings(configuration(line)).timeout_on_workload_max is None
    assert list(ignored_settings(configuration(gate))) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("waitForPodsReady: {unscheduledTimeout: 0s}",), "requires the feature gate WaitForPodsReadyUnscheduled"),
        (("waitForPodsReady: {timeout: 4m, unscheduledTimeout: 5m}", UNSCHEDULED_GATE), "must not exceed"),
        (("waitForPodsReady: {unscheduledTimeout: -5m}", UNSCHEDULED_GATE), "unscheduledTimeout"),
        (
            ("featureGates: {WaitForPodsReadyUnscheduledTimeout: true, DisableWaitForPodsReady: true}",),
            "cannot be enabled together with DisableWaitForPodsReady",
        ),
    ],
)
def test_invalid_timeouts_are_rejected(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        configuration(*lines)


# Feature gates.

#: Fields whose effect depends on a gate.
GATED_FIELDS = (
    "waitForPodsReady: {timeout: 5m}",
    "resources: {quotaCheckStrategy: IgnoreUndeclared}",
    "metrics: {customLabels: [{name: a}]}",
    "multiKueue: {origin: here}",
    "admissionFairSharing: {usageHalfLifeTime: 1h}",
)


def test_each_gate_of_kueue_has_a_rule() -> None:
    assert GATE_RULES.keys() == GATES.keys()
    assert len(GATES) >= 80


# Without its gate, the field unscheduledTimeout is invalid.
@pytest.mark.parametrize("name", [name for name in GATES if name != "WaitForPodsReadyUnscheduledTimeout"])
def test_gate_is_obeyed_refused_or_listed(name: str) -> None:
    default, other = (
        configuration(f"featureGates: {flow_of(name, is_on=value)}", *GATED_FIELDS)
        for value in (GATES[name], not GATES[name])
    )
    is_listed = f"featureGates {name}" in ignored_settings(other)
    is_refused = f"featureGates.{name}" in dict(unsupported_fields(other))
    effects = [outcome(default) != outcome(other), is_refused, is_listed]
    if is_refused:
        effects[0] = False  # the refusal is the difference
    assert effects == [GATE_RULES[name].effect is effect for effect in GateEffect]
    assert f"featureGates {name}" not in ignored_settings(default)


def flow_of(name: str, *, is_on: bool) -> str:
    """The gate with a value, and the gates that depend on it disabled if it is."""
    dependents = [gate for gate, required in GATE_DEPENDENCIES.items() if name in required]
    gates = {name: is_on, **({} if is_on else dict.fromkeys(dependents, False))}
    return json.dumps(gates)


def outcome(whole: Obj) -> object:
    """Return the settings and the refused fields of a Configuration."""
    return parse_kueue_settings(whole), [path for path, _ in unsupported_fields(whole)]


def test_partial_admission_gate_is_part_of_policy() -> None:
    assert not parse_kueue_settings(configuration("featureGates: {PartialAdmission: false}")).policy.partial_admission


# All fields of the Configuration.

#: Values that differ from the default, for fields whose type does not tell one.
OTHER_VALUES: dict[str, Any] = {
    "admissionFairSharing.resourceWeights": {"cpu": 2},
    "fairSharing.preemptionStrategies": ["LessThanInitialShare"],
    "metrics.enableClusterQueueResources": False,
    "metrics.localQueueMetrics.enable": False,
    "metrics.localQueueMetrics.localQueueSelector": {"matchLabels": {"a": "b"}},
    "managedJobsNamespaceSelector": {"matchLabels": {"a": "b"}},
    "integrations.frameworks": ["batch/job"],
    "integrations.externalFrameworks": ["Kind.v1.example.com"],
    "waitForPodsReady.requeuingStrategy.timestamp": "Creation",
    "resources.quotaCheckStrategy": "IgnoreUndeclared",
    "resources.transformations.strategy": "Replace",
    "metrics.customLabels.sourceKind": "LocalQueue",
    "visibilityServer.bindPort": 8443,
}
#: The gates that enable fields.
FIELD_GATES = ("CustomMetricLabels", "WaitForPodsReadyUnscheduledTimeout", "WorkloadLevelWaitForPodsReady")
#: Other fields that a field requires to be valid.
REQUIRED_FIELDS: dict[str, Any] = {
    "metrics.customLabels": {"name": "a"},
    "metrics.localQueueMetrics": {"enable": True},
    "resources.transformations": {"input": "a"},
    "resources.deviceClassMappings": {"name": "a/b", "deviceClassNames": ["c"]},
    "multiKueue.clusterProfile.accessProviders": {"name": "a"},
    "multiKueue.clusterProfile.credentialsProviders": {"name": "a"},
    "multiKueue.externalFrameworks": {"name": "Kind.v1.example.com"},
}
VALUES_BY_TYPE = {"string": "x", "bool": True, "int": 7, "int32": 7, "int64": 7, "duration": "7s", "quantity": "7"}


def configuration_leaves(type_name: str = "Configuration", path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each field without fields of its own, except feature gates."""
    for name, definition in FIELDS[type_name].items():
        if not path and name in {"apiVersion", "kind", "metadata", "featureGates"}:
            continue
        text = definition[0] if isinstance(definition, list) else definition
        inner = text.rstrip("!").strip("[]{}")
        if inner in FIELDS:
            yield from configuration_leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", text.rstrip("!")


FIELDS = json.loads(
    resources.files("batchyard.api").joinpath("schema/fields/config.v1beta2.json").read_text(encoding="utf-8")
)


def with_field(path: str, field_type: str) -> Obj:
    """Return a valid Configuration that sets one field to another value than its default."""
    inner = field_type.strip("[]{}")
    value: Any = OTHER_VALUES.get(path, VALUES_BY_TYPE.get(inner, {"a": "b"}))
    if path not in OTHER_VALUES:
        value = [value] if "[" in field_type else {"a": value} if "{" in field_type else value
    *parents, name = path.split(".")
    value = {name: value}
    for depth in range(len(parents), 0, -1):
        parent = ".".join(parents[:depth])
        value = REQUIRED_FIELDS.get(parent, {}) | value
        value = {parents[depth - 1]: [value] if is_list(parents[:depth]) else value}
    value["featureGates"] = dict.fromkeys(FIELD_GATES, True)
    header = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    return complete_configuration(header | value)


def is_list(names: list[str]) -> bool:
    type_name = "Configuration"
    for name in names:
        definition = FIELDS[type_name][name]
        text = definition[0] if isinstance(definition, list) else definition
        type_name = text.rstrip("!").strip("[]{}")
    return bool("[" in text)


@pytest.mark.parametrize(("path", "field_type"), list(configuration_leaves()))
def test_field_is_obeyed_refused_or_of_the_deployment(path: str, field_type: str) -> None:
    gates = ", ".join(f"{name}: true" for name in FIELD_GATES)
    default, other = configuration(f"featureGates: {{{gates}}}"), with_field(path, field_type)
    effects = {
        "obeyed": parse_kueue_settings(default) != parse_kueue_settings(other),
        "refused": any(path.startswith(refused.split("[")[0]) for refused, _ in unsupported_fields(other)),
        "of the deployment": any(f"{path}.".startswith(f"{field}.") for field in deployment_fields(other)),
    }
    assert sum(effects.values()) == 1, effects


def test_gate_turns_slices_of_elastic_jobs_off() -> None:
    assert parse_kueue_settings(configuration()).policy.rules.elastic_jobs
    off = configuration("featureGates: {ElasticJobsViaWorkloadSlices: false}")
    assert not parse_kueue_settings(off).policy.rules.elastic_jobs


@pytest.mark.parametrize(("text", "interval"), [("0s", 5 * MINUTE), ("1ns", 1), ("100ms", SECOND // 10)])
def test_positive_sampling_interval_is_not_the_default(text: str, interval: int) -> None:
    settings = parse_kueue_settings(configuration(f"admissionFairSharing: {{usageSamplingInterval: {text}}}"))
    assert settings.admission_fair_sharing is not None
    assert settings.admission_fair_sharing.sampling_interval == interval
