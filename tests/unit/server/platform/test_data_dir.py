"""The state file and the kubeconfig of a data directory."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchyard.server.kubeconfig.access import KubeconfigError, owner_tls_context
from batchyard.server.platform.credentials import CertificateAuthority, kubeconfig_text
from batchyard.server.platform.data_dir import (
    JOURNAL_FILE,
    KUBECONFIG_FILE,
    STATE_FILE,
    PlatformProcess,
    running_process_in,
    write_state,
)
from batchyard.store.journal_file import CommitMark

URL = "https://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose journal a process has open."""
    mark = CommitMark(tmp_path / JOURNAL_FILE)
    yield tmp_path
    mark.close()


def test_platform_process_is_found_by_state_file(folder: Path) -> None:
    write_state(folder, URL)
    assert running_process_in(folder) == PlatformProcess(os.getpid(), URL)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"null", b"{", b"\xff", b'{"pid": 1}', b'{"pid": "x", "url": ""}', b'{"pid": -1, "url": ""}'),
        *(b'{"pid": 0, "url": ""}', b'{"pid": null, "url": ""}', b'{"pid": 1e300, "url": ""}'),
    ],
)
def test_invalid_state_file_names_no_process(folder: Path, content: bytes) -> None:
    (folder / STATE_FILE).write_bytes(content)
    assert running_process_in(folder) is None


def test_reused_process_id_is_not_platform_process(folder: Path) -> None:
    write_state(folder, URL)
    state = json.loads((folder / STATE_FILE).read_bytes())
    (folder / STATE_FILE).write_text(json.dumps({**state, "began": "1"}), "utf-8")
    assert running_process_in(folder) is None
    (folder / STATE_FILE).write_text(json.dumps({"pid": os.getpid(), "url": URL}), "utf-8")
    assert running_process_in(folder) == PlatformProcess(os.getpid(), URL), "the format of earlier versions"


@pytest.mark.parametrize("damage", ["empty", "[", "a: b", "clusters: 1", "certificate", "authority", "bytes"])
def test_damaged_kubeconfig_is_reported_with_remedy(tmp_path: Path, damage: str) -> None:
    authority = CertificateAuthority(tmp_path, 0)
    path, known = tmp_path / KUBECONFIG_FILE, authority.certificate_file.read_bytes()
    good = kubeconfig_text(URL, known, "admin", authority.issue_client_certificate("admin", ()))
    path.write_text(good, "utf-8")
    owner_tls_context(tmp_path)
    damaged = {
        "empty": "",
        "certificate": good.replace("client-certificate-data: L", "client-certificate-data: A"),
        "authority": good.replace("certificate-authority-data: L", "certificate-authority-data: A"),
    }
    path.write_bytes(b"\xff\xfe" if damage == "bytes" else damaged.get(damage, damage).encode())
    with pytest.raises(KubeconfigError, match="kubeconfig is damaged; restart the platform to write a new one"):
        owner_tls_context(tmp_path)
    path.unlink()
    with pytest.raises(KubeconfigError, match="kubeconfig is missing; restart the platform"):
        owner_tls_context(tmp_path)
