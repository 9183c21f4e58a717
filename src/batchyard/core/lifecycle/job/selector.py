"""The labels by which a Job finds its pods, made from its name and uid.

The API server makes them when a Job is created, for whoever looks at Jobs and their pod templates sees them there.
Source: pkg/registry/batch/job/strategy.go of Kubernetes (generateSelector).
"""

from batchyard.api import well_known
from batchyard.api.meta import Obj


def with_selector(job: Obj) -> Obj:
    """The Job with its selector, and these labels on its pod template; the same Job where there is nothing to add.

    What is there already is left: that it fits is for validation to say.
    """
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return job
    template, selector = spec.get("template") or {}, spec.get("selector") or {}
    given, matched = (template.get("metadata") or {}).get("labels") or {}, selector.get("matchLabels") or {}
    labels = _generated(metadata["name"], metadata["uid"]) | matched | given
    wanted = {well_known.CONTROLLER_UID: metadata["uid"], **matched}
    if labels == given and wanted == matched:
        return job
    described = {**(template.get("metadata") or {}), "labels": labels}
    new = {"selector": {**selector, "matchLabels": wanted}, "template": {**template, "metadata": described}}
    return {**job, "spec": {**spec, **new}}


def _generated(name: str, uid: str) -> dict[str, str]:
    """The labels, those from before they had a prefix among them."""
    return {
        well_known.OLD_JOB_NAME: name,
        well_known.JOB_NAME: name,
        well_known.OLD_CONTROLLER_UID: uid,
        well_known.CONTROLLER_UID: uid,
    }
