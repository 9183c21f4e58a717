"""Kueue's Configuration: settings used in decisions, and ignored or unsupported settings."""

import re

import pytest

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.kueue_configuration import InvalidConfiguration, complete_configuration, read_configuration
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.scheduling.cycle import SchedulingPolicy
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
from batchyard.scheduling.preemption.fair import FairSharingStrategy
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
    assert list(deployment_fields(result)) == ["metrics", "webhook"]
    assert [*unsupported_fields(result), *ignored_settings(result)] == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("admissionFairSharing: {usageHalfLifeTime: 1h}", "admissionFairSharing"),
        ("resources: {excludeResourcePrefixes: [example.com/]}", "resources.excludeResourcePrefixes"),
        ("resources: {transformations: [{input: a, outputs: {b: 1}}]}", "resources.transformations"),
        ("resources: {quotaCheckStrategy: IgnoreUndeclared}", "resources.quotaCheckStrategy"),
    ],
)
def test_unsupported_setting_is_rejected(line: str, path: str) -> None:
    (fault,) = unsupported_field_errors(configuration(line))
    assert (fault.path, fault.remedy) == (path, "remove the field")


@pytest.mark.parametrize(
    "line", ["manageJobsWithoutQueueName: true", "resources: {quotaCheckStrategy: BlockUndeclared}"]
)
def test_explicit_default_is_accepted(line: str) -> None:
    assert list(unsupported_field_errors(configuration(line))) == []


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset, pod]}", ["the job integrations pod"]),
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}", []),
        ("multiKueue: {origin: here}", ["multiKueue"]),
        ("featureGates: {PartialAdmission: true}", []),
        ("featureGates: {PartialAdmission: false, DisableWaitForPodsReady: true}", ["featureGates PartialAdmission"]),
    ],
)
def test_ignored_settings_are_listed(line: str, reported: list[str]) -> None:
    assert list(ignored_settings(configuration(line))) == reported


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("integrations: {frameworks: [batch/job]}", (scheme.JOB,)),
        ("integrations: {frameworks: [jobset.x-k8s.io/jobset, pod]}", (scheme.JOB_SET,)),
        ("integrations: {frameworks: [pod]}", ()),
        ("integrations: {labelKeysToCopy: [team]}", (scheme.JOB, scheme.JOB_SET)),
    ],
)
def test_frameworks_enable_kinds_of_jobs(line: str, kinds: tuple[str, ...]) -> None:
    assert parse_kueue_settings(configuration(line)).managed_jobs.kinds == kinds


def test_labels_of_kueue_are_not_copied_from_jobs() -> None:
    line = "integrations: {labelKeysToCopy: [team, kueue.x-k8s.io/multikueue-origin]}"
    assert parse_kueue_settings(configuration(line)).copied_labels == ("team",)


def test_managed_jobs_are_parsed() -> None:
    external = "integrations: {externalFrameworks: [AppWrapper.v1beta2.workload.codeflare.dev]}"
    result = parse_kueue_settings(configuration("manageJobsWithoutQueueName: true", external)).managed_jobs
    kinds = (scheme.JOB, scheme.JOB_SET)
    app_wrapper = ("workload.codeflare.dev/v1beta2", "AppWrapper")
    assert result == ManagedJobs(managed_namespaces(), True, kinds, (app_wrapper,))


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
