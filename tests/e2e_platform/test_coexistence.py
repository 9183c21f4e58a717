"""An operator does not decide where somebody else decides about the same objects, before it begins or later."""

import json
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e_platform.operating import Operating, free_port
from e2e_platform.running import Running

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
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("beside"), "--controllers", "api,namespaces") as running:
        yield running


@pytest.fixture
def platform(started: Running) -> Iterator[Running]:
    """A platform without a trace of others, before and after."""
    yield started
    started.kubectl("delete", "--all", "--wait=false", "validatingwebhookconfigurations,clusterqueues")
    for name in started.kubectl("get", "clusterqueues", "-o", "name").split():
        started.kubectl("patch", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


def create(platform: Running, *objects: Mapping[str, Any]) -> None:
    for obj in objects:
        platform.kubectl("create", "-f", "-", sent=json.dumps(obj))


def written_by_kueue(platform: Running, obj: Mapping[str, Any]) -> None:
    platform.kubectl("apply", "--server-side", "--field-manager=kueue", "-f", "-", sent=json.dumps(obj))


def operator(platform: Running, controllers: str, *options: str) -> Operating:
    return Operating(platform.kubeconfig, "--no-leader-elect", "--controllers", controllers, *options)


def refused(platform: Running, controllers: str, *options: str) -> str:
    """What an operator says that ends at once."""
    with operator(platform, controllers, *options) as running:
        assert running.ended() == 1
        return running.log()


def test_webhooks_are_a_sign_whatever_their_configuration_is_called(platform: Running) -> None:
    create(platform, hooks("sets", "vjobset.kb.io"), hooks("team-queues", WORKLOAD, "vjobset.kb.io"))
    reported = refused(platform, "jobset")
    assert "JobSet's controller is on this cluster (its webhooks are sets)" in reported
    assert "leave jobset out of --controllers" in reported
    for group in ("admission", "provisioning"):
        assert "Kueue is on this cluster (its webhooks are team-queues)" in refused(platform, group)


def test_webhooks_for_job_sets_do_not_say_that_kueue_runs_them(platform: Running) -> None:
    create(platform, hooks("kueue-validating-webhook-configuration", WORKLOAD, "vjobset.kb.io"))
    for options in (("jobset",), ("hotswap",), ("admission,jobset", "--beside-upstream")):
        with operator(platform, *options) as running:
            running.wait_until("runs ")


def test_what_kueue_wrote_a_moment_ago_is_a_sign(platform: Running) -> None:
    written_by_kueue(platform, QUEUE)
    assert "Kueue is on this cluster (it wrote a ClusterQueue " in refused(platform, "admission")


def test_another_installation_of_ours_is_one_too_many(platform: Running) -> None:
    create(platform, hooks("mine", WORKLOAD, service="mine", ours=True))
    own = ("--webhook-service", "mine", "--webhook-certificates", "mine", "--webhook-port", str(free_port()))
    with operator(platform, "admission", *own) as running:
        running.wait_until("runs admission")
    assert "another batchyard is on this cluster (its webhooks are mine)" in refused(platform, "admission")


def test_who_decides_ends_when_kueue_begins(platform: Running) -> None:
    with operator(platform, "admission") as running:
        running.wait_until("runs admission")
        written_by_kueue(platform, QUEUE)
        assert running.ended() == 1
        assert "Kueue is on this cluster (it wrote ClusterQueue a)" in running.log()


def test_who_decides_ends_when_kueue_is_installed(platform: Running) -> None:
    with operator(platform, "admission") as running:
        running.wait_until("runs admission")
        create(platform, hooks("team-queues", WORKLOAD))
        assert running.ended() == 1
        assert "its webhooks are team-queues" in running.log()


def test_who_answers_webhooks_waits_until_kueue_is_gone(platform: Running) -> None:
    create(platform, hooks("team-queues", WORKLOAD))
    own = ("--webhook-service", "mine", "--webhook-certificates", "mine", "--webhook-port", str(free_port()))
    with operator(platform, "admission", *own) as running:
        running.wait_until("Only the webhooks are served")
        platform.kubectl("delete", "validatingwebhookconfiguration", "team-queues")
        running.wait_until("runs admission")


def test_a_platform_that_decides_itself_needs_nobody_else(platform: Running) -> None:
    reported = refused(platform, "admission,namespaces")
    assert "this platform runs namespaces itself" in reported
    assert "--controllers '*,-namespaces'" in reported
