"""Namespaces that come, and go with all that is in them."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, with_metadata
from batchyard.housekeeping.controllers import Namespaces
from stage import Stage, stated
from unit.nodes.node_make import pod


def started(*objects: Any) -> Stage:
    stage = Stage(Namespaces())
    stage.put(make.namespace(), *objects)
    return stage


def config_map(name: str = "config", namespace: str = "team") -> Any:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": make.metadata(name, namespace)}


def is_there(stage: Stage, kind: str, name: str, namespace: str = "team") -> bool:
    return stage.client.get(Key(kind, namespace, name)) is not None


def test_a_new_namespace_is_active_and_kept_by_its_finalizer() -> None:
    stage = started()
    metadata = stage.get(scheme.NAMESPACE, "team", "")["metadata"]
    assert metadata["finalizers"] == ["kubernetes"]
    assert metadata["labels"]["kubernetes.io/metadata.name"] == "team"
    assert stage.get(scheme.NAMESPACE, "team", "")["status"] == {"phase": "Active"}


def test_a_deleted_namespace_takes_with_it_what_is_in_it_and_nothing_else() -> None:
    stage = started(config_map(), make.job(), make.local_queue(), config_map("other", "elsewhere"))
    stage.delete(scheme.NAMESPACE, "team", "")
    assert not is_there(stage, scheme.NAMESPACE, "team", "")
    assert not any(stage.client.list(kind, "team") for kind in (scheme.CONFIG_MAP, scheme.JOB, scheme.LOCAL_QUEUE))
    assert is_there(stage, scheme.CONFIG_MAP, "other", "elsewhere")


def test_an_empty_namespace_goes_at_once() -> None:
    stage = started()
    stage.delete(scheme.NAMESPACE, "team", "")
    assert not is_there(stage, scheme.NAMESPACE, "team", "")


def test_a_namespace_waits_for_what_has_finalizers_and_says_so() -> None:
    stage = started(with_metadata(config_map(), finalizers=["test/keep"]), pod())
    stage.delete(scheme.NAMESPACE, "team", "")
    namespace = stage.get(scheme.NAMESPACE, "team", "")
    assert namespace["status"]["phase"] == "Terminating"
    left = "Some resources are remaining: configmaps. has 1 resource instances, pods. has 1 resource instances"
    assert stated(namespace, "NamespaceContentRemaining") == ("True", "SomeResourcesRemain", left)
    held = "Some content in the namespace has finalizers remaining: test/keep in 1 resource instances"
    assert stated(namespace, "NamespaceFinalizersRemaining") == ("True", "SomeFinalizersRemain", held)
    assert stated(namespace, "NamespaceDeletionContentFailure")[0] == "False"


def test_a_namespace_goes_when_the_last_object_in_it_does() -> None:
    stage = started(with_metadata(config_map(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.put(with_metadata(stage.get(scheme.CONFIG_MAP, "config"), finalizers=None))
    assert not is_there(stage, scheme.NAMESPACE, "team", "")


def test_what_comes_into_a_namespace_that_is_to_go_is_deleted_too() -> None:
    stage = started(with_metadata(config_map(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.put(config_map("late"))
    assert not is_there(stage, scheme.CONFIG_MAP, "late")


def test_finalizers_of_others_keep_an_empty_namespace() -> None:
    stage = Stage(Namespaces())
    stage.put(with_metadata(make.namespace(), finalizers=["test/keep"]))
    stage.delete(scheme.NAMESPACE, "team", "")
    assert stage.get(scheme.NAMESPACE, "team", "")["metadata"]["finalizers"] == ["test/keep"]


def test_what_happens_in_other_namespaces_is_not_looked_at() -> None:
    stage = started()
    before = stage.runner.reconciles
    stage.put(config_map(), config_map("other", "elsewhere"))
    assert stage.runner.reconciles == before
