"""Unexpected exceptions of controllers: each is counted, and logged once for each object."""

import pytest

from batchyard.server.metrics import ServerMetrics


def defect(name: str, instant: int) -> Exception:
    error = KeyError("spec")
    error.add_note(f'while jobs reconciled Job.batch "team/{name}" at instant {instant}')
    return error


def test_defect_is_logged_once_for_each_object(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ServerMetrics()
    for name, instant in (("a", 1), ("a", 2), ("b", 3), ("a", 4)):
        metrics.record_defect(defect(name, instant))
    assert [record.getMessage() for record in caplog.records] == [
        'unexpected exception while jobs reconciled Job.batch "team/a" at instant 1',
        'unexpected exception while jobs reconciled Job.batch "team/b" at instant 3',
    ]
    assert metrics.defects == 4
