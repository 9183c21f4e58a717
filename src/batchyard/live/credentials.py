"""Who may talk to an embedded platform: its own certificate authority, the certificates it signs, a kubeconfig.

All of it is made once for a data directory, readable by its owner alone. The server's certificate is made anew at each
start, for the addresses it has then.
"""

import base64
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR, Instant

ADMIN: Final = "admin"
#: Whoever is in it may do everything.
MASTERS: Final = "system:masters"
_VALID_FOR: Final = 10 * 365 * 24 * HOUR
_BEGINS_BEFORE: Final = HOUR  # clocks differ


class Signed(NamedTuple):
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority in a folder, made if it is not there."""

    def __init__(self, folder: Path, now: Instant) -> None:
        self._now = now
        self._key_file, self.certificate_file = folder / "ca.key", folder / "ca.crt"
        if not self._key_file.exists():
            self._make()
        self._key = _loaded_key(self._key_file)
        self._certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())

    def server(self, addresses: Sequence[str]) -> Signed:
        """The certificate of a server at these names and addresses."""
        names = x509.SubjectAlternativeName([_general_name(address) for address in addresses])
        return self._signed(_name("batchyard"), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, groups: Sequence[str]) -> Signed:
        """The certificate of a user in these groups."""
        return self._signed(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _make(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begun(_name("batchyard-ca"), key.public_key(), _name("batchyard-ca"))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.sign(key, hashes.SHA256())
        write_private(self.certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
        write_private(self._key_file, _pem(key))

    def _signed(
        self, subject: x509.Name, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None
    ) -> Signed:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begun(subject, key.public_key(), self._certificate.subject)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Signed(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    def _begun(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(to_datetime(self._now - _BEGINS_BEFORE))
            .not_valid_after(to_datetime(self._now + _VALID_FOR))
        )


def kubeconfig(url: str, authority: bytes, user: str, signed: Signed) -> str:
    """A kubeconfig that talks to a server as a user, whole in itself."""
    cluster = {"server": url, "certificate-authority-data": _base64(authority)}
    secrets = {
        "client-certificate-data": _base64(signed.certificate),
        "client-key-data": _base64(signed.key),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "batchyard", "cluster": cluster}],
        "users": [{"name": user, "user": secrets}],
        "contexts": [{"name": "batchyard", "context": {"cluster": "batchyard", "user": user}}],
        "current-context": "batchyard",
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _loaded_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "we made it"
    return key


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
