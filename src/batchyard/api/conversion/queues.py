"""The parts of all other kinds that differ between versions. Source: Kueue's apis/kueue/v1beta1/*_conversion.go."""

from typing import Final

from batchyard.api.conversion.parts import Fields, Fragment, Part, new_only, old_only, renamed

_SPEC: Final = ("spec",)
_STATUS: Final = ("status",)


def _checks_up(said: Fragment) -> Fragment:
    """Checks by name are checks for all flavors, and count for more than a strategy beside them."""
    if names := said.get("admissionChecks"):
        return {"admissionChecksStrategy": {"admissionChecks": [{"name": name} for name in names]}}
    strategy = said.get("admissionChecksStrategy")
    return {"admissionChecksStrategy": strategy} if strategy and strategy.get("admissionChecks") else {}


def _checks_down(said: Fragment) -> Fragment:
    """A strategy is one in both versions."""
    return dict(said)


def _fungibility(name: str, old_word: str) -> Part:
    """A choice that had a word of its own for stopping the search."""
    fields = Fields(("spec", "flavorFungibility"), (name,))
    return Part(
        f"spec.flavorFungibility.{name}",
        fields,
        fields,
        lambda said: {name: "MayStopSearch"} if said == {name: old_word} else said,
        dict,
    )


def _source_up(said: Fragment) -> Fragment:
    """One source of how to reach a cluster; an empty location is none."""
    if not said:
        return {}
    kube_config, profile = said.get("kubeConfig") or {}, said.get("clusterProfileRef")
    source = {"kubeConfig": kube_config} if kube_config.get("location") else {}
    return {"clusterSource": {**source, "clusterProfileRef": profile} if profile is not None else source}


def _source_down(said: Fragment) -> Fragment:
    """The kubeconfig, which the older version always has, and the profile if there is one."""
    if "clusterSource" not in said:
        return {}
    source = said["clusterSource"] or {}
    kube_config = source.get("kubeConfig") or {"location": "", "locationType": "Secret"}
    profile = source.get("clusterProfileRef")
    return {"kubeConfig": kube_config, **({} if profile is None else {"clusterProfileRef": profile})}


_FAIR_SHARING: Final = old_only(("status", "fairSharing"), "admissionFairSharingStatus")

CLUSTER_QUEUE_PARTS: Final = (
    renamed(_SPEC, "cohort", "cohortName"),
    Part(
        "spec.admissionChecksStrategy",
        Fields(_SPEC, ("admissionChecks", "admissionChecksStrategy")),
        Fields(_SPEC, ("admissionChecksStrategy",)),
        _checks_up,
        _checks_down,
    ),
    _fungibility("whenCanBorrow", "Borrow"),
    _fungibility("whenCanPreempt", "Preempt"),
    new_only(_SPEC, "concurrentAdmissionPolicy"),
    old_only(_STATUS, "pendingWorkloadsStatus"),
    _FAIR_SHARING,
)

COHORT_PARTS: Final = (_FAIR_SHARING,)

LOCAL_QUEUE_PARTS: Final = (renamed(_STATUS, "flavorUsage", "flavorsUsage"), old_only(_STATUS, "flavors"))

ADMISSION_CHECK_PARTS: Final = (old_only(_SPEC, "retryDelayMinutes", retryDelayMinutes=15),)

MULTI_KUEUE_CONFIG_PARTS: Final = (new_only(_SPEC, "quotaManagement"),)

MULTI_KUEUE_CLUSTER_PARTS: Final = (
    Part(
        "spec.clusterSource",
        Fields(_SPEC, ("kubeConfig", "clusterProfileRef")),
        Fields(_SPEC, ("clusterSource",)),
        _source_up,
        _source_down,
    ),
)
