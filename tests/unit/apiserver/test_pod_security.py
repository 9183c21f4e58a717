"""PodSecurity in the API server: rejected pods, warnings, audit annotations, labels of Namespaces."""

from typing import Any

import pytest

from batchyard.api.meta import controller_reference
from batchyard.apiserver.request import Response
from batchyard.apiserver.server import audit_event
from unit.apiserver.api import Api

MERGE = {"content-type": "application/merge-patch+json"}
NAMESPACES = "/api/v1/namespaces"
PREFIX = "pod-security.kubernetes.io/"
PLAIN: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
HOST: dict[str, Any] = {**PLAIN, "hostPID": True}
VIOLATES = (
    'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
    'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
    'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
    'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
    '"Localhost")'
)
HOST_PID = "host namespaces (hostPID=true)"


def labels(**modes: str) -> dict[str, str]:
    return {f"{PREFIX}{mode.replace('_', '-')}": level for mode, level in modes.items()}


def yard(**modes: str) -> Api:
    """A server with a Namespace `yard` of that policy."""
    api = Api()
    api.post(NAMESPACES, {"metadata": {"name": "yard", "labels": labels(**modes)}})
    api.post(f"{NAMESPACES}/yard/serviceaccounts", {"metadata": {"name": "default"}})
    return api


def create(api: Api, plural: str, obj: dict[str, Any]) -> Response:
    group = "/api/v1" if plural in {"pods", "podtemplates", "replicationcontrollers"} else "/apis/batch/v1"
    group = "/apis/apps/v1" if plural.endswith("sets") or plural == "deployments" else group
    return api.ask("POST", f"{group}/namespaces/yard/{plural}", {"metadata": {"name": "one"}, **obj})


def annotations(api: Api) -> dict[str, str]:
    result: dict[str, str] = audit_event(api.audited[-1], 0, 1).get("annotations", {})
    return {name.removeprefix(PREFIX): text for name, text in result.items()}


def test_pod_that_violates_enforced_policy_is_forbidden() -> None:
    api = yard(enforce="restricted")
    answer = create(api, "pods", {"spec": PLAIN})
    assert (answer.code, answer.body["reason"], answer.body["details"]) == (
        403,
        "Forbidden",
        {"name": "one", "kind": "pods"},
    )
    assert answer.body["message"] == f'pods "one" is forbidden: violates PodSecurity "restricted:latest": {VIOLATES}'
    assert answer.warnings == ()
    assert annotations(api) == {"enforce-policy": "restricted:latest"}


def test_policy_version_selects_checks() -> None:
    api = yard(enforce="restricted", enforce_version="v1.7", warn="privileged")
    answer = create(api, "pods", {"spec": PLAIN})
    expected = 'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)'
    assert answer.body["message"].endswith(f'violates PodSecurity "restricted:v1.7": {expected}')


def test_pod_that_violates_policy_gets_warning_and_audit_annotation() -> None:
    api = yard(enforce="baseline", warn="restricted", audit="restricted", audit_version="v1.7")
    answer = create(api, "pods", {"spec": PLAIN})
    assert (answer.code, answer.warnings) == (201, (f'would violate PodSecurity "restricted:latest": {VIOLATES}',))
    assert annotations(api)["enforce-policy"] == "baseline:latest"
    assert annotations(api)["audit-violations"].startswith('would violate PodSecurity "restricted:v1.7": runAsNonRoot')


def test_namespace_without_labels_is_privileged() -> None:
    api = yard()
    answer = create(api, "pods", {"spec": HOST})
    assert (answer.code, answer.warnings) == (201, ())
    assert annotations(api) == {"enforce-policy": "privileged:latest"}


TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": HOST}
SELECTED = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
OF_JOB = {"template": {"spec": {**HOST, "restartPolicy": "Never"}}}


@pytest.mark.parametrize(
    ("plural", "obj"),
    [
        ("podtemplates", {"template": TEMPLATE}),
        ("replicationcontrollers", {"spec": {"selector": {"a": "b"}, "template": TEMPLATE}}),
        ("replicasets", {"spec": SELECTED}),
        ("deployments", {"spec": SELECTED}),
        ("statefulsets", {"spec": {**SELECTED, "serviceName": "s"}}),
        ("daemonsets", {"spec": SELECTED}),
        ("jobs", {"spec": OF_JOB}),
        ("cronjobs", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": OF_JOB}}}),
    ],
)
def test_template_that_violates_policy_gets_warning_only(plural: str, obj: dict[str, Any]) -> None:
    api = yard(enforce="baseline", audit="baseline")
    answer = create(api, plural, obj)
    violates = f'would violate PodSecurity "baseline:latest": {HOST_PID}'
    assert (answer.code, answer.warnings[-1]) == (201, violates)
    assert annotations(api) == {"audit-violations": violates}


def test_template_update_gets_warning() -> None:
    api = yard(warn="baseline")
    path = "/apis/batch/v1/namespaces/yard/cronjobs/one"
    create(api, "cronjobs", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": OF_JOB}}})
    answer = api.ask("PATCH", path, {"spec": {"suspend": True}}, headers=MERGE)
    assert answer.warnings[-1] == f'would violate PodSecurity "baseline:latest": {HOST_PID}'


def test_pod_update_is_checked_only_if_image_changes() -> None:
    api = yard()
    create(api, "pods", {"spec": HOST})
    api.ask("PATCH", f"{NAMESPACES}/yard", {"metadata": {"labels": labels(enforce="baseline")}}, headers=MERGE)
    path = f"{NAMESPACES}/yard/pods/one"
    assert api.ask("PATCH", path, {"metadata": {"labels": {"x": "y"}}}, headers=MERGE).code == 200
    other = [{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]
    answer = api.ask("PATCH", path, other, headers={"content-type": "application/json-patch+json"})
    assert answer.body["message"] == f'pods "one" is forbidden: violates PodSecurity "baseline:latest": {HOST_PID}'


def test_invalid_policy_labels_are_rejected() -> None:
    problem = (
        f'metadata.labels[{PREFIX}enforce]: Invalid value: "none": must be one of privileged, baseline, restricted'
    )
    wrong = {"metadata": {"name": "yard", "labels": labels(enforce="none")}}
    api = Api()
    answer = api.ask("POST", NAMESPACES, wrong)
    assert (answer.code, answer.body["message"]) == (422, f'Namespace "yard" is invalid: {problem}')
    api = yard()
    answer = api.ask("PATCH", f"{NAMESPACES}/yard", {"metadata": wrong["metadata"]}, headers=MERGE)
    assert (answer.code, answer.body["message"]) == (422, f'Namespace "yard" is invalid: {problem}')


def change_labels(api: Api, **modes: str) -> tuple[str, ...]:
    """Change the labels of the Namespace; the warnings."""
    answer = api.ask("PATCH", f"{NAMESPACES}/yard", {"metadata": {"labels": labels(**modes)}}, headers=MERGE)
    assert answer.code == 200
    return answer.warnings


def test_stricter_policy_warns_about_violating_pods() -> None:
    api = yard()
    for name, spec in (("d", PLAIN), ("a", HOST), ("c", HOST), ("b", HOST)):
        api.post(f"{NAMESPACES}/yard/pods", {"metadata": {"name": name}, "spec": spec})
    begin = 'existing pods in namespace "yard" violate the new PodSecurity enforce level'
    assert change_labels(api, enforce="baseline") == (
        f'{begin} "baseline:latest"',
        "a (and 2 other pods): host namespaces",
    )
    rest = "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    assert change_labels(api, enforce="restricted") == (
        f'{begin} "restricted:latest"',
        f"a (and 2 other pods): host namespaces, {rest}",
        f"d: {rest}",
    )
    assert change_labels(api, enforce="baseline") == ()
    assert change_labels(api, enforce="baseline", warn="restricted") == ()
    assert change_labels(api, enforce_version="v1.30") == (
        f'{begin} "baseline:v1.30"',
        "a (and 2 other pods): host namespaces",
    )
    assert change_labels(api, enforce="privileged", enforce_version="latest") == ()


def test_managed_label_on_pod_of_job_causes_warning() -> None:
    api = yard()
    job = create(api, "jobs", {"spec": {"suspend": True, "template": {"spec": {**PLAIN, "restartPolicy": "Never"}}}})
    labels, owner = {"kueue.x-k8s.io/managed": "true"}, controller_reference(job.body)
    metadata = {"name": "one", "labels": labels, "ownerReferences": [owner]}
    answer = create(api, "pods", {"metadata": metadata, "spec": PLAIN})
    message = "pod owner is managed by kueue, label 'kueue.x-k8s.io/managed=true' might lead to unexpected behaviour"
    assert (answer.code, answer.warnings) == (201, (message,))
