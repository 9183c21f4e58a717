"""Nodes for the tests of this folder: real spawners, isolated as far as this machine lets whoever runs the tests."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from integration_shim.bringers import (
    Bringer,
    Brings,
    brought_image,
    docker,
    home_of_a_user,
    insecure_registries,
    ordinary_user,
)
from integration_shim.engine_image import SAYS, busybox_image, image_id
from integration_shim.machine import ORDINARY_USER, Machine, machine
from integration_shim.registry import Registry, registry

#: Engines are tried where a test is about them: podman of an ordinary user leaves a process of its own.
NO_ENGINES = "podman,docker"
PLAIN = f"bubblewrap,network,cgroups,userns,{NO_ENGINES}"

_NONE: Mapping[str, str] = {}
#: What a node does without, whose it is, and the variables of its programs.
_Kind = tuple[str, int | None, tuple[tuple[str, str], ...]]


class Pool:
    """Nodes that are used by one test after the other; one in which something went wrong is used no more."""

    def __init__(self) -> None:
        self._nodes: dict[_Kind, tuple[Machine, ExitStack]] = {}

    @contextmanager
    def lend(
        self, without: str = "", user: int | None = None, variables: Mapping[str, str] = _NONE
    ) -> Iterator[Machine]:
        """A node on which nothing runs; when it is given back nothing may be left of what ran."""
        kind = without, user, tuple(variables.items())
        if kind not in self._nodes:
            stack = ExitStack()
            self._nodes[kind] = stack.enter_context(machine(without, user, variables=variables)), stack
        node, stack = self._nodes.pop(kind)
        try:
            yield node
            node.settle()
        finally:
            if node.left():
                node.close()
        self._nodes[kind] = node, stack

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
    with pool.lend(NO_ENGINES, ORDINARY_USER if as_user and os.geteuid() == 0 else None) as made:
        if not made.features["bubblewrap"]:
            pytest.skip("bubblewrap is not there, or does not work here")
        yield made


@pytest.fixture
def grouped(pool: Pool) -> Iterator[Machine]:
    """A node that bounds what containers use by control groups; at the end nothing of its pods may be left."""
    with pool.lend(NO_ENGINES) as made:
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
    """A node that runs containers with podman, for it lacks users of pods; nothing of them may be left."""
    with pool.lend("docker,users") as made:
        if not any(engine["runs"] for engine in made.features["engines"]):
            pytest.skip(f"podman does not work here: {made.features['missing']}")
        yield made, {"name": busybox, "engine": "podman", "id": image_id(busybox)}


@pytest.fixture(scope="session")
def docker_image() -> Iterator[Bringer]:
    """A docker, and an image that it has."""
    with docker() as variables, brought_image("docker", variables, None) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def users_image() -> Iterator[Bringer]:
    """The podman of an ordinary user, and an image that it has."""
    with home_of_a_user() as variables, brought_image("podman", variables, ordinary_user()) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def roots_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bringer]:
    """The podman of root, and an image that it has."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("no podman is here, or it may not be used: apt-get install podman, and be root")
    variables = insecure_registries(tmp_path_factory.mktemp("podman"))
    with brought_image("podman", variables, None) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def images() -> Iterator[Registry]:
    """A registry of images."""
    with registry() as made:
        yield made


@pytest.fixture(params=["docker", "podman of root", "podman of a user"])
def brings(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Brings]:
    """A node whose engine brings images that bubblewrap runs; nothing of them may be left."""
    if request.param == "docker":
        bringer, without, user = request.getfixturevalue("docker_image"), "podman", None
    elif request.param == "podman of root":
        bringer, without, user = request.getfixturevalue("roots_image"), "docker", None
    else:
        bringer, without, user = request.getfixturevalue("users_image"), "docker", ordinary_user()
    with pool.lend(without, user, bringer.variables) as node:
        if [engine["runs"] for engine in node.features["engines"]] != [False]:
            pytest.skip(f"no {request.param} that brings images works here: {node.features['missing']}")
        yield Brings(node, bringer.engine, bringer.image)
