"""Kueue's Configuration: settings used in decisions, and ignored or unsupported settings."""

import pytest

from batchyard.api.kueue_configuration import complete_configuration, read_configuration
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_configuration import (
    KueueSettings,
    decision_fields,
    deployment_fields,
    ignored_settings,
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
        ("manageJobsWithoutQueueName: true", "manageJobsWithoutQueueName"),
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
    "line", ["manageJobsWithoutQueueName: false", "resources: {quotaCheckStrategy: BlockUndeclared}"]
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


def test_excluded_framework_is_listed_as_ignored() -> None:
    (reported,) = ignored_settings(configuration("integrations: {frameworks: [batch/job]}"))
    assert reported.startswith("omitting jobset.x-k8s.io/jobset from integrations.frameworks")


def test_gate_turns_slices_of_elastic_jobs_off() -> None:
    assert parse_kueue_settings(configuration()).policy.elastic_jobs
    off = configuration("featureGates: {ElasticJobsViaWorkloadSlices: false}")
    assert not parse_kueue_settings(off).policy.elastic_jobs
    assert list(ignored_settings(off)) == []
