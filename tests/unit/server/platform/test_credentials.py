"""The keys and certificates of a data directory: damaged and missing files."""

import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from batchyard.base.instant import HOUR
from batchyard.server.platform.credentials import CertificateAuthority, CredentialsError, SigningKey

NOW = 1000 * HOUR
P384 = ec.generate_private_key(ec.SECP384R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "tokens.key"])
@pytest.mark.parametrize(
    "content", [b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", P384]
)
def test_damaged_credential_file_is_reported_and_left_unchanged(tmp_path: Path, name: str, content: bytes) -> None:
    CertificateAuthority(tmp_path, NOW)
    SigningKey(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CredentialsError, match=f"{tmp_path / name} is damaged; restore this file .* or remove"):
        SigningKey(tmp_path) if name == "tokens.key" else CertificateAuthority(tmp_path, NOW)
    assert (tmp_path / name).read_bytes() == content


def test_certificate_without_key_is_not_replaced(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path, NOW)
    (tmp_path / "ca.key").unlink()
    before = (tmp_path / "ca.crt").read_bytes()
    remedy = r"restore this file from a copy of the data directory, or remove the certificate: then all certificates"
    with pytest.raises(CredentialsError, match=rf"ca\.key is missing, but its certificate .*ca\.crt exists; {remedy}"):
        CertificateAuthority(tmp_path, NOW)
    assert (tmp_path / "ca.crt").read_bytes() == before


def test_certificate_recreated_from_key_verifies_earlier_signatures(tmp_path: Path) -> None:
    signed = CertificateAuthority(tmp_path, NOW).issue_client_certificate("anna", ())
    (tmp_path / "ca.crt").unlink()
    again = CertificateAuthority(tmp_path, NOW)
    authority = x509.load_pem_x509_certificate(again.certificate_file.read_bytes())
    x509.load_pem_x509_certificate(signed.certificate).verify_directly_issued_by(authority)


def test_certificate_of_another_key_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    CertificateAuthority(tmp_path, NOW)
    CertificateAuthority(tmp_path / "other", NOW)
    shutil.copy(tmp_path / "other" / "ca.key", tmp_path / "ca.key")
    with pytest.raises(CredentialsError, match=r"ca\.crt is not the certificate of .*ca\.key; remove ca\.crt"):
        CertificateAuthority(tmp_path, NOW)
