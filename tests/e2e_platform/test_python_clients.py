"""The unmodified Python clients kubernetes, kr8s and lightkube on a running platform."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kr8s
import kubernetes
import kubernetes.aio
import lightkube
import pytest
import yaml
from kr8s.objects import ConfigMap, Job, new_class
from kubernetes.client.exceptions import ApiException
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from lightkube import codecs
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import batch_v1, core_v1
from lightkube.types import CascadeType, PatchType

from e2e_platform.platform_process import UpProcess

#: The package has only partial types.
kube: Any = kubernetes
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
#: Resources that the clients do not close.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
STEPS = EXAMPLES / "first-steps"
KUEUE = ("kueue.x-k8s.io", "v1beta2")
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform with three queued Jobs for the tests of this module."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--cluster", str(EXAMPLES / "refarch/cluster.yaml"), "--speed", "60x") as started:
        kube.config.load_kube_config(str(started.kubeconfig))
        with kube.client.ApiClient() as api:
            dynamic = kube.dynamic.DynamicClient(api)
            for path in (STEPS / "platform.yaml", STEPS / "jobs.yaml"):
                for document in yaml.safe_load_all(path.read_text("utf-8")):
                    resource = dynamic.resources.get(api_version=document["apiVersion"], kind=document["kind"])
                    resource.create(body=document, namespace=document["metadata"].get("namespace"))
            pods = kube.client.CoreV1Api(api).list_pod_for_all_namespaces
            next(iter(kube.watch.Watch().stream(pods, timeout_seconds=30)))  # until a pod exists
        yield started


def config_map(name: str, **data: str) -> Any:
    return kube.client.V1ConfigMap(metadata=kube.client.V1ObjectMeta(name=name), data=data)


# --- kubernetes ---


def test_kubernetes_client_reads_typed_objects_of_many_kinds(platform: UpProcess) -> None:
    core, batch, rbac = (getattr(kube.client, name)() for name in ("CoreV1Api", "BatchV1Api", "RbacAuthorizationV1Api"))
    lists: list[Callable[[], Any]] = [
        *(core.list_node, core.list_namespace, core.list_pod_for_all_namespaces, core.list_event_for_all_namespaces),
        *(core.list_service_account_for_all_namespaces, batch.list_job_for_all_namespaces, rbac.list_cluster_role),
        kube.client.CoordinationV1Api().list_lease_for_all_namespaces,
    ]
    assert [list_.__name__ for list_ in lists if not list_().items] == []
    assert kube.client.VersionApi().get_code().major == "1"


def test_kubernetes_client_creates_patches_replaces_and_deletes_object(platform: UpProcess) -> None:
    core, at = kube.client.CoreV1Api(), ("typed", "default")
    core.create_namespaced_config_map("default", config_map("typed", a="1"))
    core.patch_namespaced_config_map(*at, {"data": {"b": "2"}})
    core.patch_namespaced_config_map(*at, {"data": {"a": None}}, _content_type=MERGE)
    core.patch_namespaced_config_map(*at, [{"op": "add", "path": "/data/c", "value": "3"}])
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "typed"}, "data": {"d": "4"}}
    applied = core.patch_namespaced_config_map(*at, mine, field_manager="me", force=True, _content_type=APPLY)
    applied.data["e"] = "5"
    assert core.replace_namespaced_config_map(*at, applied).data == {"b": "2", "c": "3", "d": "4", "e": "5"}
    with pytest.raises(ApiException) as stale:
        core.replace_namespaced_config_map(*at, applied)
    assert stale.value.reason == "Conflict"
    other = kube.client.V1DeleteOptions(preconditions=kube.client.V1Preconditions(uid="other"))
    with pytest.raises(ApiException, match="UID in the precondition"):
        core.delete_namespaced_config_map(*at, body=other)
    core.delete_namespaced_config_map(*at, propagation_policy="Foreground", grace_period_seconds=0)


def test_apply_conflict_names_field_manager(platform: UpProcess) -> None:
    core, at = kube.client.CoreV1Api(), ("shared", "default")

    def applied(manager: str, value: str, **options: Any) -> Any:
        mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"a": value}}
        return core.patch_namespaced_config_map(*at, mine, field_manager=manager, _content_type=APPLY, **options)

    applied("one", "1")
    with pytest.raises(ApiException, match=r"conflict with ..one..: .data\.a"):
        applied("other", "2")
    assert applied("other", "2", force=True).data == {"a": "2"}


def test_watch_continues_from_resource_version(platform: UpProcess) -> None:
    core = kube.client.CoreV1Api()
    listed = core.list_namespaced_config_map("default", limit=1)
    core.create_namespaced_config_map("default", config_map("watched"))
    watch, seen = kube.watch.Watch(), []
    for change in watch.stream(
        core.list_namespaced_config_map,
        "default",
        resource_version=listed.metadata.resource_version,
        field_selector="metadata.name=watched",
    ):
        seen.append((change["type"], change["object"].metadata.name))
        if change["type"] == "ADDED":
            core.delete_namespaced_config_map("watched", "default")
        else:
            watch.stop()
    assert seen == [("ADDED", "watched"), ("DELETED", "watched")]


def test_status_subresource_is_patched_separately(platform: UpProcess) -> None:
    networking, at = kube.client.NetworkingV1Api(), ("kept", "default")
    spec = {"defaultBackend": {"service": {"name": "kept", "port": {"number": 80}}}}
    networking.create_namespaced_ingress("default", {"metadata": {"name": "kept"}, "spec": spec})

    def changes(class_name: str, address: str) -> Any:
        return {"spec": {"ingressClassName": class_name}, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}}

    reported = networking.patch_namespaced_ingress_status(*at, changes("other", "10.0.0.1"))
    assert (reported.spec.ingress_class_name, reported.status.load_balancer.ingress[0].ip) == (None, "10.0.0.1")
    reported = networking.patch_namespaced_ingress(*at, changes("new", "10.0.0.2"))
    assert (reported.spec.ingress_class_name, reported.status.load_balancer.ingress[0].ip) == ("new", "10.0.0.1")


def test_custom_objects_api_handles_objects_of_kueue(platform: UpProcess) -> None:
    custom, at = kube.client.CustomObjectsApi(), (*KUEUE, "resourceflavors")
    flavor = {"apiVersion": "/".join(KUEUE), "kind": "ResourceFlavor", "metadata": {"name": "custom"}}
    custom.create_cluster_custom_object(*at, flavor)
    patched = custom.patch_cluster_custom_object(*at, "custom", {"spec": {"nodeLabels": {"a": "b"}}})
    patched["spec"]["nodeLabels"]["c"] = "d"
    assert custom.replace_cluster_custom_object(*at, "custom", patched)["spec"]["nodeLabels"] == {"a": "b", "c": "d"}
    custom.delete_cluster_custom_object(*at, "custom")
    status = custom.get_cluster_custom_object_status(*KUEUE, "clusterqueues", "team-queue")["status"]
    assert status["flavorsUsage"][0]["resources"][0]["name"] == "cpu"
    assert len(custom.list_namespaced_custom_object(*KUEUE, "team", "workloads", limit=2)["items"]) == 2


def test_dynamic_client_discovers_kinds_of_kueue(platform: UpProcess) -> None:
    with kube.client.ApiClient() as api:
        dynamic = kube.dynamic.DynamicClient(api)
        queues = dynamic.resources.get(api_version="/".join(KUEUE), kind="ClusterQueue")
        queues.patch(name="team-queue", body={"spec": {"stopPolicy": "Hold"}}, content_type=MERGE)
        assert queues.get(name="team-queue").spec.stopPolicy == "Hold"
        body = {"apiVersion": "/".join(KUEUE), "kind": "ClusterQueue", "metadata": {"name": "team-queue"}}
        body["spec"] = {"stopPolicy": "None"}
        queues.server_side_apply(name="team-queue", body=body, field_manager="me", force_conflicts=True)
        assert queues.get(name="team-queue").spec.stopPolicy == "None"
        assert next(iter(queues.watch(timeout=1)))["type"] == "ADDED"


def test_leader_election_elects_one_of_two_candidates(platform: UpProcess) -> None:
    leading, over = threading.Event(), threading.Event()

    def lead() -> None:
        leading.set()
        over.wait(20)
        raise InterruptedError

    def candidate(name: str) -> LeaderElection:
        lock = LeaseLock("leader", "default", name)  # type: ignore[no-untyped-call]
        config = Config(lock, 3, 2, 1, onstarted_leading=lead, onstopped_leading=over.set)  # type: ignore[no-untyped-call]
        return LeaderElection(config)  # type: ignore[no-untyped-call]

    one = threading.Thread(target=candidate("one").run)
    one.start()
    assert leading.wait(10)
    assert not candidate("other").try_acquire_or_renew()  # type: ignore[no-untyped-call]
    held = kube.client.CoordinationV1Api().read_namespaced_lease("leader", "default")
    over.set()
    one.join(10)
    assert held.spec.holder_identity == "one"


def test_exec_credential_plugin_provides_token(platform: UpProcess) -> None:
    core = kube.client.CoreV1Api()
    token = core.create_namespaced_service_account_token("default", "team", {"spec": {"expirationSeconds": 600}}).status
    reported = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token.token},
    }
    program = {
        "apiVersion": reported["apiVersion"],
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(reported)!r})"],
    }
    config = yaml.safe_load(platform.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"exec": {**program, "interactiveMode": "Never"}}
    with kube.config.new_client_from_config_dict(config) as api:
        who = kube.client.AuthenticationV1Api(api).create_self_subject_review({}).status.user_info.username
        assert who == "system:serviceaccount:team:default"
        with pytest.raises(ApiException, match="is forbidden"):
            kube.client.CoreV1Api(api).list_secret_for_all_namespaces()


def test_asynchronous_kubernetes_client_writes_and_watches(platform: UpProcess) -> None:
    async def reported() -> list[str]:
        configuration = kube.aio.client.Configuration()
        await kube.aio.config.load_kube_config(str(platform.kubeconfig), client_configuration=configuration)
        async with kube.aio.client.ApiClient(configuration) as api, kube.aio.watch.Watch() as watch:
            core = kube.aio.client.CoreV1Api(api)
            await core.create_namespaced_config_map("default", {"metadata": {"name": "asynchronous"}})
            named = {"namespace": "default", "field_selector": "metadata.name=asynchronous"}
            return [
                each["type"] async for each in watch.stream(core.list_namespaced_config_map, timeout_seconds=1, **named)
            ]

    assert asyncio.run(reported()) == ["ADDED"]


# --- kr8s ---

#: kr8s 0.20.15 knows Kubernetes up to 1.35.
NEWER_VERSION = pytest.mark.filterwarnings("ignore:Kubernetes version:UserWarning")


@NEWER_VERSION
def test_kr8s_creates_waits_and_deletes(platform: UpProcess) -> None:
    api: Any = kr8s.api(kubeconfig=str(platform.kubeconfig))
    container = {"name": "c", "image": "python:3.12"}
    job = Job(
        {
            "metadata": {"name": "by-kr8s", "namespace": "default", "annotations": {"batchyard.dev/runtime": "30s"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        },
        api=api,
    )
    job.create()
    job.wait("condition=Complete", timeout=20)
    pods = list(api.get("pods", namespace="default", label_selector={"job-name": "by-kr8s"}))
    assert [pod.status.phase for pod in pods] == ["Succeeded"]
    job.delete(propagation_policy="Background")
    job.wait("delete", timeout=20)
    assert not job.exists()


@NEWER_VERSION
def test_kr8s_handles_kinds_of_kueue(platform: UpProcess) -> None:
    api: Any = kr8s.api(kubeconfig=str(platform.kubeconfig))
    assert [queue.name for queue in api.get("clusterqueues.kueue.x-k8s.io")] == ["team-queue"]
    assert len(list(api.get("workloads.v1beta2.kueue.x-k8s.io", namespace=kr8s.ALL))) == 3
    flavor = new_class("ResourceFlavor", "/".join(KUEUE), namespaced=False)({"metadata": {"name": "kr8s"}}, api=api)
    flavor.create()
    flavor.patch({"spec": {"nodeLabels": {"a": "b"}}})
    flavor.label({"colour": "red"})
    flavor.annotate({"said": "yes"})
    flavor.refresh()
    assert (flavor.labels["colour"], flavor.annotations["said"]) == ("red", "yes")
    flavor.delete()


@NEWER_VERSION
def test_kr8s_patches_and_watches(platform: UpProcess) -> None:
    api: Any = kr8s.api(kubeconfig=str(platform.kubeconfig))
    created = ConfigMap({"metadata": {"name": "by-kr8s", "namespace": "default"}, "data": {"a": "1"}}, api=api)
    created.create()
    created.patch([{"op": "replace", "path": "/data/a", "value": "2"}], type="json")
    assert created.data == {"a": "2"}
    seen = api.watch("configmaps", namespace="default", field_selector={"metadata.name": "by-kr8s"})
    assert next(iter(seen))[0] == "ADDED"
    assert api.whoami() == "admin"
    created.delete()


# --- lightkube ---


def test_lightkube_creates_patches_applies_replaces_and_deletes(platform: UpProcess) -> None:
    client: Any = lightkube.Client(lightkube.KubeConfig.from_file(platform.kubeconfig), field_manager="lightkube")
    kind, at = core_v1.ConfigMap, {"namespace": "default"}
    metadata = ObjectMeta(name="lightkube", namespace="default")
    client.create(kind(metadata=metadata, data={"a": "1"}))
    client.patch(kind, "lightkube", {"data": {"b": "2"}}, **at)
    client.patch(kind, "lightkube", {"data": {"c": "3"}}, patch_type=PatchType.MERGE, **at)
    client.patch(kind, "lightkube", [{"op": "remove", "path": "/data/c"}], patch_type=PatchType.JSON, **at)
    applied = client.apply(kind(metadata=metadata, data={"d": "4"}), force=True)
    applied.data["e"] = "5"
    assert client.replace(applied).data == {"a": "1", "b": "2", "d": "4", "e": "5"}
    client.delete(kind, "lightkube", cascade=CascadeType.FOREGROUND, grace_period=0, **at)
    with pytest.raises(lightkube.ApiError, match='configmaps "lightkube" not found'):
        client.get(kind, "lightkube", **at)


def test_lightkube_lists_in_pages_watches_and_waits(platform: UpProcess) -> None:
    client: Any = lightkube.Client(lightkube.KubeConfig.from_file(platform.kubeconfig))
    assert len(list(client.list(core_v1.Namespace, chunk_size=3))) == len(list(client.list(core_v1.Namespace))) > 3
    assert next(iter(client.watch(core_v1.Namespace, server_timeout=1)))[0] == "ADDED"
    done = client.wait(batch_v1.Job, "train-c", for_conditions=["Complete"], namespace="team")
    assert done.status is not None
    assert done.status.succeeded == 2


def test_lightkube_handles_kinds_of_kueue_as_generic_resources(platform: UpProcess) -> None:
    client: Any = lightkube.Client(lightkube.KubeConfig.from_file(platform.kubeconfig))
    queues = create_global_resource(*KUEUE, "ClusterQueue", "clusterqueues")
    workloads = create_namespaced_resource(*KUEUE, "Workload", "workloads")
    assert [queue.metadata.name for queue in client.list(queues)] == ["team-queue"]
    result = list(client.list(workloads, namespace="*"))
    assert "QuotaReserved" in [condition["type"] for condition in result[0].status["conditions"]]
    text = (STEPS / "platform.yaml").read_text("utf-8")
    create_global_resource(*KUEUE, "ResourceFlavor", "resourceflavors")
    create_namespaced_resource(*KUEUE, "LocalQueue", "localqueues")
    for read in codecs.load_all_yaml(text):
        client.apply(read, field_manager="lightkube", force=True)
