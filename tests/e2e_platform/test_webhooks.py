"""HTTPS webhooks of running operators, with certificate rotation during calls."""

import base64
import http.client
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from batchyard.operator_manifests import InstallSettings, manifests
from batchyard.server.kubeconfig.access import owner_tls_context
from e2e_platform.operator_account import forbidden_requests, install_account
from e2e_platform.operator_process import OperatorRun, ask_text
from e2e_platform.platform_process import UpProcess

SETTINGS = InstallSettings(controllers=("admission", "jobset"), page=False)
HOST = f"{SETTINGS.webhook_service}.{SETTINGS.namespace}.svc"
HOOKS = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SETTINGS.webhook_service}"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterqueues.kueue.x-k8s.io"
#: A new certificate is issued a quarter of this before expiry, and served a twelfth later.
LIFETIME = 12
OPTIONS = (
    *("--controllers", ",".join(SETTINGS.controllers), "--leader-elect-resource-name", SETTINGS.name),
    *("--webhook-certificate-lifetime", f"{LIFETIME}s"),
)
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


class WebhookPlatform(NamedTuple):
    """A platform, and the ports of two operators that share certificates."""

    platform: UpProcess
    ports: tuple[int, int]
    audit_log: Path
    operators: tuple[OperatorRun, OperatorRun]
    #: The metrics port of the first operator.
    figures: int

    def raw(self, path: str) -> Any:
        """An object of the platform."""
        folder = self.platform.kubeconfig.parent
        place = urlsplit(self.platform.url)
        connection = http.client.HTTPSConnection(place.netloc, context=owner_tls_context(folder), timeout=10)
        connection.request("GET", path)
        result = json.loads(connection.getresponse().read())
        connection.close()
        return result

    def bundle(self) -> bytes:
        """The CA bundle of the webhooks."""
        result = self.raw(HOOKS)["webhooks"]
        (bundle,) = {hook["clientConfig"]["caBundle"] for hook in result}
        return base64.b64decode(bundle)


@pytest.fixture(scope="module")
def webhook_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookPlatform]:
    folder = tmp_path_factory.mktemp("webhooks")
    audit_log = folder / "audit.log"
    with ExitStack() as started:
        platform = started.enter_context(
            UpProcess(folder / "data", "--controllers", "api,namespaces", "--audit-log", str(audit_log))
        )
        kubeconfig = install_account(platform.kubeconfig, folder, SETTINGS)
        objects = [obj for obj in manifests(SETTINGS) if obj["kind"] in {"CustomResourceDefinition", *CONFIGURATIONS}]
        platform.kubectl("apply", "--server-side", "-f", "-", sent=yaml.safe_dump_all(objects))
        ports, figures = (free_port(), free_port()), free_port()
        platform.kubectl("create", "-f", "-", sent=json.dumps(service(ports[0])))
        operators = [
            started.enter_context(
                OperatorRun(kubeconfig, *OPTIONS, "--webhook-port", str(port), "--port", str(reported))
            )
            for port, reported in zip(ports, (figures, 0), strict=True)
        ]
        for operator in operators:
            operator.wait_until("webhooks at https")
        yield WebhookPlatform(platform, ports, audit_log, (operators[0], operators[1]), figures)


CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def service(port: int) -> Any:
    """The Service of the webhooks, which are served at a port of this machine."""
    metadata = {"name": SETTINGS.webhook_service, "namespace": SETTINGS.namespace}
    spec = {"ports": [{"name": "webhooks", "port": 443, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def free_port() -> int:
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        port: int = result.getsockname()[1]
    return port


def ask(port: int, bundle: bytes, path: str, review: Any) -> Any:
    """The response of a webhook with a certificate of the CA bundle."""
    code, body = post_review(port, bundle, path, review)
    assert code == 200, body
    return json.loads(body)["response"]


def post_review(port: int, bundle: bytes, path: str, review: Any) -> tuple[int, bytes]:
    """The code and the body of a response."""
    context = ssl.create_default_context(cadata=bundle.decode())
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        connection = http.client.HTTPConnection(HOST)
        connection.sock = context.wrap_socket(plain, server_hostname=HOST)
        connection.request("POST", f"{path}?timeout=10s", json.dumps(review), {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
    return answer.status, body


def admission(obj: Any) -> Any:
    request = {"uid": "u", "operation": "CREATE", "namespace": "default", "object": obj}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def job(**labels: str) -> Any:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "python"}]}}
    spec = {"suspend": False, "parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "labels": labels}, "spec": spec}


def test_both_operators_queue_job_in_namespace_with_default_queue(webhook_platform: WebhookPlatform) -> None:
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "default"}}
    webhook_platform.platform.kubectl("apply", "-f", "-", sent=json.dumps({**queue, "spec": {"clusterQueue": "none"}}))
    for port in webhook_platform.ports:
        answer = ask(port, webhook_platform.bundle(), "/mutate", admission(job(a="b")))
        assert json.loads(base64.b64decode(answer["patch"])) == [
            {"op": "add", "path": "/metadata/labels/kueue.x-k8s.io~1queue-name", "value": "default"},
            {"op": "replace", "path": "/spec/suspend", "value": True},
        ]


def test_webhook_rejects_invalid_queue_name(webhook_platform: WebhookPlatform) -> None:
    answer = ask(
        webhook_platform.ports[0],
        webhook_platform.bundle(),
        "/validate",
        admission(job(**{"kueue.x-k8s.io/queue-name": "No"})),
    )
    assert answer["allowed"] is False
    assert answer["status"]["message"].startswith("metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value")


def request_counts(webhook_platform: WebhookPlatform) -> dict[str, float]:
    """The metrics of webhook requests."""
    text = ask_text(webhook_platform.figures, "/metrics")[1]
    lines = [line for line in text.splitlines() if line.startswith("controller_runtime_webhook_")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_webhook_requests_are_counted_by_path_and_code(webhook_platform: WebhookPlatform) -> None:
    before = request_counts(webhook_platform)
    ask(webhook_platform.ports[0], webhook_platform.bundle(), "/mutate", admission(job(a="b")))
    assert post_review(webhook_platform.ports[0], webhook_platform.bundle(), "/validate", {"kind": "Other"})[0] == 400
    after = request_counts(webhook_platform)
    grown = {name for name, value in after.items() if value > before.get(name, 0) and "latency" not in name}
    total = "controller_runtime_webhook_requests_total"
    assert grown == {f'{total}{{webhook="/mutate",code="200"}}', f'{total}{{webhook="/validate",code="400"}}'}
    assert after['controller_runtime_webhook_latency_seconds_bucket{webhook="/mutate",le="1000"}'] == 1 + before.get(
        'controller_runtime_webhook_latency_seconds_count{webhook="/mutate"}', 0
    )
    assert after['controller_runtime_webhook_requests_in_flight{webhook="/convert"}'] == 0
    assert after[f'{total}{{webhook="/convert",code="500"}}'] == 0


def test_conversion_webhook_in_crd_converts_objects(webhook_platform: WebhookPlatform) -> None:
    webhook = webhook_platform.raw(CRD)["spec"]["conversion"]["webhook"]
    bundle = base64.b64decode(webhook["clientConfig"]["caBundle"])
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "a"}}
    objects = [{**queue, "spec": {"cohortName": "all"}}]
    request = {"uid": "u", "desiredAPIVersion": "kueue.x-k8s.io/v1beta1", "objects": objects}
    answer = ask(webhook_platform.ports[0], bundle, webhook["clientConfig"]["service"]["path"], {"request": request})
    assert answer["convertedObjects"][0]["spec"] == {"cohort": "all"}


def test_webhook_calls_succeed_during_certificate_rotation(webhook_platform: WebhookPlatform) -> None:
    bundles, certificates = dict.fromkeys([webhook_platform.bundle()]), dict[bytes, None]()
    for _ in range(10 * LIFETIME):
        bundle = webhook_platform.bundle()
        for port in webhook_platform.ports:
            assert ask(port, bundle, "/validate", admission(job(a="b")))["allowed"] is True
            certificates[certificate_of(port)] = None
        bundles[bundle] = None
        if len(bundles) > 2 and len(certificates) > 1:
            break
        threading.Event().wait(0.3)
    first, *_, last = bundles
    assert first not in last, "the authority that has ended is told no more"
    assert len(certificates) > 1
    assert forbidden_requests(webhook_platform.audit_log, SETTINGS) == [], webhook_platform.operators[0].log()


def certificate_of(port: int) -> bytes:
    """The certificate of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain) as wrapped:
        result = wrapped.getpeercert(binary_form=True)
    assert result is not None
    return result
