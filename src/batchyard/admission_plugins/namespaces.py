"""The NamespaceLifecycle admission plugin, and the system Namespaces.

Sources: Kubernetes's NamespaceLifecycle (apiserver/pkg/admission/plugin/namespace/lifecycle), and
pkg/controlplane/controller/systemnamespaces for the system Namespaces.
"""

from typing import Final

from batchyard.admission_plugins.pods import Find, forbidden
from batchyard.api import scheme
from batchyard.api.errors import Forbidden, NamespaceTerminating, NotFound
from batchyard.api.meta import Key, Obj, with_finalizer, with_metadata, with_status
from batchyard.api.views.ownership import NAME_LABEL

#: The Namespaces that every cluster has. All but the last are undeletable; the last is recreated.
SYSTEM_NAMESPACES: Final = ("default", "kube-public", "kube-system", "kube-node-lease")
#: The finalizer that keeps a Namespace until it is empty.
FINALIZER: Final = "kubernetes"
_IMMORTAL: Final = SYSTEM_NAMESPACES[:-1]


def new_namespace(name: str) -> Obj:
    """Return a Namespace to create."""
    return labelled({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def taken_up(namespace: Obj) -> Obj:
    """Return a new Namespace with its label, its finalizer and the phase Active."""
    return with_status(held(namespace), {"phase": "Active"})


def held(namespace: Obj) -> Obj:
    """Return the Namespace with its label and its finalizer; itself if it has both."""
    return with_finalizer(labelled(namespace), FINALIZER)


def labelled(namespace: Obj) -> Obj:
    """Return the Namespace with its name as a label, replacing another value; unchanged without a name."""
    metadata = namespace["metadata"]
    name, labels = metadata.get("name"), metadata.get("labels") or {}
    if not name or labels.get(NAME_LABEL) == name:
        return namespace
    return with_metadata(namespace, labels={**labels, NAME_LABEL: name})


def check_namespace(obj: Obj, find: Find) -> None:
    """Raise NotFound if the Namespace of a new object is missing, NamespaceTerminating if it is being deleted."""
    name = obj["metadata"].get("namespace", "")
    namespace = find(Key(scheme.NAMESPACE, "", name))
    if namespace is None:
        raise NotFound(f'namespaces "{name}" not found')
    if "deletionTimestamp" in namespace["metadata"]:
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise NamespaceTerminating(f"{forbidden(obj)}: {why}")


def check_deletion(namespace: Obj) -> None:
    """Raise Forbidden if the Namespace is undeletable."""
    if namespace["metadata"]["name"] in _IMMORTAL:
        raise Forbidden(f"{forbidden(namespace)}: this namespace may not be deleted")
