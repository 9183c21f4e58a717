"""What the API server asks of PriorityClasses: one of them at most is that of all who name none.

Source: Kubernetes's plugin/pkg/admission/priority.
"""

from batchyard.api.admission.forbidden import forbidden
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj


def check_default(priority_class: Obj, default: Obj | None) -> None:
    """Raise Forbidden if a class that is new or changed wants to be the default beside another one."""
    if not priority_class.get("globalDefault") or default is None:
        return
    name = default["metadata"]["name"]
    if name != priority_class["metadata"]["name"]:
        told = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise Forbidden(f"{forbidden(priority_class)}: {told}")
