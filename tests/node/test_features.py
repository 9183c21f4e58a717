"""What the spawner says that a machine can do."""

from typing import Any

from batchyard.node.features import Features, missing
from node.machine import ORDINARY_USER, Machine, machine, shell

NOTHING = "bubblewrap,network,cgroups,userns"


def test_who_does_without_everything_is_told_what_that_means(plain: Machine) -> None:
    told = plain.features
    assert told["spawner"] == plain.spawner.pid
    assert (told["bubblewrap"], told["podNetwork"], told["cgroups"]) == (None, False, None)
    assert {row["what"] for row in told["missing"]} >= {"bubblewrap", "pod network", "cgroups"}
    assert all(row["means"] and row["remedy"] for row in told["missing"])


def test_a_machine_that_can_do_all_misses_nothing(grouped: Machine) -> None:
    told = grouped.features
    assert (told["isRoot"], told["userNamespaces"], told["podNetwork"]) == (True, False, True)
    missing_here = {row["what"] for row in told["missing"]}
    assert not missing_here & {"user namespaces", "bubblewrap", "pod network", "cgroups"}
    assert "memory" in told["cgroups"]["controllers"]


def test_an_ordinary_user_has_a_user_namespace(node: Machine) -> None:
    told = node.features
    assert told["userNamespaces"] == (not told["isRoot"])
    assert told["podNetwork"]


def test_why_there_is_no_network_is_told() -> None:
    nothing: dict[str, Any] = dict.fromkeys(Features._fields)
    found = missing(Features(**nothing | {"network_failure": "Operation not supported"}))
    assert "(Operation not supported)" in next(row["means"] for row in found if row["what"] == "pod network")


def test_mounts_are_refused_where_nothing_can_be_mounted(plain: Machine) -> None:
    mount = {"source": "volumes/x", "target": "/x", "readOnly": False}
    told = plain.ended(shell("true", mounts=[mount]))
    assert (told["reason"], "/x cannot be mounted without bubblewrap" in told["message"]) == ("StartError", True)


def test_plain_processes_are_an_ordinary_users_too() -> None:
    with machine(without=NOTHING, user=ORDINARY_USER) as node:
        node.ended(shell("id -u"))
        assert node.texts() == [str(ORDINARY_USER)]
