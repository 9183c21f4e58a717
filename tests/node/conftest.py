"""Nodes for the tests of this folder: real spawners, isolated as far as this machine lets whoever runs the tests."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from node.engine_image import SAYS, busybox_image, image_id
from node.machine import ORDINARY_USER, Machine, machine

PLAIN = "bubblewrap,network,cgroups,userns"


class Pool:
    """Nodes that are used by one test after the other; one in which something went wrong is used no more."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int | None], tuple[Machine, ExitStack]] = {}

    @contextmanager
    def lend(self, without: str = "", user: int | None = None) -> Iterator[Machine]:
        """A node on which nothing runs; when it is given back nothing may be left of what ran."""
        if (without, user) not in self._nodes:
            stack = ExitStack()
            self._nodes[without, user] = stack.enter_context(machine(without, user)), stack
        node, stack = self._nodes.pop((without, user))
        try:
            yield node
            node.settle()
        finally:
            if node.left():
                node.close()
        self._nodes[without, user] = node, stack

    def close(self) -> None:
        """End them all."""
        for _, stack in self._nodes.values():
            stack.close()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The nodes of these tests."""
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def plain(pool: Pool) -> Iterator[Machine]:
    """A node that runs containers as plain processes; at the end nothing may be left of them."""
    with pool.lend(PLAIN) as made:
        yield made


@pytest.fixture(params=["root", "user"])
def node(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Machine]:
    """A node with all that the machine can do, as root and as an ordinary user; nothing of its pods may be left."""
    as_user = request.param == "user"
    if os.geteuid() != 0 and not as_user:
        pytest.skip("only root can be root")
    with pool.lend(user=ORDINARY_USER if as_user and os.geteuid() == 0 else None) as made:
        if not made.features["bubblewrap"]:
            pytest.skip("bubblewrap is not there, or does not work here")
        yield made


@pytest.fixture
def grouped(pool: Pool) -> Iterator[Machine]:
    """A node that bounds what containers use by control groups; at the end nothing of its pods may be left."""
    with pool.lend() as made:
        if not made.features["bubblewrap"] or not made.features["cgroups"]:
            pytest.skip("whoever runs the tests can make no control groups here, or has no bubblewrap")
        yield made


@pytest.fixture(scope="session")
def busybox() -> Iterator[str]:
    """The name of an image that podman has."""
    with busybox_image(*SAYS) as name:
        yield name


@pytest.fixture
def engine(pool: Pool, busybox: str) -> Iterator[tuple[Machine, dict[str, str]]]:
    """A node that runs containers with podman, and the image for them; nothing of them may be left."""
    with pool.lend() as made:
        if not made.features["engine"]:
            pytest.skip(f"podman does not work here: {made.features['missing']}")
        yield made, {"name": busybox, "engine": "podman", "id": image_id(busybox)}
