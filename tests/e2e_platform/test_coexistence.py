"""An operator does not run beside another controller of the same objects, at its start or later."""

import json
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e_platform.operator_process import OperatorRun, free_port
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
QUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "a"}, "spec": {}}
WORKLOAD = "vworkload.kb.io"


def hooks(name: str, *named: str, service: str = "", ours: bool = False) -> dict[str, Any]:
    """A configuration of webhooks of these names."""
    reached = {"namespace": "default", "name": service or "elsewhere"}
    labels = {"app.kubernetes.io/name": "batchyard"} if ours else {}
    rest = {"clientConfig": {"service": reached}, "admissionReviewVersions": ["v1"], "sideEffects": "None"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name, "labels": labels},
        "webhooks": [{"name": each, **rest} for each in named],
    }


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("beside"), "--controllers", "api,namespaces") as running:
        yield running


@pytest.fixture
def platform(started: UpProcess) -> Iterator[UpProcess]:
    """A platform without objects of other controllers."""
    yield started
    started.kubectl("delete", "--all", "--wait=false", "validatingwebhookconfigurations,clusterqueues")
    for name in started.kubectl("get", "clusterqueues", "-o", "name").split():
        started.kubectl("patch", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


def create(platform: UpProcess, *objects: Mapping[str, Any]) -> None:
    for obj in objects:
        platform.kubectl("create", "-f", "-", sent=json.dumps(obj))


def apply_as_kueue(platform: UpProcess, obj: Mapping[str, Any]) -> None:
    platform.kubectl("apply", "--server-side", "--field-manager=kueue", "-f", "-", sent=json.dumps(obj))


def operator(platform: UpProcess, controllers: str, *options: str) -> OperatorRun:
    return OperatorRun(platform.kubeconfig, "--no-leader-elect", "--controllers", controllers, *options)


def rejection_log(platform: UpProcess, controllers: str, *options: str) -> str:
    """The log of an operator that ends at once."""
    with operator(platform, controllers, *options) as running:
        assert running.ended() == 1
        return running.log()


def test_webhooks_of_upstream_are_detected_under_any_configuration_name(platform: UpProcess) -> None:
    create(platform, hooks("sets", "vjobset.kb.io"), hooks("team-queues", WORKLOAD, "vjobset.kb.io"))
    reported = rejection_log(platform, "jobset")
    assert "JobSet's controller is active on this cluster (its webhook configuration is sets)" in reported
    assert "omit jobset from --controllers" in reported
    for group in ("admission", "provisioning"):
        assert "Kueue is active on this cluster (its webhook configuration is team-queues)" in rejection_log(
            platform, group
        )


def test_kueue_webhook_for_job_sets_does_not_block_job_set_controller(platform: UpProcess) -> None:
    create(platform, hooks("kueue-validating-webhook-configuration", WORKLOAD, "vjobset.kb.io"))
    for options in (("jobset",), ("hotswap",), ("admission,jobset", "--beside-upstream")):
        with operator(platform, *options) as running:
            running.wait_until("runs ")


def test_recent_write_by_kueue_is_detected(platform: UpProcess) -> None:
    apply_as_kueue(platform, QUEUE)
    assert "Kueue is active on this cluster (it wrote a ClusterQueue " in rejection_log(platform, "admission")


def test_second_installation_of_batchyard_is_rejected(platform: UpProcess) -> None:
    create(platform, hooks("mine", WORKLOAD, service="mine", ours=True))
    own = ("--webhook-service", "mine", "--webhook-certificates", "mine", "--webhook-port", str(free_port()))
    with operator(platform, "admission", *own) as running:
        running.wait_until("runs admission")
    assert "another batchyard is active on this cluster (its webhook configuration is mine)" in rejection_log(
        platform, "admission"
    )


def test_operator_ends_when_kueue_writes_objects(platform: UpProcess) -> None:
    with operator(platform, "admission") as running:
        running.wait_until("runs admission")
        apply_as_kueue(platform, QUEUE)
        assert running.ended() == 1
        assert "Kueue is active on this cluster (it wrote ClusterQueue a)" in running.log()


def test_operator_ends_when_webhooks_of_kueue_are_created(platform: UpProcess) -> None:
    with operator(platform, "admission") as running:
        running.wait_until("runs admission")
        create(platform, hooks("team-queues", WORKLOAD))
        assert running.ended() == 1
        assert "its webhook configuration is team-queues" in running.log()


def test_operator_with_webhooks_waits_until_kueue_is_removed(platform: UpProcess) -> None:
    create(platform, hooks("team-queues", WORKLOAD))
    own = ("--webhook-service", "mine", "--webhook-certificates", "mine", "--webhook-port", str(free_port()))
    with operator(platform, "admission", *own) as running:
        running.wait_until("Only the webhooks are served")
        platform.kubectl("delete", "validatingwebhookconfiguration", "team-queues")
        running.wait_until("runs admission")


def test_operator_rejects_controllers_that_platform_runs_itself(platform: UpProcess) -> None:
    reported = rejection_log(platform, "admission,namespaces")
    assert "this platform runs namespaces itself" in reported
    assert "--controllers '*,-namespaces'" in reported
