"""Which flavors a pod template may use: taints must be tolerated, selectors and affinity must match.

Only those expressions count whose key is a label of the flavor itself.
Source: Kueue's pkg/scheduler/flavorassigner (checkFlavorForPodSets, flavorSelector).
"""

from collections.abc import Mapping
from typing import Final

from batchyard.api.views.flavor import Flavor
from batchyard.api.views.pod import PodTemplate

TAINT: Final = "taint"
AFFINITY: Final = "affinity"
NOT_FOUND: Final = "notFound"
_MEMO_MAX: Final = 4096
_UNTOLERATED: Final = "untolerated taint "
_UNSELECTED: Final = " doesn't match node affinity"


class Obstacles:
    """What keeps pods from flavors, worked out once for all templates that constrain alike."""

    def __init__(self, flavors: Mapping[str, Flavor]) -> None:
        self._flavors = flavors
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}

    def of(self, template: PodTemplate, names: tuple[str, ...]) -> tuple[str, ...]:
        """By flavor, why pods of the template cannot use it; '' if they can."""
        question = (names, template.node_selector, template.affinity, template.tolerations)
        known = self._known.get(question)
        if known is None:
            if len(self._known) >= _MEMO_MAX:
                self._known.clear()
            known = tuple([find_obstacle(template, name, self._flavors.get(name)) for name in names])
            self._known[question] = known
        return known

    def forget(self) -> None:
        """Flavors changed."""
        self._known.clear()


def find_obstacle(template: PodTemplate, name: str, flavor: Flavor | None) -> str:
    """Why pods of the template cannot use the flavor, in Kueue's words; '' if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"{_UNTOLERATED}{taint} in flavor {name}"
    return "" if _selects(template, flavor.labels) else f"flavor {name}{_UNSELECTED}"


def rule_of(obstacle: str) -> str:
    """Which rule such words are about: a taint, the affinity, or a flavor that is not there."""
    if obstacle.startswith(_UNTOLERATED):
        return TAINT
    return AFFINITY if obstacle.endswith(_UNSELECTED) else NOT_FOUND


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
