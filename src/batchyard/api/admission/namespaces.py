"""What the admission of the API server asks of the Namespace of a new object.

Source: Kubernetes's NamespaceLifecycle (apiserver/pkg/admission/plugin/namespace/lifecycle). It also refuses what comes
into a Namespace that is not there; here a Namespace that nobody made is as good as one that is active.
"""

from batchyard.api import scheme
from batchyard.api.admission.forbidden import forbidden
from batchyard.api.admission.pods import Find
from batchyard.api.errors import NamespaceTerminating
from batchyard.api.meta import Key, Obj


def check_namespace(obj: Obj, find: Find) -> None:
    """Raise NamespaceTerminating if the Namespace of a new object is to go."""
    name = obj["metadata"].get("namespace", "")
    namespace = find(Key(scheme.NAMESPACE, "", name))
    if namespace is not None and "deletionTimestamp" in namespace["metadata"]:
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise NamespaceTerminating(f"{forbidden(obj)}: {why}")
