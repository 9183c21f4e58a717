"""The file of the audit log."""

import json
from pathlib import Path

from batchyard.live.audit_log import AuditLog
from unit.apiserver.api import Api


def test_lines_are_for_the_owner_and_go_on_after_a_restart(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    for _ in range(2):
        log = AuditLog(path)
        log.note(api.audited[-1])
        log.close()
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["requestURI"] for line in lines] == ["/apis", "/apis"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_large_file_is_begun_anew(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    api.get("/apis")
    log = AuditLog(path, size_max=1000)
    for _ in range(9):
        log.note(api.audited[-1])
    log.close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["audit.log", "audit.log.1"]
    assert all(found.stat().st_size <= 1000 for found in tmp_path.iterdir())


def test_whatever_is_asked_is_one_line(tmp_path: Path) -> None:
    api, path = Api(), tmp_path / "audit.log"
    name = '\n{"kind":"Event","user":{"username":"nobody"}}\n\u2028\x1b[2K'
    api.ask("GET", f"/api/v1/{name}?{name}", headers={"user-agent": name})
    log = AuditLog(path)
    log.note(api.audited[-1])
    log.close()
    [line] = path.read_bytes().split(b"\n")[:-1]
    assert json.loads(line)["userAgent"] == name
    assert b"\x1b" not in line
