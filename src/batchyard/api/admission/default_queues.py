"""What Kueue's webhooks ask of Jobs and JobSets that change, beyond what these say themselves.

Source: Kueue's pkg/controller/jobframework/validation.go (validateUpdateForQueueName).
"""

from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.admission.pods import Find
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, label

_DEFAULT: Final = "default"
_WEBHOOKS: Final = {"Job": "vjob.kb.io", "JobSet": "vjobset.kb.io"}


def check_queue_kept(new: Obj, old: Obj, find: Find) -> None:
    """Raise Forbidden if a queue is given up in a Namespace where those without would be queued anyway."""
    name = well_known.QUEUE_NAME
    if label(new, name) or not label(old, name):
        return
    if find(Key(scheme.LOCAL_QUEUE, new["metadata"].get("namespace", ""), _DEFAULT)) is not None:
        path, why = f"metadata.labels[{name}]", "queue-name must not be empty in namespace with default queue"
        webhook = _WEBHOOKS[new["kind"]]
        raise Forbidden(f'admission webhook "{webhook}" denied the request: {path}: Invalid value: "": {why}')
