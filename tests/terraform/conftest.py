"""Platforms with Terraform plans: each is planned once for all tests of a module."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from terraform.terraform_folder import TerraformFolder, example, workplace

Plan = Mapping[str, Mapping[str, Any]]


def _opened(name: str, factory: pytest.TempPathFactory) -> Iterator[TerraformFolder]:
    with workplace(example(name), factory.mktemp(name)) as opened:
        yield opened


@pytest.fixture(scope="module")
def refarch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TerraformFolder]:
    """The reference architecture."""
    yield from _opened("refarch", tmp_path_factory)


@pytest.fixture(scope="module")
def refarch_plan(refarch: TerraformFolder) -> Plan:
    """The plan of the reference architecture."""
    return refarch.planned()


@pytest.fixture(scope="module")
def multislice_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of the TPU slices."""
    with workplace(example("multislice"), tmp_path_factory.mktemp("multislice")) as opened:
        return opened.planned()


@pytest.fixture(scope="module")
def dws_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of the pools of the Dynamic Workload Scheduler."""
    with workplace(example("dws"), tmp_path_factory.mktemp("dws")) as opened:
        return opened.planned()
