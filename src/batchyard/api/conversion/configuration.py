"""Kueue's Configuration of v1beta1 as one of v1beta2, in which nothing has a switch of its own.

What is left out or off in v1beta1 is off: waitForPodsReady, which v1beta2 has on, is turned off by its feature gate.
Source: apis/config/v1beta1/configuration_conversion.go and defaults.go of Kueue.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.kueue_features import DISABLE_WAIT_FOR_PODS_READY, FINAL_SHARE, INITIAL_SHARE

OLD: Final = "config.kueue.x-k8s.io/v1beta1"
STORAGE: Final = "config.kueue.x-k8s.io/v1beta2"
#: What fair sharing goes by where v1beta1 turns it on and says no more.
STRATEGIES: Final = (FINAL_SHARE, INITIAL_SHARE)


def to_storage(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The same in v1beta2; one that was settled in v1beta1."""
    found = {key: value for key, value in obj.items() if key not in {"queueVisibility", "fairSharing"}}
    waits, fair = dict(found.pop("waitForPodsReady", {})), dict(obj.get("fairSharing") or {})
    if waits.pop("enable", False):
        found["waitForPodsReady"] = waits
    else:
        found["featureGates"] = {**(obj.get("featureGates") or {}), DISABLE_WAIT_FOR_PODS_READY: True}
    if fair.get("enable"):
        found["fairSharing"] = {"preemptionStrategies": fair.get("preemptionStrategies") or list(STRATEGIES)}
    if "integrations" in found:
        found["integrations"] = {k: v for k, v in found["integrations"].items() if k != "podOptions"}
    return {**found, "apiVersion": STORAGE}
