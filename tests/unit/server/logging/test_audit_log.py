"""The file of the audit log."""

import json
import resource
from pathlib import Path

import pytest

from batchyard.server.logging.logs import AuditLog
from unit.apiserver.api import Api


def test_audit_log_is_private_and_appends_after_restart(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    for _ in range(2):
        log = AuditLog(path)
        log.record(api.audited[-1])
        log.close()
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["requestURI"] for line in lines] == ["/apis", "/apis"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_large_audit_log_is_rotated(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    log = AuditLog(path, size_max=1000)
    for _ in range(9):
        log.record(api.audited[-1])
    log.close()
    assert sorted(result.name for result in tmp_path.iterdir()) == ["audit.log", "audit.log.1"]
    assert all(result.stat().st_size <= 1000 for result in tmp_path.iterdir())


def test_audit_entry_is_always_one_line(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    name = '\n{"kind":"Event","user":{"username":"nobody"}}\n\u2028\x1b[2K'
    api.ask("GET", f"/api/v1/{name}?{name}", headers={"user-agent": name})
    log = AuditLog(path)
    log.record(api.audited[-1])
    log.close()
    [line] = path.read_bytes().split(b"\n")[:-1]
    assert json.loads(line)["userAgent"] == name
    assert b"\x1b" not in line


def test_audit_log_continues_when_rotation_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    aside = tmp_path / "audit.log.1"
    aside.mkdir()
    log = AuditLog(path, size_max=1000)
    for _ in range(5):
        log.record(api.audited[-1])
    assert f"an event could not be written to the audit log {path} and is lost: " in caplog.text
    aside.rmdir()
    log.record(api.audited[-1])
    log.close()
    assert [len(result.read_bytes().splitlines()) for result in (path, aside)] == [1, 3]


def test_audit_log_writes_no_partial_lines(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    log = AuditLog(path)
    log.record(api.audited[-1])
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    log.record(api.audited[-1])
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.record(api.audited[-1])
    log.close()
    assert [json.loads(line)["verb"] for line in path.read_text("utf-8").splitlines()] == ["get", "get"]
