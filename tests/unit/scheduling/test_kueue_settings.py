"""What Kueue's Configuration comes to: what decisions go by, and what of it nobody here acts on."""

import pytest

from batchyard.api.kueue_configuration import read_configuration
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_configuration import (
    KueueSettings,
    deployment_fields,
    ignored_settings,
    parse_kueue_settings,
    unsupported_field_errors,
    unsupported_fields,
)
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp


def stated(*lines: str) -> Obj:
    head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    return read_configuration("k", head + "\n".join(lines))


def test_without_a_word_it_is_what_kueue_does() -> None:
    assert parse_kueue_settings(stated()) == KueueSettings()
    assert KueueSettings().pods_ready == PodsReadyPolicy(timeout=30 * MINUTE)
    assert parse_kueue_settings(stated("waitForPodsReady: {timeout: 0s}")).pods_ready == PodsReadyPolicy(
        timeout=30 * MINUTE
    )


def test_all_that_is_said_of_waiting_counts() -> None:
    strategy = "{timestamp: Creation, backoffLimitCount: 3, backoffBaseSeconds: 5, backoffMaxSeconds: 50}"
    waits = f"{{timeout: 90s, recoveryTimeout: 0s, blockAdmission: true, requeuingStrategy: {strategy}}}"
    assert parse_kueue_settings(stated(f"waitForPodsReady: {waits}")).pods_ready == PodsReadyPolicy(
        90 * SECOND, 0, True, RequeuingTimestamp.CREATION, 3, 5 * SECOND, 50 * SECOND
    )


def test_a_gate_turns_waiting_off() -> None:
    line = "waitForPodsReady: {timeout: 5m}"
    assert parse_kueue_settings(stated(line, "featureGates: {DisableWaitForPodsReady: true}")).pods_ready is None
    assert parse_kueue_settings(stated(line, "featureGates: {DisableWaitForPodsReady: false}")).pods_ready is not None


def test_sharing_is_fair_by_the_strategies_that_are_said() -> None:
    fair = parse_kueue_settings(stated("fairSharing: {preemptionStrategies: [LessThanInitialShare]}")).policy
    assert fair == SchedulingPolicy(fair_sharing=True, strategies=(FairSharingStrategy.INITIAL_SHARE,))
    assert parse_kueue_settings(stated()).policy.fair_strategies == ()
    assert KueueSettings().sharing_fairly().policy.fair_strategies == tuple(FairSharingStrategy)


def test_what_is_kueues_own_business_is_named() -> None:
    found = stated("webhook: {port: 9443}", "metrics: {bindAddress: ':8443'}", "waitForPodsReady: {timeout: 1m}")
    assert list(deployment_fields(found)) == ["metrics", "webhook"]
    assert [*unsupported_fields(found), *ignored_settings(found)] == []


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
def test_what_would_be_decided_otherwise_is_refused(line: str, path: str) -> None:
    (fault,) = unsupported_field_errors(stated(line))
    assert (fault.path, fault.remedy) == (path, "leave it out")


@pytest.mark.parametrize(
    "line", ["manageJobsWithoutQueueName: false", "resources: {quotaCheckStrategy: BlockUndeclared}"]
)
def test_what_is_said_to_be_as_it_is_here_is_taken(line: str) -> None:
    assert list(unsupported_field_errors(stated(line))) == []


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset, pod]}", ["integrations of pod"]),
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}", []),
        ("multiKueue: {origin: here}", ["multiKueue"]),
        ("featureGates: {PartialAdmission: true}", []),
        ("featureGates: {PartialAdmission: false, DisableWaitForPodsReady: true}", ["featureGates PartialAdmission"]),
    ],
)
def test_what_there_is_nothing_of_here_is_named(line: str, reported: list[str]) -> None:
    assert list(ignored_settings(stated(line))) == reported


def test_a_kind_that_kueue_would_not_take_is_named() -> None:
    (reported,) = ignored_settings(stated("integrations: {frameworks: [batch/job]}"))
    assert reported.startswith("leaving jobset.x-k8s.io/jobset out of integrations.frameworks")
