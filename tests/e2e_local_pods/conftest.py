"""The platform that the tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import local_platform
from e2e_platform.platform_process import UpProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the platform."""
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[UpProcess]:
    """One platform for the tests of this module."""
    with local_platform(folder) as started:
        yield started
