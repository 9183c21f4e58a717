"""How property tests look for examples, what kubectl remembers, and with which modes files are made.

The same ones in every run; with `--hypothesis-profile explore` many new ones; with `unshrunk` the same, but what fails
is not made smaller, for those who only want to know that it fails.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100, suppress_health_check=_SLOW)
settings.register_profile("unshrunk", settings.get_profile("fixed"), phases=(Phase.explicit, Phase.generate))
settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=_SLOW)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def kubectl_remembers_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For hours kubectl keeps what a server at some port served, whoever listens there next; categories too."""
    os.environ["KUBECACHEDIR"] = str(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session", autouse=True)
def ordinary_umask() -> None:
    """Others may read what tests make, whatever whoever runs them has set: some run as another user."""
    os.umask(0o022)


@pytest.fixture(scope="session", autouse=True)
def interrupts_count() -> None:
    """A shell that starts the tests in the background has all of them ignore SIGINT, and so their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def umask_stays() -> Iterator[None]:
    """Commands that keep what they write from others do so in this process too, where a test runs them in it."""
    yield
    os.umask(0o022)
