"""Which flavors a pod template may use: taints must be tolerated, selectors and affinity must match.

Only those expressions count whose key is a label of the flavor itself.
Source: Kueue's pkg/scheduler/flavorassigner (checkFlavorForPodSets, flavorSelector).
"""

from collections.abc import Mapping

from batchyard.api.views.flavor import Flavor
from batchyard.api.views.pod import PodTemplate


def find_obstacle(template: PodTemplate, name: str, flavor: Flavor | None) -> str:
    """Why pods of the template cannot use the flavor, in Kueue's words; '' if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"untolerated taint {taint} in flavor {name}"
    return "" if _selects(template, flavor.labels) else f"flavor {name} doesn't match node affinity"


def _selects(template: PodTemplate, labels: Mapping[str, str]) -> bool:
    """Whether node selector and required affinity hold, looking only at the flavor's own label keys."""
    if any(labels[key] != value for key, value in template.node_selector if key in labels):
        return False
    if not template.affinity:
        return True
    # Terms are alternatives: one without relevant expressions holds for any flavor, and so do all of them.
    return any(
        all(requirement.matches(labels) for requirement in term if requirement.key in labels)
        for term in template.affinity
    )
