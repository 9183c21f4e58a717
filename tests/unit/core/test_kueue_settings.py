"""What Kueue's Configuration comes to: what decisions go by, and what of it nobody here acts on."""

import pytest

from batchyard.api.kueue_configuration import read_configuration
from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.kueue_configuration import (
    KueueSettings,
    decided_otherwise,
    left_aside,
    not_done,
    of_deployment,
    settings_of,
)
from batchyard.scheduling.preemption.fair import Strategy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, RequeuingTimestamp


def said(*lines: str) -> Obj:
    head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    return read_configuration("k", head + "\n".join(lines))


def test_without_a_word_it_is_what_kueue_does() -> None:
    assert settings_of(said()) == KueueSettings()
    assert KueueSettings().pods_ready == PodsReadyPolicy(timeout=30 * MINUTE)
    assert settings_of(said("waitForPodsReady: {timeout: 0s}")).pods_ready == PodsReadyPolicy(timeout=30 * MINUTE)


def test_all_that_is_said_of_waiting_counts() -> None:
    strategy = "{timestamp: Creation, backoffLimitCount: 3, backoffBaseSeconds: 5, backoffMaxSeconds: 50}"
    waits = f"{{timeout: 90s, recoveryTimeout: 0s, blockAdmission: true, requeuingStrategy: {strategy}}}"
    assert settings_of(said(f"waitForPodsReady: {waits}")).pods_ready == PodsReadyPolicy(
        90 * SECOND, 0, True, RequeuingTimestamp.CREATION, 3, 5 * SECOND, 50 * SECOND
    )


def test_a_gate_turns_waiting_off() -> None:
    line = "waitForPodsReady: {timeout: 5m}"
    assert settings_of(said(line, "featureGates: {DisableWaitForPodsReady: true}")).pods_ready is None
    assert settings_of(said(line, "featureGates: {DisableWaitForPodsReady: false}")).pods_ready is not None


def test_sharing_is_fair_by_the_strategies_that_are_said() -> None:
    fair = settings_of(said("fairSharing: {preemptionStrategies: [LessThanInitialShare]}")).policy
    assert fair == Policy(fair_sharing=True, strategies=(Strategy.INITIAL_SHARE,))
    assert settings_of(said()).policy.fair_strategies == ()
    assert KueueSettings().sharing_fairly().policy.fair_strategies == tuple(Strategy)


def test_what_is_kueues_own_business_is_named() -> None:
    found = said("webhook: {port: 9443}", "metrics: {bindAddress: ':8443'}", "waitForPodsReady: {timeout: 1m}")
    assert list(of_deployment(found)) == ["metrics", "webhook"]
    assert [*decided_otherwise(found), *left_aside(found)] == []


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
    (fault,) = not_done(said(line))
    assert (fault.path, fault.remedy) == (path, "leave it out")


@pytest.mark.parametrize(
    "line", ["manageJobsWithoutQueueName: false", "resources: {quotaCheckStrategy: BlockUndeclared}"]
)
def test_what_is_said_to_be_as_it_is_here_is_taken(line: str) -> None:
    assert list(not_done(said(line))) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset, pod]}", ["integrations of pod"]),
        ("integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}", []),
        ("multiKueue: {origin: here}", ["multiKueue"]),
        ("featureGates: {PartialAdmission: true}", []),
        ("featureGates: {PartialAdmission: false, DisableWaitForPodsReady: true}", ["featureGates PartialAdmission"]),
    ],
)
def test_what_there_is_nothing_of_here_is_named(line: str, told: list[str]) -> None:
    assert list(left_aside(said(line))) == told


def test_a_kind_that_kueue_would_not_take_is_named() -> None:
    (told,) = left_aside(said("integrations: {frameworks: [batch/job]}"))
    assert told.startswith("leaving jobset.x-k8s.io/jobset out of integrations.frameworks")
