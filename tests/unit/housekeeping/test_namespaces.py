"""Creation of Namespaces, and their deletion with all objects in them."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, with_metadata
from batchyard.housekeeping.controllers import Namespaces
from stage import Stage, condition_state
from unit.nodes.node_make import pod


def stage_with_namespace(*objects: Any) -> Stage:
    stage = Stage(Namespaces())
    stage.put(make.namespace(), *objects)
    return stage


def config_map(name: str = "config", namespace: str = "team") -> Any:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": make.metadata(name, namespace)}


def exists(stage: Stage, kind: str, name: str, namespace: str = "team") -> bool:
    return stage.client.get(Key(kind, namespace, name)) is not None


def test_new_namespace_is_active_and_has_finalizer_and_name_label() -> None:
    stage = stage_with_namespace()
    metadata = stage.get(scheme.NAMESPACE, "team", "")["metadata"]
    assert metadata["finalizers"] == ["kubernetes"]
    assert metadata["labels"]["kubernetes.io/metadata.name"] == "team"
    assert stage.get(scheme.NAMESPACE, "team", "")["status"] == {"phase": "Active"}


def test_namespace_deletion_removes_only_its_own_objects() -> None:
    stage = stage_with_namespace(config_map(), make.job(), make.local_queue(), config_map("other", "elsewhere"))
    stage.delete(scheme.NAMESPACE, "team", "")
    assert not exists(stage, scheme.NAMESPACE, "team", "")
    assert not any(stage.client.list(kind, "team") for kind in (scheme.CONFIG_MAP, scheme.JOB, scheme.LOCAL_QUEUE))
    assert exists(stage, scheme.CONFIG_MAP, "other", "elsewhere")


def test_empty_namespace_is_deleted_immediately() -> None:
    stage = stage_with_namespace()
    stage.delete(scheme.NAMESPACE, "team", "")
    assert not exists(stage, scheme.NAMESPACE, "team", "")


def test_namespace_deletion_waits_for_finalizers_and_reports_conditions() -> None:
    stage = stage_with_namespace(with_metadata(config_map(), finalizers=["test/keep"]), pod())
    stage.delete(scheme.NAMESPACE, "team", "")
    namespace = stage.get(scheme.NAMESPACE, "team", "")
    assert namespace["status"]["phase"] == "Terminating"
    left = "Some resources are remaining: configmaps. has 1 resource instances, pods. has 1 resource instances"
    assert condition_state(namespace, "NamespaceContentRemaining") == ("True", "SomeResourcesRemain", left)
    held = "Some content in the namespace has finalizers remaining: test/keep in 1 resource instances"
    assert condition_state(namespace, "NamespaceFinalizersRemaining") == ("True", "SomeFinalizersRemain", held)
    assert condition_state(namespace, "NamespaceDeletionContentFailure")[0] == "False"


def test_namespace_is_deleted_after_its_last_object() -> None:
    stage = stage_with_namespace(with_metadata(config_map(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.put(with_metadata(stage.get(scheme.CONFIG_MAP, "config"), finalizers=None))
    assert not exists(stage, scheme.NAMESPACE, "team", "")


def test_object_created_in_terminating_namespace_is_deleted() -> None:
    stage = stage_with_namespace(with_metadata(config_map(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.put(config_map("late"))
    assert not exists(stage, scheme.CONFIG_MAP, "late")


def test_foreign_finalizer_keeps_empty_namespace() -> None:
    stage = Stage(Namespaces())
    stage.put(with_metadata(make.namespace(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    assert stage.get(scheme.NAMESPACE, "team", "")["metadata"]["finalizers"] == ["test/keep"]


def test_controller_ignores_objects_of_active_namespaces() -> None:
    stage = stage_with_namespace()
    before = stage.runner.reconciles
    stage.put(config_map(), config_map("other", "elsewhere"))
    assert stage.runner.reconciles == before
