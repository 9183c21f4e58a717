"""The controller that signs approved CertificateSigningRequests of Kubernetes' signers, and removes old ones.

Sources: Kubernetes's pkg/controller/certificates/{signer,cleaner}, pkg/apis/certificates/helpers.go.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.x509.oid import NameOID

from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver.certificates import validation
from batchyard.apiserver.certificates.requests import CERTIFICATE_REQUEST, CLIENT_SIGNER
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

KUBELET_CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING_SIGNER: Final = "kubernetes.io/kubelet-serving"
#: The longest and shortest validity of a certificate; as Kubernetes' --cluster-signing-duration by default.
LIFETIME_MAX: Final = 365 * 24 * HOUR
LIFETIME_MIN: Final = 10 * MINUTE
#: How long requests are kept: after the decision about them, and without one.
_DECIDED_KEPT: Final = HOUR
_PENDING_KEPT: Final = 24 * HOUR
_NODES_GROUP: Final = "system:nodes"
_NODE_PREFIX: Final = "system:node:"
_OPTIONAL_CLIENT_USAGES: Final = ("digital signature", "key encipherment")
_CLIENT_AUTH: Final = "client auth"
_SERVER_AUTH: Final = "server auth"


class CertificateSigner(Protocol):
    """A certificate authority that signs certificate requests."""

    def sign_request(self, request: x509.CertificateSigningRequest, usages: Sequence[str], lifetime: Duration) -> bytes:
        """Return a certificate as PEM, valid for `lifetime` from now, for the usages."""


class CertificateController:
    """Signs approved requests of the signers of this platform, and deletes requests after their retention period."""

    name = "certificatesigningrequests"
    rank = 0
    kinds = (CERTIFICATE_REQUEST,)

    def __init__(self, signer: CertificateSigner) -> None:
        self._signer = signer

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a new or changed request."""
        return () if event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Sign a request, mark it as failed, or delete it; or wait until it is to be deleted."""
        csr = reader.get(key)
        if csr is None:
            return ReconcileResult()
        expires_at = min(expiry_times(csr), default=None)
        if expires_at is not None and expires_at <= now:
            return ReconcileResult([Delete(key, uid=csr["metadata"]["uid"])])
        verify = _VERIFICATIONS.get(csr["spec"]["signerName"])
        if verify is None or not needs_signature(csr):
            return ReconcileResult(requeue_at=expires_at)
        return ReconcileResult([UpdateStatus(with_status(csr, self._signed_status(csr, verify, now)))])

    def _signed_status(self, csr: Obj, verify: "_Verification", now: Instant) -> dict[str, Any]:
        spec, status = csr["spec"], dict(csr.get("status") or {})
        request, usages = validation.parse_certificate_request(csr), spec.get("usages") or ()
        if problem := _find_problem(verify, request, usages):
            time = format_time(now)
            times = {"lastUpdateTime": time, "lastTransitionTime": time}
            failure = {"type": validation.FAILED, "status": "True", "reason": "SignerValidationFailure"}
            return {
                **status,
                "conditions": [*(status.get("conditions") or ()), {**failure, "message": problem, **times}],
            }
        certificate = self._signer.sign_request(request, usages, lifetime_of(spec))
        return {**status, "certificate": base64.b64encode(certificate).decode()}


def needs_signature(csr: Obj) -> bool:
    """Return whether a request is approved, and has neither a certificate nor failed."""
    is_final = bool(validation.conditions_of(csr, validation.DENIED, validation.FAILED))
    is_approved = bool(validation.conditions_of(csr, validation.APPROVED))
    return is_approved and not is_final and not (csr.get("status") or {}).get("certificate")


def lifetime_of(spec: Mapping[str, Any]) -> Duration:
    """Return the validity of the certificate for a request: the requested one within the limits."""
    seconds = spec.get("expirationSeconds")
    return LIFETIME_MAX if seconds is None else min(max(seconds * SECOND, LIFETIME_MIN), LIFETIME_MAX)


def expiry_times(csr: Obj) -> Iterator[Instant]:
    """Yield the times at which a request is deleted: the first of them counts."""
    conditions, certificate = validation.conditions_of(csr), (csr.get("status") or {}).get("certificate")
    if not conditions:
        yield parse_time(csr["metadata"]["creationTimestamp"]) + _PENDING_KEPT
    for condition in validation.conditions_of(csr, validation.APPROVED, validation.DENIED, validation.FAILED):
        is_unissued = condition["type"] == validation.APPROVED and not certificate
        if condition.get("lastUpdateTime"):
            yield parse_time(condition["lastUpdateTime"]) + (_PENDING_KEPT if is_unissued else _DECIDED_KEPT)
    if certificate and validation.conditions_of(csr, validation.APPROVED):
        try:
            parsed = x509.load_pem_x509_certificate(validation.decode_bytes(certificate))
        except ValueError:
            return
        yield int(parsed.not_valid_after_utc.timestamp()) * SECOND


def _find_problem(verify: "_Verification", request: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    try:
        return verify(request, usages)
    except ValueError:
        return "x509: malformed extension"


def _verify_client(_request: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    for usage in usages:
        if usage != _CLIENT_AUTH and usage not in _OPTIONAL_CLIENT_USAGES:
            return f"invalid usage for client certificate: {usage}"
    return "" if _CLIENT_AUTH in usages else f"missing required usage for client certificate: {_CLIENT_AUTH}"


def _verify_kubelet_client(request: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    names = _alternative_names(request)
    kinds = (("DNS", x509.DNSName), ("Email", x509.RFC822Name), ("IP", x509.IPAddress))
    if validation.organizations_of(request) != [_NODES_GROUP]:
        return "subject organization is not system:nodes"
    for kind, name_type in (*kinds, ("URI", x509.UniformResourceIdentifier)):
        if any(isinstance(each, name_type) for each in names):
            return f"{kind} subjectAltNames are not allowed"
    return _node_name_problem(request) or _usages_problem(usages, _CLIENT_AUTH)


def _verify_kubelet_serving(request: x509.CertificateSigningRequest, usages: Sequence[str]) -> str:
    names = _alternative_names(request)
    if validation.organizations_of(request) != [_NODES_GROUP]:
        return "subject organization is not system:nodes"
    if not any(isinstance(each, x509.DNSName | x509.IPAddress) for each in names):
        return "DNS or IP subjectAltName is required"
    for kind, name_type in (("Email", x509.RFC822Name), ("URI", x509.UniformResourceIdentifier)):
        if any(isinstance(each, name_type) for each in names):
            return f"{kind} subjectAltNames are not allowed"
    return _usages_problem(usages, _SERVER_AUTH) or _node_name_problem(request)


def _node_name_problem(request: x509.CertificateSigningRequest) -> str:
    common_names = validation.names_of(request, NameOID.COMMON_NAME)
    is_node = bool(common_names) and common_names[-1].startswith(_NODE_PREFIX)
    return "" if is_node else "subject common name does not begin with system:node:"


def _usages_problem(usages: Sequence[str], required_usage: str) -> str:
    optional_usage = "key encipherment"
    required_usages = {"digital signature", required_usage}
    if {*usages} - {optional_usage} == required_usages:
        return ""
    return f"usages did not match [{' '.join(sorted({*required_usages, optional_usage}))}]"


def _alternative_names(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        return list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


_Verification = Callable[[x509.CertificateSigningRequest, Sequence[str]], str]
_VERIFICATIONS: Final[Mapping[str, _Verification]] = {
    CLIENT_SIGNER: _verify_client,
    KUBELET_CLIENT_SIGNER: _verify_kubelet_client,
    KUBELET_SERVING_SIGNER: _verify_kubelet_serving,
}
