"""Nodes for the tests of this folder: real spawners, as whoever runs the tests and as an ordinary user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.machine import Machine, machine


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    """A node that runs containers as plain processes; at the end nothing may be left of it."""
    with machine(tmp_path, without="bubblewrap,network,cgroups,userns") as made:
        yield made
