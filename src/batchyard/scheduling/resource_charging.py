"""Resources that quota is charged for: the section `resources` of Kueue's Configuration, applied to pod requests.

Exclusions and transformations change what a pending Workload is charged, but not its pods. An admitted Workload keeps
the usage that its admission records. Source: dropExcludedResources and applyResourceTransformations in
pkg/workload/workload.go of Kueue; as in Kueue 0.20, `multiplyBy` also reads excluded resources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from batchyard.api.meta import NANO, Obj, parse_quantity
from batchyard.api.views.node import Requests, sort_requests, total_pod_requests
from batchyard.api.views.workload import PodSet

_RETAIN: Final = "Retain"
_IGNORE_UNDECLARED: Final = "IgnoreUndeclared"
#: The unit of products of three amounts in billionths: input, multiplier and factor. Products are exact.
_PRODUCT_SCALE: Final = NANO**3
#: The largest amount that the API can represent.
_AMOUNT_MAX: Final = 2**63 - 1
_CACHED_POD_SETS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class ResourceTransformation:
    """The conversion of one requested resource (`input_resource`) into charged resources."""

    input_resource: str
    #: The charged resources, each with its amount per unit of the input, in billionths; negative for an allowance.
    outputs: tuple[tuple[str, int], ...] = ()
    #: Whether the input is charged too.
    is_input_retained: bool = True
    #: The requested resource whose amount multiplies the outputs; '' for none.
    multiplier: str = ""


@dataclass(frozen=True, slots=True)
class ResourceRules:
    """The section `resources` of a Configuration; the default charges the requests of the pods."""

    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[ResourceTransformation, ...] = ()
    #: Whether resources that a ClusterQueue does not cover are ignored instead of blocking the Workload.
    ignores_undeclared: bool = False

    @property
    def changes_requests(self) -> bool:
        """Whether some requests are excluded or transformed."""
        return bool(self.excluded_prefixes or self.transformations)


def parse_resource_rules(resources: Mapping[str, Any], *, is_strategy_enabled: bool = True) -> ResourceRules:
    """Parse the section `resources` of a valid Configuration.

    `is_strategy_enabled` is the feature gate QuotaCheckStrategy: without it, `quotaCheckStrategy` has no effect.
    """
    return ResourceRules(
        excluded_prefixes=tuple(resources.get("excludeResourcePrefixes") or ()),
        transformations=tuple(map(_parse_transformation, resources.get("transformations") or ())),
        ignores_undeclared=is_strategy_enabled and resources.get("quotaCheckStrategy") == _IGNORE_UNDECLARED,
    )


def _parse_transformation(transformation: Mapping[str, Any]) -> ResourceTransformation:
    outputs = transformation.get("outputs") or {}
    return ResourceTransformation(
        input_resource=transformation["input"],
        outputs=tuple([(name, parse_quantity(value)) for name, value in outputs.items()]),
        is_input_retained=(transformation.get("strategy") or _RETAIN) == _RETAIN,
        multiplier=transformation.get("multiplyBy") or "",
    )


def charged_requests(rules: ResourceRules, pod_spec: Mapping[str, Any]) -> Requests:
    """Return the amounts by resource that quota is charged for one pod, as integers in Kueue's order of resources.

    As in Kueue 0.20, a resource with an excluded prefix is not charged itself, but its transformation is.
    """
    requested_amounts = total_pod_requests(pod_spec)
    transformation_by_input = {each.input_resource: each for each in rules.transformations}
    totals: dict[str, int] = {}
    generated_amounts: dict[str, int] = {}
    for name, amount in requested_amounts.items():
        is_excluded = name.startswith(rules.excluded_prefixes)
        transformation = transformation_by_input.get(name)
        if not is_excluded and (transformation is None or transformation.is_input_retained):
            totals[name] = amount * NANO * NANO
        if transformation is not None:
            multiplier_amount = requested_amounts.get(transformation.multiplier, NANO)
            for output, factor in transformation.outputs:
                product = amount * multiplier_amount * factor
                generated_amounts[output] = generated_amounts.get(output, 0) + product
    for output, generated in generated_amounts.items():
        # Allowances (negative factors) reduce only generated amounts, never amounts that pods request.
        totals[output] = totals.get(output, 0) + max(0, generated)
    return sort_requests({name: _round_up(name, product) for name, product in totals.items()})


def _round_up(resource: str, product: int) -> int:
    unit = _PRODUCT_SCALE // 1000 if resource == "cpu" else _PRODUCT_SCALE
    return min(max(0, -(-product // unit)), _AMOUNT_MAX)


class ResourceCharging:
    """Replaces the requests in pod sets by the charged ones; pod sets with equal content share the result."""

    def __init__(self, rules: ResourceRules) -> None:
        self._rules = rules
        #: The charged pod sets by the id of the pod sets; the latter are kept so that their id stays theirs.
        self._charged_pod_sets: dict[int, tuple[tuple[PodSet, ...], tuple[PodSet, ...]]] = {}

    def charge(self, workload: Obj, pod_sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
        """Return the parsed pod sets of a Workload with charged requests in their templates."""
        cache_entry = self._charged_pod_sets.get(id(pod_sets))
        if cache_entry is not None:
            return cache_entry[1]
        if len(self._charged_pod_sets) >= _CACHED_POD_SETS_MAX:
            self._charged_pod_sets.clear()
        pod_set_objs: Sequence[Obj] = workload["spec"].get("podSets") or ()
        charged = tuple([self._charge_pod_set(obj, each) for obj, each in zip(pod_set_objs, pod_sets, strict=True)])
        self._charged_pod_sets[id(pod_sets)] = pod_sets, charged
        return charged

    def _charge_pod_set(self, obj: Obj, pod_set: PodSet) -> PodSet:
        requests = charged_requests(self._rules, (obj.get("template") or {}).get("spec") or {})
        template = replace(pod_set.template, requests=requests, placed_requests=pod_set.template.requests)
        return replace(pod_set, template=template)
