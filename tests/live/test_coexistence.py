"""An operator does not begin where upstream's controllers decide about the same objects."""

import json
import shutil
from collections.abc import Iterator

import pytest

from live.operating import Operating
from live.running import Running

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
FLAVOR = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "a"}, "spec": {}}
WEBHOOKS = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "jobset-validating-webhook-configuration"},
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("beside"), "--controllers", "api,namespaces") as running:
        running.kubectl("create", "-f", "-", sent=json.dumps(WEBHOOKS))
        running.kubectl("apply", "--server-side", "--field-manager=kueue", "-f", "-", sent=json.dumps(FLAVOR))
        yield running


def refused(platform: Running, controllers: str) -> str:
    """What an operator says that ends at once."""
    with Operating(platform.kubeconfig, "--no-leader-elect", "--controllers", controllers) as operator:
        assert operator.ended() == 1
        return operator.log()


def test_webhooks_of_jobset_are_a_sign(platform: Running) -> None:
    told = refused(platform, "jobset")
    assert "JobSet's controller is on this cluster (its webhooks are jobset-validating-webhook-configuration)" in told
    assert "leave jobset out of --controllers" in told


def test_what_kueue_wrote_a_moment_ago_is_a_sign(platform: Running) -> None:
    assert "Kueue is on this cluster (it wrote a ClusterQueue " in refused(platform, "admission")


def test_what_neither_does_begins_and_so_does_who_is_told_to(platform: Running) -> None:
    for options in (("--controllers", "hotswap"), ("--controllers", "admission,jobset", "--beside-upstream")):
        with Operating(platform.kubeconfig, "--no-leader-elect", *options) as operator:
            operator.wait_until("runs ")
