"""Whatever comes over the wire: it is answered or refused, others are served, and nothing of it stays."""

from collections.abc import Iterator

import pytest

from e2e_platform.killing import ask
from fuzz.platform import MAPS, Fuzzed, Stalled

#: Megabytes that all that was sent may leave behind: objects that were made, and history.
GROWTH_MAX = 80


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with Fuzzed(tmp_path_factory.mktemp("platform")) as under_test:
        yield under_test


def test_requests_that_nobody_should_send_are_answered(fuzzed: Fuzzed) -> None:
    before = fuzzed.resident()
    fuzzed.send(800, "over the wire")
    assert fuzzed.faults == []
    assert fuzzed.resident() - before < GROWTH_MAX


def test_what_the_schemas_allow_is_answered(fuzzed: Fuzzed) -> None:
    fuzzed.send_by_schema("apis/coordination.k8s.io/v1", examples=5)
    assert fuzzed.faults == []


def test_what_is_no_request_is_refused(fuzzed: Fuzzed) -> None:
    fuzzed.send_shapes()
    fuzzed.send_garbled(60, "garbled")
    assert fuzzed.faults == []


def test_those_who_stall_keep_nobody_waiting(fuzzed: Fuzzed) -> None:
    with Stalled(fuzzed.url, 20):
        for number in range(100):
            code, _ = ask(
                fuzzed.url, "PUT", f"{MAPS}/kept", {"metadata": {"name": "kept"}, "data": {"a": "x" * 10_000}}
            )
            assert code == 200, number
    assert ask(fuzzed.url, "GET", "/version")[0] == 200


def test_it_recovers_and_its_log_tells_of_no_defect(fuzzed: Fuzzed) -> None:
    fuzzed.end()
    assert fuzzed.faults == []
