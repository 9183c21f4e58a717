"""Nodes for the tests of this folder: real spawners, isolated as far as this machine lets whoever runs the tests."""

import os
from collections.abc import Iterator

import pytest

from node.machine import ORDINARY_USER, Machine, machine

PLAIN = "bubblewrap,network,cgroups,userns"


@pytest.fixture
def plain() -> Iterator[Machine]:
    """A node that runs containers as plain processes; at the end nothing may be left of it."""
    with machine(without=PLAIN) as made:
        yield made


@pytest.fixture(params=["root", "user"])
def node(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A node with all that the machine can do, as root and as an ordinary user; nothing may be left of it."""
    as_user = request.param == "user"
    if os.geteuid() != 0 and not as_user:
        pytest.skip("only root can be root")
    with machine(user=ORDINARY_USER if as_user and os.geteuid() == 0 else None) as made:
        if not made.features["bubblewrap"]:
            pytest.skip("bubblewrap is not there, or does not work here")
        yield made


@pytest.fixture
def grouped() -> Iterator[Machine]:
    """A node that bounds what containers use by control groups; at the end nothing may be left of it."""
    with machine() as made:
        if not made.features["bubblewrap"] or not made.features["cgroups"]:
            pytest.skip("whoever runs the tests can make no control groups here, or has no bubblewrap")
        yield made
