"""LimitRanges: the defaults that they set and the Pods that they reject."""

from typing import Any

import pytest

from unit.apiserver.api import Api

PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
def api() -> Api:
    return Api()


def limit(api: Api, *limits: dict[str, Any], name: str = "lim") -> int:
    result = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": name}, "spec": {"limits": list(limits)}}
    return api.ask("POST", "/api/v1/namespaces/team/limitranges", result).code


def pod(resources: Any = None, init: Any = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i", "resources": resources or {}}]}
    if init is not None:
        spec["initContainers"] = [{"name": "first", "image": "i", "resources": init}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


def test_limit_range_sets_defaults_of_containers(api: Api) -> None:
    limit(api, {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m", "memory": "1Gi"}})
    created = api.post(PODS, pod({"requests": {"memory": "2Gi"}}, init={}))
    resources = created["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "memory": "2Gi"}}
    assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c; "
        "cpu, memory request for init container first; cpu limit for init container first"
    )


def test_limit_range_uses_bounds_as_defaults(api: Api) -> None:
    limit(api, {"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Gi"}})
    created = api.post(PODS, pod())["spec"]["containers"][0]["resources"]
    assert created == {"limits": {"cpu": "2"}, "requests": {"cpu": "2", "memory": "1Gi"}}


@pytest.mark.parametrize(
    ("bounds", "resources", "reported"),
    [
        ({"min": {"cpu": "1"}}, {"requests": {"cpu": "100m"}}, "minimum cpu usage per Pod is 1, but request is 100m"),
        ({"min": {"cpu": "1"}}, {}, "minimum cpu usage per Pod is 1.  No request is specified"),
        ({"max": {"memory": "1Gi"}}, {}, "maximum memory usage per Pod is 1Gi.  No limit is specified"),
        (
            {"max": {"memory": "1Gi"}},
            {"limits": {"memory": "2Gi"}},
            "maximum memory usage per Pod is 1Gi, but limit is 2Gi",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"limits": {"cpu": "1"}, "requests": {"cpu": "400m"}},
            "cpu max limit to request ratio per Pod is 2, but provided ratio is 2.500000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            "cpu max limit to request ratio per Pod is 2, but no request is specified or request is 0",
        ),
    ],
)
def test_pod_outside_bounds_is_rejected(api: Api, bounds: Any, resources: Any, reported: str) -> None:
    assert limit(api, {"type": "Pod", **bounds}) == 201
    response = api.ask("POST", PODS, pod(resources))
    assert (response.code, response.body["message"]) == (403, f'pods "pod" is forbidden: {reported}')


def test_limit_range_reports_all_violations_together(api: Api) -> None:
    limit(api, {"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}})
    response = api.ask("POST", PODS, pod({"limits": {"cpu": "2", "memory": "2Gi"}}))
    first, second = (
        "cpu usage per Container is 1, but limit is 2",
        "memory usage per Container is 1Gi, but limit is 2Gi",
    )
    assert response.body["message"] == f'pods "pod" is forbidden: [maximum {first}, maximum {second}]'


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ([{"type": "Foo"}], "must be a standard limit type or fully qualified"),
        ([{"type": "Pod"}, {"type": "Pod"}], 'Duplicate value: "Pod"'),
        ([{"type": "Pod", "default": {"cpu": 1}}], "may not be specified when `type` is 'Pod'"),
        ([{"type": "Container", "min": {"cpu": 2}, "max": {"cpu": 1}}], "min value 2 is greater than max value 1"),
        ([{"type": "Container", "max": {"dogs": 1}}], "must be a standard resource for containers"),
        ([{"type": "PersistentVolumeClaim"}], "either minimum or maximum storage value is required"),
        (
            [{"type": "Pod", "min": {"cpu": 1}, "max": {"cpu": 2}, "maxLimitRequestRatio": {"cpu": 3}}],
            "ratio 3 is greater than max/min = 2.000000",
        ),
    ],
)
def test_invalid_limit_range_is_rejected(api: Api, limits: Any, fault: str) -> None:
    result = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lim"}, "spec": {"limits": limits}}
    response = api.ask("POST", "/api/v1/namespaces/team/limitranges", result)
    assert response.code == 422
    assert fault in response.body["message"]


def test_limit_range_without_spec_sets_no_limits(api: Api) -> None:
    api.post("/api/v1/namespaces/team/limitranges", {"metadata": {"name": "none"}})
    assert api.post(PODS, pod())["spec"]["containers"][0].get("resources") == {}
