"""A standby has every acknowledged write, takes over from a primary that is gone, and never serves beside it."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from batchyard.store.journal import REVISION_LEAP
from e2e_platform.platform_process import kubectl
from fuzz.histories import NodeClient, repair, run_histories, settle
from fuzz.standby_pair import PairNode, StandbyPair, wait_until

PATH = "/api/v1/namespaces/default/configmaps"


def write(client: NodeClient, name: str) -> int:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    with closing(client):
        return client.ask("POST", PATH, obj)[0]


def store(client: NodeClient, name: str) -> None:
    """Write until the object exists: a primary that gets no CPU time loses its lease for a moment."""
    wait_until(lambda: write(client, name) in {201, 409}, f"{name} is stored")


def names(client: NodeClient) -> set[str]:
    with closing(client):
        code, answer = client.ask("GET", PATH)
    return {item["metadata"]["name"] for item in answer["items"]} if code == 200 else set()


def client_of(pair: StandbyPair, node: PairNode) -> NodeClient:
    return NodeClient([node], pair.client_context())


@pytest.fixture(scope="module")
def common_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandbyPair]:
    with StandbyPair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def sync_pair(common_pair: StandbyPair) -> StandbyPair:
    settle(common_pair)
    return common_pair


@pytest.mark.slow
def test_histories_with_takeovers_are_linearizable(sync_pair: StandbyPair) -> None:
    results = list(run_histories(sync_pair, iter(range(4)), fault_percent=50))
    assert [violations for _, violations in results] == [[]] * 4


@pytest.mark.slow
def test_stopped_primary_serves_nothing_after_it_continues(sync_pair: StandbyPair) -> None:
    old, new = sync_pair.primary, sync_pair.standby
    store(client_of(sync_pair, old), "before")
    old.send(signal.SIGSTOP)
    sync_pair.wait_for_takeover()
    store(client_of(sync_pair, new), "after")
    old.send(signal.SIGCONT)
    for _ in range(40):
        assert names(client_of(sync_pair, old)) == set()
    client = client_of(sync_pair, new)
    wait_until(lambda: {"before", "after"} <= names(client), "the new primary has both")
    repair(sync_pair, "stop")


@pytest.mark.slow
def test_primary_without_standby_stops_and_is_promoted(sync_pair: StandbyPair) -> None:
    primary = sync_pair.primary
    sync_pair.standby.end()
    client = client_of(sync_pair, primary)
    wait_until(lambda: names(client) == set(), "the primary stops to serve")
    assert write(client, "refused") == 0
    (primary.folder / "promotion.request").touch()
    store(client, "alone")
    sync_pair.follow()


@pytest.mark.slow
def test_ended_standby_leaves_and_primary_serves_on(sync_pair: StandbyPair) -> None:
    sync_pair.standby.end(signal.SIGTERM)
    store(client_of(sync_pair, sync_pair.primary), "without-standby")
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
        store(client, "alone")
        pair.follow()
        old = pair.primary
        old.send(signal.SIGSTOP)
        pair.wait_for_takeover()
        client = client_of(pair, pair.primary)
        wait_until(lambda: "alone" in names(client), "the new primary serves")
        old.send(signal.SIGCONT)
        wait_until(old.has_failed, "the old primary ends")
        assert "another platform has taken over" in old.log.read_text("utf-8")
        claims = sorted((tmp_path / "witness").iterdir())
        owners = [json.loads(path.read_text("utf-8"))["owner"] for path in claims]
        assert len(set(owners)) == 2


@pytest.mark.slow
def test_async_standby_serves_only_after_promotion(tmp_path: Path) -> None:
    with StandbyPair(tmp_path, "async") as pair:
        client = client_of(pair, pair.primary)
        store(client, "acknowledged")
        threading.Event().wait(1)
        pair.primary.end()
        threading.Event().wait(4)
        assert not pair.standby.is_listening()
        (pair.standby.folder / "promotion.request").touch()
        pair.wait_for_takeover()
        client = client_of(pair, pair.primary)
        wait_until(lambda: "acknowledged" in names(client), "the new primary serves")
        with closing(client):
            # No revision that a client saw before is used again, although the standby can lack its change.
            assert client.ask("GET", f"{PATH}?watch=1&resourceVersion=5&timeoutSeconds=1")[1]["code"] == 410
            assert int(client.ask("GET", PATH)[1]["metadata"]["resourceVersion"]) > REVISION_LEAP


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_superseded_primary_does_not_serve_after_restarts(tmp_path: Path, is_killed: bool) -> None:
    with StandbyPair(tmp_path, "async") as pair:
        old = pair.primary
        if is_killed:
            old.end()
        (pair.standby.folder / "promotion.request").touch()
        pair.wait_for_takeover()
        if is_killed:
            pair.restart(old)  # serves until the new primary reaches it
        wait_until(old.has_failed, "the old primary ends")
        pair.restart(old)
        wait_until(lambda: "waits for its standby" in old.last_log(), "the old primary waits")
        wait_until(old.is_listening, "the old primary listens")
        assert write(client_of(pair, old), "split") == 0
        store(client_of(pair, pair.primary), "new")


@pytest.mark.slow
def test_promotion_of_a_connected_standby_loses_nothing(tmp_path: Path) -> None:
    with StandbyPair(tmp_path, "async") as pair:
        client = client_of(pair, pair.primary)
        for number in range(50):
            store(client, f"m{number}")
        (pair.standby.folder / "promotion.request").touch()
        pair.wait_for_takeover()
        client = client_of(pair, pair.primary)
        stored = {f"m{number}" for number in range(50)}
        wait_until(lambda: stored <= names(client), "the new primary has all")
        with closing(client):  # so revisions continue, and watches resume
            assert int(client.ask("GET", PATH)[1]["metadata"]["resourceVersion"]) < REVISION_LEAP
