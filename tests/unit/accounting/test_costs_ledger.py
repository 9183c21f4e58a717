"""The cost ledger: the cost of machines equals the cost of the work on them plus idle time, to the cent."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard import simulate
from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS, Statement, statement_of
from batchyard.accounting.ledger import BY_TEAM, CostLedger, LedgerDetail
from batchyard.api.meta import Obj, key_of
from batchyard.api.times import format_time
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.client.local import LocalClient
from batchyard.cloud.catalog.pool_properties import node_rate
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, EventType, WatchEvent, WriteResult
from batchyard.store.memory import Store

CLOUD = "cloud.batchyard.dev/v1alpha1"
#: Dollars per hour of the machine with two accelerators.
PRICE = 2.0


def cloud(kind: str, name: str, **spec: Any) -> Obj:
    return {"apiVersion": CLOUD, "kind": kind, "metadata": {"name": name}, "spec": spec}


def ignore(result: WriteResult) -> None:
    """Ignore a result."""


class LedgerFixture:
    """A ledger, and the events that it observes."""

    def __init__(self, price: float = PRICE, detail: LedgerDetail = BY_TEAM) -> None:
        kernel = VirtualEventLoop(make.NOW)
        client = LocalClient(Store(), kernel)
        prices = {"g2-standard-24": {"onDemand": price}}
        pool = cloud("NodePool", "p", machineType="g2-standard-24")
        for obj in (cloud("Cluster", "c", zones=["z"], prices=prices), pool):
            client.submit([Create(obj)], ignore)
        kernel.run()
        self.ledger = CostLedger(client, detail)

    def statement(self, now: int) -> Statement:
        return statement_of(self.ledger.accounts_until_now(now))

    def observe(self, obj: Mapping[str, Any], at: int, *, gone: bool = False) -> None:
        kind = EventType.DELETED if gone else EventType.MODIFIED
        self.ledger.observe([WatchEvent(kind, key_of(obj), obj, None, 1)], make.NOW + at)

    def machine(self, phase: str, at: int, name: str = "n", *, gone: bool = False) -> None:
        obj = cloud("Instance", name, pool="p", zone="z", machineType="g2-standard-24")
        self.observe({**obj, "status": {"phase": phase}}, at, gone=gone)

    def ready(self, at: int, name: str = "n") -> None:
        status = {
            "allocatable": {"cpu": "24", "memory": "90Gi", "nvidia.com/gpu": "2"},
            "conditions": [make.condition("Ready", since=at // SECOND)],
        }
        self.observe({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}, at)

    def pod(self, name: str, phase: str, at: int, *, team: str = "team", **reported: Any) -> None:
        """`gpus` is the requested count, `every` the checkpoint interval, `since` the start time of its containers."""
        gpus, every, since = reported.get("gpus", 1), reported.get("every"), reported.get("since")
        container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        notes = {"annotations": {"batchyard.dev/checkpoint-every": every}} if every else {}
        metadata = {"name": name, "namespace": team, "uid": f"uid-{team}-{name}", **notes}
        spec = {"nodeName": "n", "containers": [container]}
        state = {"running": {"startedAt": format_time(make.NOW + since)}} if since is not None else {}
        status = {"phase": phase, "containerStatuses": [{"state": state}]}
        obj = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        self.observe(obj, at)


def costs(statement: Statement) -> dict[tuple[str, str], float]:
    """Return dollars by team and use."""
    return {(line.team, line.use): line.cost for line in statement.by_team}


def test_ledger_splits_machine_hour_into_boot_done_and_idle() -> None:
    books = LedgerFixture()
    books.machine("Booting", 0)
    books.ready(15 * MINUTE)
    books.pod("a", "Pending", 30 * MINUTE)
    books.pod("a", "Running", 31 * MINUTE)
    books.pod("a", "Succeeded", HOUR)
    books.machine("Running", HOUR, gone=True)
    statement = books.statement(make.NOW + 2 * HOUR)
    assert costs(statement) == {("", BOOT): 0.5, ("", IDLE): 1.0, ("team", DONE): 0.5}
    assert statement.cost == PRICE
    hours = {line.use: (line.machine_hours, line.accelerator_hours) for line in statement.by_pool}
    assert hours == {BOOT: (0.25, 0), IDLE: (0.5, 1.0), DONE: (0.25, 0.5)}


def test_work_of_failed_pod_or_crashed_machine_is_lost() -> None:
    books = LedgerFixture()
    books.machine("Booting", 0)
    books.ready(0)
    books.pod("failed", "Running", 0, team="red")
    books.pod("crashed", "Running", 0, team="blue")
    books.pod("failed", "Failed", 30 * MINUTE, team="red")
    books.machine("Crashed", HOUR)
    statement = books.statement(make.NOW + 2 * HOUR)
    assert costs(statement) == {("red", LOST): 0.5, ("blue", LOST): 1.0, ("", IDLE): 0.5}


@pytest.mark.parametrize(
    ("metadata", "local", "price"),
    [
        ({}, {}, 0),
        ({}, {"price": "0.5"}, 500_000),
        ({"annotations": {"cost.batchyard.dev/price": "1.25"}}, {"price": "0.5"}, 1_250_000),
        ({"annotations": {"cost.batchyard.dev/price": "much"}}, {}, 0),
        ({"labels": {"node.kubernetes.io/instance-type": "x1"}}, {"price": "0.5"}, 3_000_000),
        ({"labels": {"node.kubernetes.io/instance-type": "x1", "cloud.google.com/gke-spot": "true"}}, {}, 1_000_000),
    ],
)
def test_price_of_node_without_instance_comes_from_annotation_type_or_cluster(
    metadata: dict[str, Any], local: dict[str, Any], price: int
) -> None:
    catalog = {"x1": {"family": "x1", "cpu": 8, "memory": "64Gi", "onDemand": 3, "spot": 1}}
    cluster = cloud("Cluster", "c", zones=["z"], catalog=catalog, local=local)
    assert node_rate({"metadata": {"name": "n", **metadata}}, cluster).price == price


def test_nodes_without_instances_are_machines_with_all_nodes() -> None:
    books = LedgerFixture(detail=LedgerDetail(is_by_workload=True, includes_bare_nodes=True))
    books.ready(0, "bare")
    assert [(line.pool, line.use) for line in books.statement(make.NOW + HOUR).by_pool] == [("nodes", IDLE)]
    assert list(books.ledger.unpriced_pools()) == [("nodes", "standard")]


@pytest.mark.parametrize("crashes", [True, False])
def test_only_work_since_last_checkpoint_is_lost(crashes: bool) -> None:
    books = LedgerFixture()
    books.machine("Booting", 0)
    books.ready(0)
    books.pod("a", "Pending", 0, gpus=2, every="20m")
    books.pod("a", "Running", 5 * MINUTE, since=5 * MINUTE, gpus=2, every="20m")
    if crashes:
        books.machine("Crashed", HOUR)
    else:
        books.pod("a", "Failed", HOUR, gpus=2, every="20m")
        books.machine("Running", HOUR, gone=True)
    statement = books.statement(make.NOW + 2 * HOUR)
    hours = {line.use: (line.machine_hours, line.accelerator_hours, line.cost) for line in statement.by_pool}
    assert hours == {DONE: pytest.approx((2 / 3, 4 / 3, 1.33)), LOST: pytest.approx((1 / 3, 2 / 3, 0.67))}


def test_checkpoints_count_per_run_of_pod() -> None:
    books = LedgerFixture()
    books.machine("Booting", 0)
    books.ready(0)
    for since in (0, 25 * MINUTE):
        books.pod("a", "Running", since, since=since, gpus=2, every="20m")
    books.pod("a", "Failed", HOUR, gpus=2, every="20m")
    assert costs(books.statement(make.NOW + HOUR)) == {("team", DONE): 1.33, ("team", LOST): 0.67}


def test_work_of_running_pod_is_neither_done_nor_lost() -> None:
    books = LedgerFixture()
    books.machine("Booting", 0)
    books.ready(0)
    books.pod("a", "Running", 0, gpus=2)
    assert costs(books.statement(make.NOW + HOUR)) == {("team", RUNS): PRICE}
    assert costs(books.statement(make.NOW + 2 * HOUR)) == {("team", RUNS): 2 * PRICE}


@pytest.mark.parametrize("price", [0.01, 0.07, 1.0, 2.11])
def test_statement_lines_sum_to_total_cost(price: float) -> None:
    books = LedgerFixture(price)
    for number in range(3):
        books.machine("Booting", number * MINUTE, "n" if not number else f"n{number}")
    books.ready(7 * MINUTE)
    for number, team in enumerate(["red", "blue"]):
        books.pod("a", "Running", (11 + number) * MINUTE, team=team)
        books.pod("a", "Succeeded", (23 + 7 * number) * MINUTE, team=team)
    statement = books.statement(make.NOW + 3 * HOUR + 17 * MINUTE)
    expected = round(price * 100 * (3 * 197 - 3) / 60) / 100
    assert statement.cost == pytest.approx(expected, abs=0.0051)
    for lines in (statement.by_pool, statement.by_team):
        assert round(sum(line.cost for line in lines), 2) == statement.cost


def test_new_price_applies_from_its_change() -> None:
    pools = [{"name": "p", "machineType": "e2-medium", "nodeCount": 1}]
    first = cloud("Cluster", "c", zones=["z-a"], nodePools=pools, prices={"e2-medium": {"onDemand": 1}})
    then = cloud("Cluster", "c", zones=["z-a"], nodePools=pools, prices={"e2-medium": {"onDemand": 2}})
    later = {"name": "c", "annotations": {"batchyard.dev/submit-at": "30m"}}
    result = simulate(first, {**then, "metadata": later}, until="1h")
    assert result.costs is not None
    assert result.costs.cost == 1.5


def test_accelerators_are_counted_by_resource_name_of_catalog() -> None:
    device = {"accelerator": {"type": "npu", "count": 4, "resource": "example.com/npu"}}
    catalog = {"x1": {"cpu": 8, "memory": "64Gi", "onDemand": 1, **device}}
    pools = [{"name": "p", "machineType": "x1", "nodeCount": 1}]
    container = {"name": "main", "image": "i", "resources": {"limits": {"example.com/npu": "1"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "team", "annotations": {"batchyard.dev/runtime": "1h"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    result = simulate(cloud("Cluster", "c", zones=["z-a"], catalog=catalog, nodePools=pools), pod)
    assert result.costs is not None
    (done,) = [line for line in result.costs.by_team if line.use == DONE]
    assert done.cost == 0.25
    assert done.accelerator_hours == pytest.approx(1, abs=0.004)
