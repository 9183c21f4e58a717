"""Profiles of hypothesis, and fixtures for all tests: the cache of kubectl, the umask and signal handlers.

Each run uses the same examples. With `--hypothesis-profile explore` it uses many new ones. With `unshrunk` it uses the
same examples, but does not shrink a failing one.
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
def separate_kubectl_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a separate discovery cache of kubectl in each test run, because servers of other runs had the same ports."""
    os.environ["KUBECACHEDIR"] = str(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session", autouse=True)
def set_ordinary_umask() -> None:
    """Set the umask so that other users can read files of tests, because some tests run as another user."""
    os.umask(0o022)


@pytest.fixture(scope="session", autouse=True)
def restore_sigint_handler() -> None:
    """Restore the SIGINT handler: in a background job of a shell, all processes ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def restore_umask() -> Iterator[None]:
    """Restore the umask after each test, because commands with private files change it in this process."""
    yield
    os.umask(0o022)
