"""One API server of Kubernetes for all tests of a worker."""

from collections.abc import Iterator, Sequence

import pytest

from e2e_kubernetes.installed_operators import InstalledOperators, install_operators
from e2e_kubernetes.kubelets import KubeletThread
from e2e_kubernetes.kubernetes import CONTROLLERS, NEEDED, KubernetesSettings, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledOperators]:
    """Kubernetes with two installed operators, without controllers that run Jobs."""
    skip_without(NEEDED)
    with install_operators(tmp_path_factory.mktemp("kubernetes"), KubernetesSettings()) as result:
        yield result


@pytest.fixture(scope="session")
def working_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledOperators]:
    """Kubernetes that runs Jobs: with its controllers, and a node with a simulated kubelet in each pool."""
    skip_without((*NEEDED, *CONTROLLERS))
    folder = tmp_path_factory.mktemp("working")
    with (
        install_operators(folder, KubernetesSettings(controllers=True)) as result,
        KubeletThread(result.kubernetes) as kubelets,
    ):
        for pool in ("busy", "sets"):
            kubelets.add_node(pool, pool=pool)
        yield result


def skip_without(programs: Sequence[str]) -> None:
    """Skip a test without these programs."""
    if reason := missing(programs):
        pytest.skip(reason)
