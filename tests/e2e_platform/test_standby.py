"""A standby has every acknowledged write, takes over from a primary that is gone, and never serves beside it."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from e2e_platform.platform_process import kubectl
from fuzz.histories import NodeClient, repair, run_histories
from fuzz.standby_pair import PairNode, StandbyPair, wait_until

PATH = "/api/v1/namespaces/default/configmaps"


def write(client: NodeClient, name: str) -> int:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    with closing(client):
        return client.ask("POST", PATH, obj)[0]


def names(client: NodeClient) -> set[str]:
    with closing(client):
        code, answer = client.ask("GET", PATH)
    return {item["metadata"]["name"] for item in answer["items"]} if code == 200 else set()


def client_of(pair: StandbyPair, node: PairNode) -> NodeClient:
    return NodeClient([node], pair.client_context())


@pytest.fixture(scope="module")
def sync_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandbyPair]:
    with StandbyPair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.mark.slow
def test_histories_with_takeovers_are_linearizable(sync_pair: StandbyPair) -> None:
    results = list(run_histories(sync_pair, iter(range(4)), fault_percent=50))
    assert [violations for _, violations in results] == [[]] * 4


@pytest.mark.slow
def test_stopped_primary_serves_nothing_after_it_continues(sync_pair: StandbyPair) -> None:
    old, new = sync_pair.primary, sync_pair.standby
    assert write(client_of(sync_pair, old), "before") == 201
    old.send(signal.SIGSTOP)
    sync_pair.wait_for_takeover()
    assert write(client_of(sync_pair, new), "after") == 201
    old.send(signal.SIGCONT)
    for _ in range(40):
        assert names(client_of(sync_pair, old)) == set()
    assert {"before", "after"} <= names(client_of(sync_pair, new))
    repair(sync_pair, "stop")


@pytest.mark.slow
def test_primary_without_standby_stops_and_is_promoted(sync_pair: StandbyPair) -> None:
    primary = sync_pair.primary
    sync_pair.standby.end()
    client = client_of(sync_pair, primary)
    wait_until(lambda: names(client) == set(), "the primary stops to serve")
    assert write(client, "refused") == 0
    (primary.folder / "promotion.request").touch()
    wait_until(lambda: write(client, "alone") == 201, "the primary serves alone")
    sync_pair.follow()


@pytest.mark.slow
def test_ended_standby_leaves_and_primary_serves_on(sync_pair: StandbyPair) -> None:
    sync_pair.standby.end(signal.SIGTERM)
    assert write(client_of(sync_pair, sync_pair.primary), "without-standby") == 201
    sync_pair.follow()


@pytest.mark.slow
def test_only_the_standby_and_the_owner_may_read_the_journal(sync_pair: StandbyPair) -> None:
    admin = ("--kubeconfig", str(sync_pair.nodes[0].folder / "kubeconfig"), "--server", sync_pair.primary.url)
    config = sync_pair.nodes[0].folder / "kubeconfig"
    kubectl(config, *admin[2:], "create", "serviceaccount", "reader")
    account = ("--as", "system:serviceaccount:default:reader")
    denied = kubectl(config, *admin[2:], *account, "get", "--raw", "/batchyard/replication", fails=True)
    assert "forbidden" in denied.lower()
    standby = ("--as", "system:batchyard:standby")
    assert kubectl(config, *admin[2:], *standby, "auth", "can-i", "get", "/batchyard/replication") == "yes\n"
    assert kubectl(config, *admin[2:], *standby, "auth", "can-i", "get", "secrets", fails=True) == "no\n"


@pytest.mark.slow
def test_witness_lets_one_node_serve_when_the_other_is_gone(tmp_path: Path) -> None:
    with StandbyPair(tmp_path, has_witness=True) as pair:
        pair.standby.end()
        client = client_of(pair, pair.primary)
        wait_until(lambda: write(client, "alone") == 201, "the primary serves alone")
        pair.follow()
        old = pair.primary
        old.send(signal.SIGSTOP)
        pair.wait_for_takeover()
        assert "alone" in names(client_of(pair, pair.primary))
        old.send(signal.SIGCONT)
        assert old.process is not None
        assert old.process.wait(30) == 1
        assert "another platform has taken over" in old.log.read_text("utf-8")
        claims = sorted((tmp_path / "witness").iterdir())
        owners = [json.loads(path.read_text("utf-8"))["owner"] for path in claims]
        assert len(set(owners)) == 2


@pytest.mark.slow
def test_async_standby_serves_only_after_promotion(tmp_path: Path) -> None:
    with StandbyPair(tmp_path, "async") as pair:
        client = client_of(pair, pair.primary)
        assert write(client, "acknowledged") == 201
        threading.Event().wait(1)
        pair.primary.end()
        threading.Event().wait(4)
        assert not pair.standby.is_listening()
        (pair.standby.folder / "promotion.request").touch()
        pair.wait_for_takeover()
        assert "acknowledged" in names(client_of(pair, pair.primary))
