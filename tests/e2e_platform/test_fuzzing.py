"""Any input over the network is answered or rejected, without effect on other clients."""

from collections.abc import Iterator

import pytest

from e2e_platform.kill_rounds import ask
from fuzz.platform import MAPS, FuzzedPlatform, StalledConnections

#: Maximum growth of memory in megabytes, for created objects and history.
GROWTH_MAX = 80


@pytest.fixture(scope="module")
def fuzzed_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedPlatform]:
    with FuzzedPlatform(tmp_path_factory.mktemp("platform")) as under_test:
        yield under_test


def test_random_requests_are_answered_with_bounded_memory(fuzzed_platform: FuzzedPlatform) -> None:
    before = fuzzed_platform.resident()
    fuzzed_platform.send(800, "over the wire")
    assert fuzzed_platform.faults == []
    assert fuzzed_platform.resident() - before < GROWTH_MAX


def test_requests_allowed_by_schema_are_answered(fuzzed_platform: FuzzedPlatform) -> None:
    fuzzed_platform.send_by_schema("apis/coordination.k8s.io/v1", examples=5)
    assert fuzzed_platform.faults == []


def test_garbled_requests_are_rejected(fuzzed_platform: FuzzedPlatform) -> None:
    fuzzed_platform.send_shapes()
    fuzzed_platform.send_garbled(60, "garbled")
    assert fuzzed_platform.faults == []


def test_stalled_connections_do_not_block_other_clients(fuzzed_platform: FuzzedPlatform) -> None:
    with StalledConnections(fuzzed_platform.url, 20):
        for number in range(100):
            code, _ = ask(
                fuzzed_platform.url, "PUT", f"{MAPS}/kept", {"metadata": {"name": "kept"}, "data": {"a": "x" * 10_000}}
            )
            assert code == 200, number
    assert ask(fuzzed_platform.url, "GET", "/version")[0] == 200


def test_platform_recovers_without_errors_in_its_log(fuzzed_platform: FuzzedPlatform) -> None:
    fuzzed_platform.end()
    assert fuzzed_platform.faults == []
