"""One API server of Kubernetes for all tests of a worker."""

from collections.abc import Iterator

import pytest

from cluster.installed import Installed, installed
from cluster.kubernetes import CONTROLLERS, NEEDED, Terms, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Kubernetes with two operators, as they are installed, without what runs Jobs."""
    yield from _installed(tmp_path_factory, NEEDED, Terms())


@pytest.fixture(scope="session")
def working_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The same where Jobs run: with the controllers of Kubernetes, and nodes whose kubelets are ours."""
    yield from _installed(tmp_path_factory, (*NEEDED, *CONTROLLERS), Terms(controllers=True))


def _installed(factory: pytest.TempPathFactory, programs: tuple[str, ...], terms: Terms) -> Iterator[Installed]:
    if reason := missing(programs):
        pytest.skip(reason)
    with installed(factory.mktemp("kubernetes"), terms) as found:
        yield found
