"""Credentials of an embedded platform: its certificate authority, the certificates it signs, and kubeconfigs.

The keys are created once for a data directory, and only its owner can read them. The server certificate is issued at
each start, for the addresses on which the platform then listens.
"""

import base64
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.api.meta import Key
from batchyard.api.scheme import SERVICE_ACCOUNT
from batchyard.api.times import to_datetime
from batchyard.apiserver.auth.tokens import ISSUER, TokenIssuer
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.data_dir import write_private

ADMIN_USER: Final = "admin"
CA_FILE: Final = "ca.crt"
#: The maximum length of a common name in a certificate.
COMMON_NAME_MAX: Final = 64
_VALID_FOR: Final = 10 * 365 * 24 * HOUR
_BACKDATED_VALIDITY: Final = HOUR  # tolerates clock skew
#: Certificates for requests: how far their validity is backdated, and the lifetime below which its end is not.
_REQUEST_BACKDATED: Final = 5 * MINUTE
_SHORT_LIFETIME: Final = 8 * HOUR
#: The usages of Kubernetes' certificate requests that the signers of a platform accept.
_EXTENDED_USAGES: Final = {
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
}
_SIGNATURE_NUMBER_SIZE: Final = 32  # bytes of each of r and s


_REMEDY: Final = "restore this file from a copy of the data directory"


class CredentialsError(Exception):
    """Keys or certificates are missing, damaged or do not match. The message contains the reason and the remedy."""


class SignedCertificate(NamedTuple):
    """A certificate with its private key, both as PEM."""

    certificate: bytes
    key: bytes


class CertificateAuthority:
    """The certificate authority (CA) of a platform. Its key and certificate are files, created at the first start.

    The key is written first. After a crash between both writes, the next start creates the certificate of that key.
    """

    def __init__(self, folder: Path, now: Instant) -> None:
        """Load the CA from this folder, or create it.

        Raises CredentialsError if the files are damaged or do not match, or if only the key is missing.
        """
        self._now = now
        key_file, self.certificate_file = folder / "ca.key", folder / CA_FILE
        loss_text = "then all certificates that it signed become invalid"
        if not key_file.exists():
            if self.certificate_file.exists():
                missing_error = f"{key_file} is missing, but its certificate {self.certificate_file} exists"
                raise CredentialsError(f"{missing_error}; {_REMEDY}, or remove the certificate: {loss_text}")
            write_private(key_file, _encode_key(ec.generate_private_key(ec.SECP256R1())))
        self._key = _load_key(key_file, f"or remove {key_file} and {CA_FILE}: {loss_text}")
        if not self.certificate_file.exists():
            self._make_certificate()
        self._certificate = _load_certificate(self.certificate_file)
        if self._certificate.public_key() != self._key.public_key():
            mismatch_error = f"{self.certificate_file} is not the certificate of {key_file}"
            raise CredentialsError(f"{mismatch_error}; remove {CA_FILE} (the next start creates it), or {_REMEDY}")

    def issue_server_certificate(self, addresses: Sequence[str]) -> SignedCertificate:
        """Issue a TLS server certificate for these DNS names and IP addresses."""
        names = x509.SubjectAlternativeName([_general_name(address) for address in addresses])
        return self._sign_certificate(
            self._certificate_builder(_subject_name("batchyard"), _VALID_FOR), ExtendedKeyUsageOID.SERVER_AUTH, names
        )

    def issue_client_certificate(
        self, user: str, groups: Sequence[str], valid_for: Duration = _VALID_FOR
    ) -> SignedCertificate:
        """Issue a TLS client certificate for a user and groups. `valid_for` counts from the constructor's `now`."""
        return self._sign_certificate(
            self._certificate_builder(_subject_name(user, groups), valid_for), ExtendedKeyUsageOID.CLIENT_AUTH, None
        )

    def sign_request(self, request: x509.CertificateSigningRequest, usages: Sequence[str], lifetime: Duration) -> bytes:
        """Return a certificate as PEM for the subject, key and names of a request. The validity counts from now.

        Source: Kubernetes's pkg/controller/certificates/authority/policies.go.
        """
        now = wall_clock()
        backdated_end = 0 if lifetime < _SHORT_LIFETIME else _REQUEST_BACKDATED
        end = min(to_datetime(now + lifetime - backdated_end), self._certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._certificate.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(to_datetime(now - _REQUEST_BACKDATED))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        if key_usage := _key_usage(usages):
            builder = builder.add_extension(key_usage, critical=True)
        if extended_usages := [_EXTENDED_USAGES[usage] for usage in usages if usage in _EXTENDED_USAGES]:
            builder = builder.add_extension(x509.ExtendedKeyUsage(extended_usages), critical=False)
        try:
            names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            builder = builder.add_extension(names, critical=False)
        except x509.ExtensionNotFound:
            pass
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _make_certificate(self) -> None:
        name = _subject_name("batchyard-ca")
        builder = self._certificate_builder(name, _VALID_FOR).issuer_name(name).public_key(self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        write_private(self.certificate_file, certificate.public_bytes(serialization.Encoding.PEM))

    def _sign_certificate(
        self, template: x509.CertificateBuilder, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None
    ) -> SignedCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = template.issuer_name(self._certificate.subject).public_key(key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return SignedCertificate(certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key))

    def _certificate_builder(self, subject: x509.Name, valid_for: Duration) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .serial_number(x509.random_serial_number())
            .not_valid_before(to_datetime(self._now - _BACKDATED_VALIDITY))
            .not_valid_after(to_datetime(self._now + valid_for))
        )


class SigningKey:
    """The key with which a platform signs ServiceAccount tokens (ES256), stored as a file and created if missing."""

    def __init__(self, folder: Path) -> None:
        """Load the key from its folder, or create it. Raises CredentialsError if the stored key is damaged."""
        path = folder / "tokens.key"
        if not path.exists():
            write_private(path, _encode_key(ec.generate_private_key(ec.SECP256R1())))
        self._key = _load_key(path, "or remove it: then all issued tokens become invalid")
        public_format = serialization.PublicFormat.SubjectPublicKeyInfo
        public_der = self._key.public_key().public_bytes(serialization.Encoding.DER, public_format)
        key_digest = hashes.Hash(hashes.SHA256())
        key_digest.update(public_der)
        self.key_id = base64.urlsafe_b64encode(key_digest.finalize()).rstrip(b"=").decode()

    def sign(self, message: bytes) -> bytes:
        """Sign a message; return the ECDSA signature as r and s, concatenated (RFC 7518, section 3.4)."""
        r_and_s = decode_dss_signature(self._key.sign(message, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(_SIGNATURE_NUMBER_SIZE, "big") for number in r_and_s)

    def is_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether a signature of a message was made with this key."""
        if len(signature) != 2 * _SIGNATURE_NUMBER_SIZE:
            return False
        r_bytes, s_bytes = signature[:_SIGNATURE_NUMBER_SIZE], signature[_SIGNATURE_NUMBER_SIZE:]
        encoded_signature = encode_dss_signature(int.from_bytes(r_bytes, "big"), int.from_bytes(s_bytes, "big"))
        try:
            self._key.public_key().verify(encoded_signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


def kubeconfig_text(
    url: str, ca_certificate: bytes, user: str, certificate: SignedCertificate, namespace: str = ""
) -> str:
    """Return a kubeconfig with embedded credentials of a user; `ca_certificate` is the server's, as PEM."""
    cluster = {"server": url, "certificate-authority-data": _encode_base64(ca_certificate)}
    user_credentials = {
        "client-certificate-data": _encode_base64(certificate.certificate),
        "client-key-data": _encode_base64(certificate.key),
    }
    context = {"cluster": "batchyard", "user": user, **({"namespace": namespace} if namespace else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "batchyard", "cluster": cluster}],
        "users": [{"name": user, "user": user_credentials}],
        "contexts": [{"name": "batchyard", "context": context}],
        "current-context": "batchyard",
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def _subject_name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    name_attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*name_attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _key_usage(usages: Sequence[str]) -> x509.KeyUsage | None:
    signs, enciphers = "digital signature" in usages, "key encipherment" in usages
    if not signs and not enciphers:
        return None
    other_usages = ("content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign")
    no_usages = dict.fromkeys((*other_usages, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=signs, key_encipherment=enciphers, **no_usages)


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _load_key(path: Path, other_remedy: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CredentialsError(f"{path} is damaged; {_REMEDY}, {other_remedy}")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise CredentialsError(f"{path} is damaged; {_REMEDY}, or remove it: the next start creates it") from error


def _encode_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


# ServiceAccount tokens for the projected volumes of pods.


def issue_pod_token(
    issuer: TokenIssuer, reader: Reader, namespace: str, account: str, audience: str, lifetime: int
) -> str:
    """Issue a ServiceAccount token, valid for `lifetime` seconds. Raises InputError if the ServiceAccount is missing.

    If `audience` is empty, the token is for the API server.
    """
    stored_account = reader.get(Key(SERVICE_ACCOUNT, namespace, account))
    if stored_account is None:
        raise InputError(f'failed to fetch token: serviceaccounts "{account}" not found')
    return issuer.issue_account_token(stored_account, None, (audience or ISSUER,), issuer.clock() + lifetime * SECOND)
