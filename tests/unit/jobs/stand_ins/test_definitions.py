"""CustomResourceDefinitions of the kinds that `--job-controllers` runs."""

import subprocess
import sys

import pytest

from batchyard.api import scheme
from batchyard.apiserver.crd.definition_validation import definition_errors
from batchyard.apiserver.crd.definitions import definition_resource
from batchyard.controller_groups import JOB_CONTROLLERS
from batchyard.jobs.stand_ins.definitions import job_definitions


@pytest.mark.parametrize("name", JOB_CONTROLLERS)
def test_definitions_are_valid_and_name_the_described_kinds(name: str) -> None:
    definitions = job_definitions([name])
    assert [list(definition_errors(each)) for each in definitions] == [[] for _ in definitions]
    assert [f"{each['spec']['names']['kind']}.{each['spec']['group']}" for each in definitions] == list(
        JOB_CONTROLLERS[name]
    )
    for definition in definitions:
        spec, kind = definition["spec"], scheme.DESCRIBED_KINDS
        described = kind[f"{spec['names']['kind']}.{spec['group']}"]
        (version,) = spec["versions"]
        assert (spec["names"]["plural"], version["name"]) == (described.plural, described.storage_version)


def test_definitions_have_the_columns_of_the_project() -> None:
    definition = job_definitions(["kubeflow"])[0]
    (version,) = definition["spec"]["versions"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == ["State", "Age"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.pytorchReplicaSpecs.Worker.replicas"


def test_definitions_are_complete_objects() -> None:
    strategy = definition_resource().strategy
    for definition in job_definitions(JOB_CONTROLLERS):
        assert list(strategy.check_create(definition)) == []


@pytest.mark.parametrize(("names", "is_loaded"), [((), False), (("kubeflow",), True)])
def test_module_is_loaded_only_with_the_option(names: tuple[str, ...], is_loaded: bool) -> None:
    code = (
        "import sys; from batchyard.server.platform.provided_objects import ProvidedObjects; "
        "from batchyard.client.local import LocalClient; from batchyard.store.memory import Store; "
        "from batchyard.controller_runtime.kernel import VirtualEventLoop; kernel = VirtualEventLoop(0); "
        f"ProvidedObjects(LocalClient(Store(), kernel), kernel, lambda: [], (), {names!r}).begin(); "
        "sys.exit('batchyard.jobs.stand_ins.definitions' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == int(is_loaded)
