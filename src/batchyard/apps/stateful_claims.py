"""PersistentVolumeClaims of StatefulSets: their names, and their owners by the retention policy.

Source: pkg/controller/statefulset of Kubernetes (stateful_set_utils.go).
"""

from collections.abc import Sequence
from typing import Final

from batchyard.api import meta

_RETAIN: Final = "Retain"


def claim_name(stateful_set: meta.Obj, claim_template: meta.Obj, ordinal: int) -> str:
    """Return the name of the claim of a template for the pod with an ordinal."""
    return f"{claim_template['metadata']['name']}-{stateful_set['metadata']['name']}-{ordinal}"


def new_claims(stateful_set: meta.Obj, ordinal: int) -> Sequence[meta.Obj]:
    """Return the claims of the pod with an ordinal, with the labels of the templates and of the selector."""
    selector_labels = (stateful_set["spec"].get("selector") or {}).get("matchLabels") or {}
    claims: list[meta.Obj] = []
    for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
        labels = {**(template["metadata"].get("labels") or {}), **selector_labels}
        claim = meta.with_metadata(
            {**template, "apiVersion": "v1", "kind": "PersistentVolumeClaim"},
            name=claim_name(stateful_set, template, ordinal),
            namespace=stateful_set["metadata"].get("namespace", ""),
            labels=labels or None,
            creationTimestamp=None,
        )
        claims.append({field: value for field, value in claim.items() if field != "status"})
    return claims


def claim_with_owners(claim: meta.Obj, stateful_set: meta.Obj, condemned_pod: meta.Obj | None) -> meta.Obj:
    """Return the claim with the owners that the retention policy requires; the same claim if it has them.

    The StatefulSet owns the claim if its deletion deletes the claim. A pod that is scaled down owns the claim if
    scaling down deletes it. A claim with another controller is not changed.
    """
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    deletes_with_set = policy.get("whenDeleted", _RETAIN) != _RETAIN
    deletes_with_pod = policy.get("whenScaled", _RETAIN) != _RETAIN
    owners = claim["metadata"].get("ownerReferences") or []
    own_kinds = {"StatefulSet", "Pod"}
    if any(owner.get("controller") and owner["kind"] not in own_kinds for owner in owners):
        return claim
    if deletes_with_pod and condemned_pod is not None:
        required = [meta.controller_reference(condemned_pod)]
    elif deletes_with_set:
        required = [meta.controller_reference(stateful_set)]
    else:
        required = []
    other_owners = [owner for owner in owners if owner["kind"] not in own_kinds]
    new_owners = [*other_owners, *required]
    return claim if new_owners == owners else meta.with_metadata(claim, ownerReferences=new_owners or None)
