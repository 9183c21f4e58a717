"""Validation of CertificateSigningRequests, and the certificate requests (PKCS #10) that they contain.

Sources: Kubernetes's pkg/apis/certificates/{helpers.go,validation/validation.go}, pkg/apis/core/validation/names.go.
"""

import base64
import binascii
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import rules

APPROVED: Final = "Approved"
DENIED: Final = "Denied"
FAILED: Final = "Failed"
LEGACY_SIGNER: Final = "kubernetes.io/legacy-unknown"
#: The usages of a certificate that a request may name.
USAGES: Final = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)
_STATUS_VALUES: Final = ("False", "True", "Unknown")
_LIFETIME_SECONDS_MIN: Final = 600
_DOMAIN_LENGTH_MAX: Final = 253
_CONDITIONS_PATH: Final = "status.conditions"
_CERTIFICATE_PATH: Final = "status.certificate"
_PEM_BEGIN: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\r?\n")
_PEM_END: Final = re.compile(rb"-----END ([A-Z0-9 ]+)(?=-----)")
_REQUEST_BLOCK: Final = b"CERTIFICATE REQUEST"
_CERTIFICATE_BLOCK: Final = b"CERTIFICATE"
_PARSE_ERRORS: Final = (ValueError, TypeError, UnsupportedAlgorithm)


class SettableStatus(NamedTuple):
    """The parts of the status that an update may change: the approval conditions and the certificate."""

    approval: bool = False
    certificate: bool = False


class PemBlock(NamedTuple):
    """A PEM block: its type, the content between its markers, and the whole block."""

    type: bytes
    content: bytes
    text: bytes


def pem_blocks(pem: bytes) -> Iterator[PemBlock]:
    """Yield the PEM blocks of a text in order, in about linear time: each block ends at the next marker of its type."""
    ends_by_type: dict[bytes, list[int]] = defaultdict(list)
    for end in _PEM_END.finditer(pem):
        ends_by_type[end[1]].append(end.start())
    position = 0
    for begin in _PEM_BEGIN.finditer(pem):
        ends = ends_by_type[begin[1]]
        index = bisect_left(ends, begin.end())
        if begin.start() >= position and index < len(ends):
            content = pem[begin.end() : ends[index]]
            position = ends[index] + len(b"-----END -----") + len(begin[1])
            yield PemBlock(begin[1], content, pem[begin.start() : position])


def decode_bytes(value: Any) -> bytes:
    """Decode a `[]byte` field from base64; a missing or malformed value results in empty bytes."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except binascii.Error:
        return b""


def parse_certificate_request(csr: Obj) -> x509.CertificateSigningRequest:
    """Return the certificate request in an object. Raises ValueError if the PEM block or its content is malformed."""
    pem = decode_bytes(csr["spec"].get("request"))
    block = next(pem_blocks(pem), None)
    if block is None or block.type != _REQUEST_BLOCK:
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    try:
        request = x509.load_pem_x509_csr(block.text)
        _ = request.subject  # raises ValueError if it is malformed
    except _PARSE_ERRORS as error:
        raise ValueError("x509: malformed certificate request") from error
    return request


def names_of(request: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier) -> list[str]:
    """Return the values of a subject attribute of a certificate request, such as its organizations."""
    return [str(attribute.value) for attribute in request.subject.get_attributes_for_oid(oid)]


def organizations_of(request: x509.CertificateSigningRequest) -> list[str]:
    """Return the organizations of a certificate request: the groups of the user that it names."""
    return names_of(request, NameOID.ORGANIZATION_NAME)


def conditions_of(csr: Obj, *types: str) -> list[Mapping[str, Any]]:
    """Return the status conditions of an object with one of these types, in their order; without types all of them."""
    conditions = (csr.get("status") or {}).get("conditions") or ()
    return [condition for condition in conditions if not types or condition.get("type") in types]


def creation_errors(csr: Obj) -> Iterator[FieldError]:
    """Yield the validation errors of a new object."""
    spec = csr["spec"]
    if problem := _request_problem(csr):
        yield FieldError("spec.request", f'Invalid value: "{spec.get("request", "")}": {problem}')
    usages = spec.get("usages") or ()
    if not usages:
        yield rules.required("spec.usages", "", "")
    for index, usage in enumerate(usages):
        if usage not in USAGES:
            supported = ", ".join(f'"{each}"' for each in USAGES)
            problem = f'Unsupported value: "{usage}": supported values: {supported}'
            yield FieldError(f"spec.usages[{index}]", problem)
    for index in sorted(rules.repeated_indexes(usages)):
        yield rules.duplicate(f"spec.usages[{index}]", usages[index], "")
    yield from _signer_errors(spec.get("signerName") or "")
    lifetime = spec.get("expirationSeconds")
    if lifetime is not None and lifetime < _LIFETIME_SECONDS_MIN:
        message = "may not specify a duration less than 600 seconds (10 minutes)"
        yield rules.invalid("spec.expirationSeconds", lifetime, message, "")


def update_errors(new: Obj, old: Obj, settable: SettableStatus) -> Iterator[FieldError]:
    """Yield the validation errors of an update; `settable` says which parts of the status it may change."""
    yield from _condition_errors(conditions_of(new))
    new_certificate, old_certificate = (_certificate_of(each) for each in (new, old))
    if new_certificate != old_certificate and (problem := _certificate_problem(new_certificate)):
        yield FieldError(_CERTIFICATE_PATH, f'Invalid value: "<certificate data>": {problem}')
    for condition_type in (APPROVED, DENIED, FAILED):
        if len(conditions_of(new, condition_type)) < len(conditions_of(old, condition_type)):
            message = f'updates may not remove a condition of type "{condition_type}"'
            yield rules.forbidden(_CONDITIONS_PATH, message, "")
    if not settable.approval:
        for condition_type in (APPROVED, DENIED):
            if len(conditions_of(new, condition_type)) > len(conditions_of(old, condition_type)):
                message = f'updates may not add a condition of type "{condition_type}"'
                yield rules.forbidden(_CONDITIONS_PATH, message, "")
    if new_certificate != old_certificate and not settable.certificate:
        yield rules.forbidden(_CERTIFICATE_PATH, "updates may not set certificate content", "")
    elif new_certificate != old_certificate and old_certificate:
        yield rules.forbidden(_CERTIFICATE_PATH, "updates may not modify existing certificate content", "")


def _request_problem(csr: Obj) -> str:
    try:
        request = parse_certificate_request(csr)
        is_signed = request.is_signature_valid
    except _PARSE_ERRORS as error:
        return str(error)
    if is_signed:
        return ""
    is_rsa = isinstance(request.public_key(), rsa.RSAPublicKey)
    return "crypto/rsa: verification error" if is_rsa else "x509: ECDSA verification failure"


def _signer_errors(signer: str) -> Iterator[FieldError]:
    path = "spec.signerName"
    if signer == LEGACY_SIGNER:
        yield rules.invalid(path, signer, "the legacy signerName is not allowed via this API version", "")
        return
    if not signer:
        yield rules.required(path, "", "")
        return
    domain, separator, name = signer.partition("/")
    if not separator or "/" in name:
        message = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield rules.invalid(path, signer, message, "")
        return
    if len(domain) > _DOMAIN_LENGTH_MAX:
        yield rules.too_long(path, _DOMAIN_LENGTH_MAX, "")
    yield from _segment_errors(path, domain, rules.dns_label_errors)
    if "." not in domain:
        yield rules.invalid(path, domain, "should be a domain with at least two segments separated by dots", "")
    yield from _segment_errors(path, name, rules.dns_subdomain_errors)


def _segment_errors(path: str, segment: str, find_problems: Any) -> Iterator[FieldError]:
    for label in segment.split("."):
        if problems := find_problems(label):
            for problem in problems:
                yield rules.invalid(path, segment, f'validating label "{label}": {problem}', "")
            return


def _condition_errors(conditions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    seen_types: set[str] = set()
    for index, condition in enumerate(conditions):
        path, condition_type, status = f"{_CONDITIONS_PATH}[{index}]", condition.get("type"), condition.get("status")
        if not condition_type:
            yield rules.required(f"{path}.type", "", "")
        allowed_values = ("True",) if condition_type in (APPROVED, DENIED, FAILED) else _STATUS_VALUES
        if not status:
            yield rules.required(f"{path}.status", "", "")
        elif status not in allowed_values:
            values = ", ".join(f'"{value}"' for value in allowed_values)
            yield FieldError(f"{path}.status", f'Unsupported value: "{status}": supported values: {values}')
        other_type = {APPROVED: DENIED, DENIED: APPROVED}.get(str(condition_type))
        if other_type in seen_types:
            message = "Approved and Denied conditions are mutually exclusive"
            yield rules.invalid(_CONDITIONS_PATH, condition_type, message, "")
        if condition_type in seen_types:
            yield rules.duplicate(f"{path}.type", condition_type, "")
        seen_types.add(str(condition_type))


def _certificate_of(csr: Obj) -> bytes:
    return decode_bytes((csr.get("status") or {}).get("certificate"))


def _certificate_problem(pem: bytes) -> str:
    if not pem:
        return ""
    blocks = list(pem_blocks(pem))
    if not blocks:
        return "must contain at least one CERTIFICATE PEM block"
    for block in blocks:
        if block.type != _CERTIFICATE_BLOCK:
            return f'only CERTIFICATE PEM blocks are allowed, found "{block.type.decode()}"'
        if b":" in block.content:
            return "no PEM block headers are permitted"
        try:
            x509.load_pem_x509_certificate(block.text)
        except _PARSE_ERRORS:
            return "x509: malformed certificate"
    return ""
