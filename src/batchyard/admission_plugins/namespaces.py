"""What the admission of the API server asks of Namespaces: of that of a new object, and of one that is deleted.

Sources: Kubernetes's NamespaceLifecycle (apiserver/pkg/admission/plugin/namespace/lifecycle), and
pkg/controlplane/controller/systemnamespaces for those that are always there.
"""

from typing import Final

from batchyard.admission_plugins.pods import Find, forbidden
from batchyard.api import scheme
from batchyard.api.errors import Forbidden, NamespaceTerminating, NotFound
from batchyard.api.meta import Key, Obj, with_finalizer, with_metadata, with_status
from batchyard.api.views.ownership import NAME_LABEL

#: The Namespaces that every cluster has; all but the last may not be deleted, and that comes back.
SYSTEM_NAMESPACES: Final = ("default", "kube-public", "kube-system", "kube-node-lease")
#: Keeps a Namespace until all that is in it is gone.
FINALIZER: Final = "kubernetes"
_IMMORTAL: Final = SYSTEM_NAMESPACES[:-1]


def new_namespace(name: str) -> Obj:
    """A Namespace yet to be created."""
    return labelled({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def taken_up(namespace: Obj) -> Obj:
    """A new Namespace as it is from the start: labelled, active, and kept until it is empty."""
    return with_status(held(namespace), {"phase": "Active"})


def held(namespace: Obj) -> Obj:
    """A Namespace with its label, and the finalizer that keeps it until it is empty; itself if it has both."""
    return with_finalizer(labelled(namespace), FINALIZER)


def labelled(namespace: Obj) -> Obj:
    """A Namespace with its name as a label, whatever it was sent with; whose name is yet to be made up, has none."""
    metadata = namespace["metadata"]
    name, labels = metadata.get("name"), metadata.get("labels") or {}
    if not name or labels.get(NAME_LABEL) == name:
        return namespace
    return with_metadata(namespace, labels={**labels, NAME_LABEL: name})


def check_namespace(obj: Obj, find: Find) -> None:
    """Raise NotFound if the Namespace of a new object is not there, NamespaceTerminating if it is to go."""
    name = obj["metadata"].get("namespace", "")
    namespace = find(Key(scheme.NAMESPACE, "", name))
    if namespace is None:
        raise NotFound(f'namespaces "{name}" not found')
    if "deletionTimestamp" in namespace["metadata"]:
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise NamespaceTerminating(f"{forbidden(obj)}: {why}")


def check_deletion(namespace: Obj) -> None:
    """Raise Forbidden if a Namespace may not be deleted."""
    if namespace["metadata"]["name"] in _IMMORTAL:
        raise Forbidden(f"{forbidden(namespace)}: this namespace may not be deleted")
