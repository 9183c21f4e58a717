"""The controller of CertificateSigningRequests: what it signs, what it fails, and when it deletes."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

import make
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.certificates.controller import CertificateController, lifetime_of
from batchyard.apiserver.certificates.requests import CERTIFICATE_REQUEST
from batchyard.apiserver.certificates.validation import parse_certificate_request
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Delete, UpdateStatus
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority
from batchyard.store.memory import Store
from unit.apiserver.certificates.test_requests import csr, request_bytes

KEY = Key(CERTIFICATE_REQUEST, "", "ada")
SERVING, KUBELET = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"
NODE = ("system:node:a", "system:nodes")
HOST = [x509.DNSName("a")]
ZERO = "1970-01-01T00:00:00Z"


class WordSigner:
    """Signs with a word."""

    def sign_request(self, request: x509.CertificateSigningRequest, usages: Sequence[str], lifetime: Duration) -> bytes:
        return b"signed"


def decided(obj: dict[str, Any], *types: str, certificate: str = "") -> dict[str, Any]:
    """The request with conditions of these types."""
    conditions = [{"type": each, "status": "True", "lastUpdateTime": ZERO} for each in types]
    return {**obj, "status": {"conditions": conditions, **({"certificate": certificate} if certificate else {})}}


def reconciled(obj: dict[str, Any], now: Instant = MINUTE) -> Any:
    """The result of a reconcile of a request that was created at the beginning."""
    store, kernel = Store(window=10), VirtualEventLoop(0)
    metadata = {**make.metadata("ada"), "creationTimestamp": ZERO, "uid": "u"}
    store.put(KEY, {**obj, "metadata": metadata})
    return CertificateController(WordSigner()).reconcile(KEY, LocalClient(store, kernel), now)


def status_of(obj: dict[str, Any]) -> Obj:
    """The status that a reconcile writes."""
    (write,) = reconciled(obj).writes
    assert isinstance(write, UpdateStatus)
    status: Obj = write.obj["status"]
    return status


def test_approved_request_is_signed() -> None:
    status = status_of(decided(csr(), "Approved"))
    assert base64.b64decode(status["certificate"]) == b"signed"
    assert [each["type"] for each in status["conditions"]] == ["Approved"]


@pytest.mark.parametrize("types", [(), ("Denied",), ("Approved", "Failed")])
def test_undecided_denied_or_failed_request_is_not_signed(types: tuple[str, ...]) -> None:
    assert not reconciled(decided(csr(), *types)).writes


def test_signed_request_and_request_of_another_signer_are_left_alone() -> None:
    assert not reconciled(decided(csr(), "Approved", certificate="eA==")).writes
    assert not reconciled(decided(csr(signerName="example.com/own"), "Approved")).writes


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"usages": ["server auth"]}, "invalid usage for client certificate: server auth"),
        ({"usages": ["digital signature"]}, "missing required usage for client certificate: client auth"),
        ({"signerName": SERVING}, "subject organization is not system:nodes"),
        ({"signerName": SERVING, "request": request_bytes(*NODE)}, "DNS or IP subjectAltName is required"),
        (
            {"signerName": SERVING, "request": request_bytes(*NODE, names=HOST)},
            "usages did not match [digital signature key encipherment server auth]",
        ),
        ({"signerName": KUBELET, "request": request_bytes(*NODE, names=HOST)}, "DNS subjectAltNames are not allowed"),
        (
            {"signerName": KUBELET, "request": request_bytes("a", "system:nodes")},
            "subject common name does not begin with system:node:",
        ),
    ],
)
def test_request_that_its_signer_does_not_accept_fails(spec: dict[str, Any], problem: str) -> None:
    failure = status_of(decided(csr(**spec), "Approved"))["conditions"][-1]
    assert (failure["type"], failure["reason"]) == ("Failed", "SignerValidationFailure")
    assert failure["message"] == problem


def test_serving_certificate_of_a_node_is_signed() -> None:
    request = request_bytes(*NODE, names=HOST)
    spec = {"signerName": SERVING, "request": request, "usages": ["digital signature", "server auth"]}
    assert "certificate" in status_of(decided(csr(**spec), "Approved"))


@pytest.mark.parametrize(
    ("obj", "kept"),
    [
        (csr(), 24 * HOUR),
        (decided(csr(), "Denied"), HOUR),
        (decided(csr(), "Approved", "Failed"), HOUR),
        (decided(csr(), "Approved", certificate="eA=="), HOUR),
        (decided(csr(signerName="a.b/c"), "Approved"), 24 * HOUR),
    ],
)
def test_request_is_deleted_after_its_retention(obj: dict[str, Any], kept: Duration) -> None:
    waiting = reconciled(obj, now=kept - 1)
    assert (waiting.writes, waiting.requeue_at) == ([], kept)
    assert reconciled(obj, now=kept).writes == [Delete(KEY, uid="u")]


@pytest.mark.parametrize(("seconds", "lifetime"), [(None, 8760 * HOUR), (10**9, 8760 * HOUR), (7200, 2 * HOUR)])
def test_lifetime_is_the_requested_one_within_a_year(seconds: int | None, lifetime: Duration) -> None:
    assert lifetime_of({} if seconds is None else {"expirationSeconds": seconds}) == lifetime


def test_authority_signs_subject_key_names_and_usages_of_a_request(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, wall_clock())
    request = parse_certificate_request(csr(request=request_bytes("ada", "team-a", names=HOST)))
    pem = authority.sign_request(request, ["client auth", "digital signature"], HOUR)
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_file.read_bytes()))
    assert (certificate.subject, certificate.public_key()) == (request.subject, request.public_key())
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    duration = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert duration.total_seconds() == 65 * 60
