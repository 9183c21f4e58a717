"""A platform that calls admission webhooks by URL and by Service, with kubectl."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess
from hook_server import HookCertificates, HookServer, patch_verdict, verdict

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
RESOURCES = ["pods", "configmaps"]
RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": RESOURCES}
CLOSED_PORT = 1


class Hooks:
    """The webhooks: one sets a label, one denies names, one waits until it is released."""

    def __init__(self) -> None:
        self.arrived, self.released = threading.Event(), threading.Event()

    def respond(self, path: str, review: Mapping[str, Any]) -> Mapping[str, Any]:
        request = review["request"]
        if path == "/mutate":
            labels = {**(request["object"]["metadata"].get("labels") or {}), "seen": "yes"}
            return patch_verdict(review, {"op": "add", "path": "/metadata/labels", "value": labels})
        if path == "/validate" and request["name"].startswith("bad"):
            return verdict(review, allowed=False, status={"message": "bad names are forbidden", "code": 403})
        if path == "/wait":
            self.arrived.set()
            self.released.wait(20)
        return verdict(review, warnings=[f"checked {request['name']}"] if path == "/validate" else [])


def configuration(kind: str, name: str, client_config: Mapping[str, Any], **fields: Any) -> str:
    """The manifest of a webhook configuration."""
    hook = {"name": f"{name}.example.com", "rules": [RULE], "clientConfig": client_config, "sideEffects": "None"}
    webhooks = [{**hook, "admissionReviewVersions": ["v1"], **fields}]
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration"}
    return json.dumps({**head, "metadata": {"name": name}, "webhooks": webhooks})


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def certificates(tmp_path: Path) -> HookCertificates:
    return HookCertificates(tmp_path, "hooks.default.svc")


@pytest.fixture
def server(certificates: HookCertificates, hooks: Hooks) -> Iterator[HookServer]:
    with HookServer(certificates, hooks.respond) as started:
        yield started


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "data") as process:
        yield process


def test_webhooks_by_url_and_by_service(up: UpProcess, server: HookServer, certificates: HookCertificates) -> None:
    bundle = {"caBundle": certificates.bundle}
    up.kubectl("apply", "-f", "-", sent=configuration("Mutating", "m", {"url": f"{server.url}/mutate", **bundle}))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hooks"}}
    ports = [{"port": 443, "targetPort": server.port}]
    up.kubectl("apply", "-f", "-", sent=json.dumps({**service, "spec": {"ports": ports}}))
    by_service = {"service": {"namespace": "default", "name": "hooks", "path": "/validate"}, **bundle}
    up.kubectl("apply", "-f", "-", sent=configuration("Validating", "v", by_service))
    up.kubectl("create", "configmap", "good")
    assert up.kubectl("get", "configmap", "good", "-o", "jsonpath={.metadata.labels.seen}") == "yes"
    text = 'admission webhook "v.example.com" denied the request: bad names are forbidden'
    assert text in up.kubectl("create", "configmap", "bad", fails=True)
    up.kubectl("create", "job", "j", "--image=busybox")
    up.kubectl("wait", "--for=create", "pod", "--selector=job-name=j,seen=yes", "--timeout=30s")
    metrics = up.kubectl("get", "--raw", "/metrics")
    assert 'apiserver_admission_webhook_rejection_count{name="v.example.com",type="validating"' in metrics


def test_dead_webhook_blocks_only_what_it_matches(up: UpProcess) -> None:
    dead = {"url": f"https://127.0.0.1:{CLOSED_PORT}/dead"}
    up.kubectl("apply", "-f", "-", sent=configuration("Validating", "dead", dead))
    text = f'failed calling webhook "dead.example.com": failed to call webhook: Post "{dead["url"]}?timeout=10s": '
    refused = f"dial tcp 127.0.0.1:{CLOSED_PORT}: connect: connection refused"
    assert text + refused in up.kubectl("create", "configmap", "a", fails=True)
    up.kubectl("create", "serviceaccount", "a")
    up.kubectl("delete", "validatingwebhookconfiguration", "dead")
    up.kubectl("create", "configmap", "a")
    up.kubectl("apply", "-f", "-", sent=configuration("Validating", "dead", dead, failurePolicy="Ignore"))
    up.kubectl("create", "configmap", "b")


def test_killed_platform_stores_nothing_before_the_webhook_answers(
    tmp_path: Path, up: UpProcess, server: HookServer, certificates: HookCertificates, hooks: Hooks
) -> None:
    config = {"url": f"{server.url}/wait", "caBundle": certificates.bundle}
    up.kubectl("apply", "-f", "-", sent=configuration("Validating", "slow", config, timeoutSeconds=30))
    command = ["kubectl", "--kubeconfig", str(up.kubeconfig), "create", "configmap", "a"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        assert hooks.arrived.wait(30)
        up.kubectl("create", "serviceaccount", "meanwhile")
        up.kill()
        hooks.released.set()
        assert client.wait(60) != 0
    with UpProcess(tmp_path / "data") as restarted:
        assert "NotFound" in restarted.kubectl("get", "configmap", "a", fails=True)
        restarted.kubectl("get", "serviceaccount", "meanwhile")
        restarted.kubectl("create", "configmap", "a")
        assert server.asked[-1][1]["request"]["name"] == "a"
