"""Conversion of Kueue's Configuration from v1beta1 to v1beta2, which has no `enable` fields.

A feature that is missing or disabled in v1beta1 is disabled in the result. waitForPodsReady is on by default in
v1beta2, so its feature gate disables it.
Source: apis/config/v1beta1/configuration_conversion.go and defaults.go of Kueue.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.kueue_features import DISABLE_WAIT_FOR_PODS_READY, FINAL_SHARE, INITIAL_SHARE

OLD: Final = "config.kueue.x-k8s.io/v1beta1"
STORAGE: Final = "config.kueue.x-k8s.io/v1beta2"
#: The default preemption strategies if v1beta1 enables fair sharing without naming any.
STRATEGIES: Final = (FINAL_SHARE, INITIAL_SHARE)


def to_storage(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a defaulted v1beta1 Configuration to v1beta2."""
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
