"""Nodes for the tests of this folder: real spawners with the isolation that this machine supports."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from integration_shim.engine_image import SAYS, busybox_image, image_id
from integration_shim.image_engines import (
    EngineImage,
    ImageNode,
    docker,
    engine_with_image,
    insecure_registries,
    ordinary_user,
    user_home,
)
from integration_shim.machine import ORDINARY_USER, ShimMachine, machine
from integration_shim.registry import Registry, registry

#: Engines are used only in tests of engines, because podman of an ordinary user leaves a process.
NO_ENGINES = "podman,docker"
PLAIN = f"bubblewrap,network,cgroups,userns,{NO_ENGINES}"

_NONE: Mapping[str, str] = {}
#: The disabled tools of a node, its owner, and the environment of its programs.
_Kind = tuple[str, int | None, tuple[tuple[str, str], ...]]


class SharedNodes:
    """Nodes that tests share one after the other; a node is discarded after a failure."""

    def __init__(self) -> None:
        self._nodes: dict[_Kind, tuple[ShimMachine, ExitStack]] = {}

    @contextmanager
    def lend(
        self, without: str = "", user: int | None = None, variables: Mapping[str, str] = _NONE
    ) -> Iterator[ShimMachine]:
        """An idle node; nothing of the test may be left on it afterwards."""
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
        """End all nodes."""
        for _, stack in self._nodes.values():
            stack.close()


@pytest.fixture(scope="session")
def pool() -> Iterator[SharedNodes]:
    """The shared nodes of these tests."""
    created = SharedNodes()
    yield created
    created.close()


@pytest.fixture
def plain(pool: SharedNodes) -> Iterator[ShimMachine]:
    """A node that runs containers as plain processes; none may be left at the end."""
    with pool.lend(PLAIN) as created:
        yield created


@pytest.fixture(params=["root", "user"])
def node(request: pytest.FixtureRequest, pool: SharedNodes) -> Iterator[ShimMachine]:
    """A node with all features of the machine, as root and as an ordinary user; no pods may be left."""
    as_user = request.param == "user"
    if os.geteuid() != 0 and not as_user:
        pytest.skip("this case needs root")
    with pool.lend(NO_ENGINES, ORDINARY_USER if as_user and os.geteuid() == 0 else None) as created:
        if not created.features["bubblewrap"]:
            pytest.skip("bubblewrap is missing or does not work on this machine")
        yield created


@pytest.fixture
def grouped(pool: SharedNodes) -> Iterator[ShimMachine]:
    """A node with control groups; no pods may be left at the end."""
    with pool.lend(NO_ENGINES) as created:
        if not created.features["bubblewrap"] or not created.features["cgroups"]:
            pytest.skip("control groups cannot be created, or bubblewrap is missing")
        yield created


@pytest.fixture(scope="session")
def busybox() -> Iterator[str]:
    """The name of an image of podman."""
    with busybox_image(*SAYS) as name:
        yield name


@pytest.fixture
def engine(pool: SharedNodes, busybox: str) -> Iterator[tuple[ShimMachine, dict[str, str]]]:
    """A node that runs containers with podman, because it lacks users of pods; none may be left."""
    with pool.lend("docker,users") as created:
        if not any(engine["runs"] for engine in created.features["engines"]):
            pytest.skip(f"podman does not work on this machine: {created.features['missing']}")
        yield created, {"name": busybox, "engine": "podman", "id": image_id(busybox)}


@pytest.fixture(scope="session")
def docker_image() -> Iterator[EngineImage]:
    """Docker with an image."""
    with docker() as variables, engine_with_image("docker", variables, None) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def users_image() -> Iterator[EngineImage]:
    """Podman of an ordinary user with an image."""
    with user_home() as variables, engine_with_image("podman", variables, ordinary_user()) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def roots_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineImage]:
    """Podman of root with an image."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("podman is missing or may not be used: run apt-get install podman, and run the tests as root")
    variables = insecure_registries(tmp_path_factory.mktemp("podman"))
    with engine_with_image("podman", variables, None) as bringer:
        yield bringer


@pytest.fixture(scope="session")
def images() -> Iterator[Registry]:
    """A registry of images."""
    with registry() as created:
        yield created


@pytest.fixture(params=["docker", "podman of root", "podman of a user"])
def image_node(request: pytest.FixtureRequest, pool: SharedNodes) -> Iterator[ImageNode]:
    """A node with an engine that pulls images and bubblewrap that runs them; no containers may be left."""
    if request.param == "docker":
        bringer, without, user = request.getfixturevalue("docker_image"), "podman", None
    elif request.param == "podman of root":
        bringer, without, user = request.getfixturevalue("roots_image"), "docker", None
    else:
        bringer, without, user = request.getfixturevalue("users_image"), "docker", ordinary_user()
    with pool.lend(without, user, bringer.variables) as node:
        if [engine["runs"] for engine in node.features["engines"]] != [False]:
            pytest.skip(f"{request.param} cannot pull images on this machine: {node.features['missing']}")
        yield ImageNode(node, bringer, user)
