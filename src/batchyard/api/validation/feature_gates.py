"""Validation of the feature gates that a Configuration or a Scenario sets.

Source: LoadAndValidateFeatureGates in Kueue's pkg/config/validation.go, defaultFeatureGateDependencies in
pkg/features/kube_features.go of Kueue 0.20, and Validate in k8s.io/component-base/featuregate.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import find_nearest_name
from batchyard.api.validation import rules
from batchyard.api.well_known import (
    ADMISSION_FAIR_SHARING,
    ANCHOR_AT_QUOTA_RESERVATION,
    ELASTIC_JOBS_GATE,
    ELASTIC_TOPOLOGY_GATE,
    GATES,
    PARTIAL_PREEMPTION_GATE,
    TAS_BALANCED_PLACEMENT,
    TAS_FAIL_FAST,
    TAS_FAILED_NODE_REPLACEMENT,
    TAS_FIXED_DELAY,
    TAS_MULTIPLE_LAYERS,
    TAS_OVERLAPPING_FLAVORS,
    TAS_POD_TERMINATION,
    TAS_PREFERRED_AFFINITY,
    TAS_PROFILE_MIXED,
    TAS_RECOMPUTATION,
    TAS_TAINTED_NODES,
    TOPOLOGY_AWARE_SCHEDULING,
)

_TAS: Final = (TOPOLOGY_AWARE_SCHEDULING,)
_DRA: Final = ("KueueDRAIntegration",)

#: The gates that must be enabled for a gate to be enabled. Kueue has all of them but PartialPreemption.
GATE_DEPENDENCIES: Final[Mapping[str, tuple[str, ...]]] = {
    TAS_FAILED_NODE_REPLACEMENT: _TAS,
    TAS_FAIL_FAST: (*_TAS, TAS_FAILED_NODE_REPLACEMENT),
    TAS_POD_TERMINATION: (*_TAS, TAS_FAILED_NODE_REPLACEMENT),
    TAS_FIXED_DELAY: (*_TAS, TAS_FAILED_NODE_REPLACEMENT),
    TAS_BALANCED_PLACEMENT: _TAS,
    TAS_TAINTED_NODES: _TAS,
    TAS_MULTIPLE_LAYERS: _TAS,
    TAS_PREFERRED_AFFINITY: _TAS,
    "UnadmittedWorkloadsExplicitStatus": ("UnadmittedWorkloadsObservability",),
    TAS_OVERLAPPING_FLAVORS: _TAS,
    TAS_PROFILE_MIXED: _TAS,
    TAS_RECOMPUTATION: _TAS,
    ELASTIC_TOPOLOGY_GATE: (ELASTIC_JOBS_GATE, *_TAS),
    "KueueDRAIntegrationExtendedResource": _DRA,
    "KueueDRAIntegrationPartitionableDevices": _DRA,
    "KueueDRAIntegrationConsumableCapacity": _DRA,
    "FlavorFungibilityPreserveScanProgress": ("FlavorFungibility",),
    "SchedulingEquivalenceHashingIgnorePodSetName": ("SchedulingEquivalenceHashing",),
    PARTIAL_PREEMPTION_GATE: (ELASTIC_JOBS_GATE,),
}


def feature_gate_errors(gates: Mapping[str, bool]) -> Iterator[FieldError]:
    """Report unknown feature gates, and enabled gates that depend on disabled ones, with Kueue's messages."""
    for name, is_enabled in gates.items():
        if name not in GATES:
            nearest = find_nearest_name(name, GATES)
            remedy = (
                f"did you mean {nearest}?" if nearest else f"remove the entry: Kueue 0.19 has no feature gate {name}"
            )
            yield rules.invalid("featureGates", {name: is_enabled}, f"unrecognized feature gate: {name}", remedy)
    yield from dependency_errors(gates, "featureGates")
    if gates.get(ANCHOR_AT_QUOTA_RESERVATION) and gates.get(ADMISSION_FAIR_SHARING) is False:
        message = f"{ANCHOR_AT_QUOTA_RESERVATION} requires {ADMISSION_FAIR_SHARING}"
        yield rules.invalid("featureGates", dict(gates), message, f"enable {ADMISSION_FAIR_SHARING} too")


def dependency_errors(gates: Mapping[str, bool], path: str) -> Iterator[FieldError]:
    """Report the enabled feature gates that depend on disabled ones, in one error; `path` is the path of the gates.

    A gate that is not set has its default. As in Kueue, unknown gates prevent the check.
    """
    if any(name not in GATES for name in gates):
        return
    unmet = unmet_dependencies(gates)
    if unmet:
        messages = [
            f"{name} is enabled, but depends on features that are disabled: [{' '.join(disabled)}]"
            for name, disabled in unmet.items()
        ]
        message = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
        names = ", ".join(f"{name}: false" for name in unmet)
        yield rules.invalid(path, dict(gates), message, f"set {names}, or enable the gates in brackets")


def unmet_dependencies(gates: Mapping[str, bool]) -> dict[str, list[str]]:
    """Return the enabled gates that depend on disabled ones, sorted by name, with these; `gates` are the set ones."""
    effective = {**GATES, **gates}
    disabled_by_gate = {
        name: [each for each in dependencies if not effective[each]]
        for name, dependencies in sorted(GATE_DEPENDENCIES.items())
        if effective[name]
    }
    return {name: disabled for name, disabled in disabled_by_gate.items() if disabled}
