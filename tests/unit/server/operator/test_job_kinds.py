"""The operator finds custom kinds of jobs once the server serves them and permits it to list their objects."""

import asyncio
from typing import Any

import msgspec

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.operator.definitions import JobKindDiscovery

JOB_KIND = {
    "apiVersion": "jobs.batchyard.dev/v1alpha1",
    "kind": "JobKind",
    "metadata": {"name": "trainings.ml.example.com", "resourceVersion": "7"},
    "spec": {"group": "ml.example.com", "version": "v1", "kind": "Training", "resource": "trainings"},
}


class ApiServer:
    """An API server that serves kinds of jobs, by API group and version."""

    def __init__(self, **kinds: list[str]) -> None:
        self.kinds = {name.replace("__", "/").replace("_", "."): each for name, each in kinds.items()}
        self.job_kinds: list[Any] = []
        self.list_code = 200
        self.paths: list[str] = []

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        self.paths.append(request.path)
        path = request.path.partition("?")[0].removeprefix("/apis").strip("/")
        if not path:
            return self._respond({"groups": [self._group(*each.split("/")) for each in self.kinds]})
        if path in self.kinds:
            resources = [{"name": f"{kind.lower()}s", "kind": kind, "namespaced": True} for kind in self.kinds[path]]
            return self._respond({"resources": resources})
        if path.endswith("/jobkinds"):
            return self._respond({"items": self.job_kinds})
        return HttpResponse(self.list_code, b'{"message": "no rights"}')

    @staticmethod
    def _group(name: str, version: str) -> dict[str, Any]:
        return {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}

    @staticmethod
    def _respond(document: dict[str, Any]) -> HttpResponse:
        return HttpResponse(200, msgspec.json.encode(document))


def search(server: ApiServer, discovery: JobKindDiscovery) -> list[str]:
    server.paths = []
    return [info.constant for info in asyncio.run(discovery.search(reads_job_kinds=True))]


def test_kinds_are_found_when_their_definitions_appear() -> None:
    server, reported = ApiServer(), list[str]()
    discovery = JobKindDiscovery(server, ManagedJobs(), reported.append)
    assert (search(server, discovery), server.paths) == ([], ["/apis"])
    server.kinds = {"kubeflow.org/v1": ["PyTorchJob"], "ray.io/v1alpha1": ["RayJob"]}
    assert search(server, discovery) == ["PyTorchJob.kubeflow.org"]
    assert search(server, discovery) == []
    assert [info.plural for info in discovery.found_kinds] == ["pytorchjobs"]
    assert reported == []


def test_kind_without_rights_is_reported_once_and_found_with_rights() -> None:
    server, reported = ApiServer(kubeflow_org__v1=["TFJob"]), list[str]()
    discovery = JobKindDiscovery(server, ManagedJobs(), reported.append)
    server.list_code = 403
    assert search(server, discovery) == search(server, discovery) == []
    (message,) = reported
    assert message.startswith("batchyard: jobs of the kind TFJob are not queued: ")
    assert message.endswith("; permit list, watch, patch and delete of tfjobs.kubeflow.org")
    server.list_code = 200
    assert search(server, discovery) == ["TFJob.kubeflow.org"]


def test_runtimes_of_train_jobs_are_found_with_them() -> None:
    kinds = ["TrainJob", "ClusterTrainingRuntime", "TrainingRuntime"]
    server = ApiServer(trainer_kubeflow_org__v1alpha1=kinds)
    discovery = JobKindDiscovery(server, ManagedJobs(), list[str]().append)
    assert search(server, discovery) == [f"{kind}.trainer.kubeflow.org" for kind in kinds]
    without_train_jobs = ManagedJobs(kinds=("Job.batch",))
    assert search(server, JobKindDiscovery(server, without_train_jobs, list[str]().append)) == []


def test_job_kinds_of_users_are_listed() -> None:
    server = ApiServer(jobs_batchyard_dev__v1alpha1=["JobKind"], ml_example_com__v1=["Training"])
    server.job_kinds = [JOB_KIND]
    managed_jobs = ManagedJobs()
    discovery = JobKindDiscovery(server, managed_jobs, list[str]().append)
    assert search(server, discovery) == ["JobKind.jobs.batchyard.dev", "Training.ml.example.com"]
    assert managed_jobs.has_kind("Training.ml.example.com")
    server.job_kinds = []
    search(server, discovery)
    assert not managed_jobs.has_kind("Training.ml.example.com")


def test_kinds_that_the_configuration_excludes_are_not_searched() -> None:
    server = ApiServer(kubeflow_org__v1=["PyTorchJob"])
    discovery = JobKindDiscovery(server, ManagedJobs(kinds=("Job.batch",)), list[str]().append)
    assert search(server, discovery) == []
