"""Field ownership: updates take fields, applies conflict unless forced, and fields without owner are removed."""

from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.api.scheme import POD, SERVICE, kind_info
from batchyard.apiserver.apply import (
    UPDATE_ENTRIES_MAX,
    FieldManager,
    VersionAccessors,
    apply_configuration,
    check_applied_config,
    managed_fields_after_update,
)
from batchyard.apiserver.patch import MergeSchema, merge_schema_of_kind
from batchyard.apiserver.request import StatusError
from unit.apiserver.api import Api

META = {"name": "a", "namespace": "default"}


def versions(kind: str) -> VersionAccessors:
    """A kind with only one version."""

    def merge_schema(_version: str) -> MergeSchema:
        return merge_schema_of_kind(kind_info(kind), "v1")

    return VersionAccessors(merge_schema, lambda obj, _version: obj, lambda _version: True)


PODS, SERVICES = versions(POD), versions(SERVICE)


def by(manager: str, time: int = 0) -> FieldManager:
    """A field manager that writes at a second."""
    return FieldManager(manager, "v1", "", f"2026-01-01T00:00:{time:02}Z")


def service(*ports: int, **spec: Any) -> dict[str, Any]:
    """A Service of these ports."""
    listed = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]} if ports else {}
    return {"apiVersion": "v1", "kind": "Service", "metadata": META, "spec": {**listed, **spec}}


def apply(live: Obj | None, config: Obj, manager: str, time: int = 0, *, force: bool = False) -> dict[str, Any]:
    """The object after an apply."""
    result = apply_configuration(live, config, by(manager, time), SERVICES, force=force)
    return {**result.obj, "metadata": {**result.obj["metadata"], "managedFields": result.managed_fields}}


def ports_of(obj: Obj) -> list[int]:
    """The ports of a Service."""
    return [port["port"] for port in obj["spec"].get("ports", [])]


def managers(obj: Obj) -> dict[str, Any]:
    """The fields of the spec that each manager owns."""
    return {entry["manager"]: entry["fieldsV1"].get("f:spec") for entry in obj["metadata"]["managedFields"]}


def test_applier_owns_each_applied_field() -> None:
    created = apply(None, service(80, type="ClusterIP"), "me")
    item: dict[str, Any] = {".": {}, "f:port": {}, "f:protocol": {}}
    assert managers(created) == {"me": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': item}, "f:type": {}}}


def test_two_appliers_share_list_by_items() -> None:
    both = apply(apply(None, service(80), "me"), service(81), "you")
    assert ports_of(both) == [80, 81]
    assert ports_of(apply(both, service(82), "me")) == [81, 82]


def test_item_applied_no_longer_is_removed_unless_shared() -> None:
    both = apply(apply(None, service(80, 81), "me"), service(81), "you")
    assert ports_of(apply(both, service(82), "me")) == [81, 82]


def test_last_applied_metadata_is_removed_without_the_name() -> None:
    live = {**META, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    noted = {**service(80), "metadata": {**live, "annotations": {"a": "b"}}}
    created = apply(None, noted, "me")
    metadata = apply(created, service(80), "me")["metadata"]
    assert {name: value for name, value in metadata.items() if name != "managedFields"} == live


def test_apply_of_other_value_conflicts_with_owner() -> None:
    live = apply(None, service(type="ClusterIP"), "me")
    with pytest.raises(StatusError) as refused:
        apply(live, service(type="NodePort"), "you")
    assert refused.value.code == 409
    assert str(refused.value) == 'Apply failed with 1 conflict: conflict with "me": .spec.type'
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".spec.type"}
    assert refused.value.details == {"causes": [cause]}


def test_apply_reports_all_conflicts_by_manager() -> None:
    live = apply(None, service(type="ClusterIP", sessionAffinity="None"), "me")
    live = apply(live, service(externalName="a"), "you")
    with pytest.raises(StatusError) as refused:
        apply(live, service(type="NodePort", sessionAffinity="ClientIP", externalName="b"), "they")
    reported = (
        'conflicts with "me":\n- .spec.sessionAffinity\n- .spec.type\nconflicts with "you":\n- .spec.externalName'
    )
    assert str(refused.value) == f"Apply failed with 3 conflicts: {reported}"


def test_conflict_with_updater_reports_api_version() -> None:
    live = apply(None, service(type="ClusterIP"), "me")
    changed = {**service(type="NodePort"), "metadata": live["metadata"]}
    entries = managed_fields_after_update(live, changed, live["metadata"]["managedFields"], by("editor"), SERVICES)
    with pytest.raises(StatusError, match=r'conflict with "editor" using v1: \.spec\.type'):
        apply({**changed, "metadata": {**META, "managedFields": entries}}, service(type="ClusterIP"), "me")


def test_forced_apply_takes_ownership() -> None:
    taken = apply(apply(None, service(type="ClusterIP"), "me"), service(type="NodePort"), "you", force=True)
    assert taken["spec"] == {"type": "NodePort"}
    assert managers(taken) == {"you": {"f:type": {}}}


def test_apply_of_same_value_shares_ownership() -> None:
    both = apply(apply(None, service(type="ClusterIP"), "me"), service(type="ClusterIP"), "you")
    assert managers(both) == {"me": {"f:type": {}}, "you": {"f:type": {}}}


def test_repeated_apply_keeps_object_and_time() -> None:
    created = apply(None, service(80), "me", time=1)
    assert apply(created, service(80), "me", time=2) == created


def test_update_owns_changed_fields_and_drops_removed_fields() -> None:
    live = apply(None, service(80, type="ClusterIP"), "me")
    changed = service(type="NodePort")
    entries = managed_fields_after_update(live, changed, live["metadata"]["managedFields"], by("editor"), SERVICES)
    obj = {"metadata": {"managedFields": entries}}
    assert managers(obj) == {"editor": {"f:type": {}}}


def test_fields_without_manager_belong_to_before_first_apply() -> None:
    live = service(80, type="ClusterIP")
    with pytest.raises(StatusError, match=r'conflict with "before-first-apply" using v1: \.spec\.type'):
        apply(live, service(type="NodePort"), "me")
    assert ports_of(apply(live, service(81), "me")) == [80, 81]


def test_kubectl_takes_ownership_of_last_applied_configuration() -> None:
    last = '{"apiVersion":"v1","kind":"Service","metadata":{},"spec":{"type":"ClusterIP"}}'
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": last}
    live = {**service(type="ClusterIP"), "metadata": {**META, "annotations": annotations}}
    assert apply(live, service(type="NodePort"), "kubectl")["spec"] == {"type": "NodePort"}
    with pytest.raises(StatusError, match="conflict with"):
        apply(live, service(type="NodePort"), "helm")


def test_oldest_updaters_are_merged() -> None:
    entries: list[dict[str, Any]] = []
    obj = service()
    for number in range(UPDATE_ENTRIES_MAX + 2):
        new = {**obj, "metadata": {**META, "labels": {f"l{n}": "" for n in range(number + 1)}}}
        entries = managed_fields_after_update(obj, new, entries, by(f"m{number}", number), SERVICES)
        obj = new
    assert len(entries) == UPDATE_ENTRIES_MAX
    assert entries[0]["manager"] == "ancient-changes"
    assert set(entries[0]["fieldsV1"]["f:metadata"]["f:labels"]) >= {"f:l0", "f:l1"}


def test_oldest_updaters_are_merged_by_api_version() -> None:
    def entry(number: int, version: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:l{number}": {}}}}
        written = {"manager": f"m{number}", "operation": "Update", "apiVersion": version, "time": by("", number).time}
        return {**written, "fieldsType": "FieldsV1", "fieldsV1": fields}

    versions_by_age = ["v1beta1", "v2", "v1", "v1beta1", "v1", *["v1"] * (UPDATE_ENTRIES_MAX - 4)]
    entries = [entry(number, version) for number, version in enumerate(versions_by_age)]
    live = service() | {"metadata": {**META, "labels": {f"l{number}": "" for number in range(len(entries))}}}
    new = live | {"metadata": {**META, "labels": {**live["metadata"]["labels"], "new": ""}}}
    merged = managed_fields_after_update(live, new, entries, by("writer", 30), SERVICES)
    owned = [(each["manager"], each["apiVersion"], set(each["fieldsV1"]["f:metadata"]["f:labels"])) for each in merged]
    assert owned[:3] == [
        ("m1", "v2", {"f:l1"}),
        ("ancient-changes", "v1beta1", {"f:l0", "f:l3"}),
        ("ancient-changes", "v1", {"f:l2", "f:l4"}),
    ]
    assert len(merged) == UPDATE_ENTRIES_MAX


def test_atomic_field_has_one_owner() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": META, "spec": {"nodeSelector": {"a": "b"}, "tolerations": []}}
    entries = apply_configuration(None, pod, by("me"), PODS, force=False).managed_fields
    assert entries[0]["fieldsV1"] == {"f:spec": {"f:nodeSelector": {}, "f:tolerations": {}}}


def test_apply_keeps_order_of_applied_items() -> None:
    live = apply(None, service(80, 81), "me")
    live = apply(live, service(90), "you")
    assert ports_of(apply(live, service(81, 80), "me")) == [81, 90, 80]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"specs": {}}, r"\(default/a; /v1, Kind=Service\): .specs: field not declared in schema"),
        ({"spec": {"ports": [{"prt": 1}]}}, r".spec.ports.prt: field not declared in schema"),
        ({"metadata": {"managedFields": []}}, "metadata.managedFields must be nil"),
        ({"spec": {"ports": [{"port": 1}, {"port": 1}]}}, "duplicate entries for key "),
        ({"metadata": {"finalizers": ["a", "a"]}}, "duplicate entries for key "),
    ],
)
def test_invalid_apply_configuration_is_rejected(change: dict[str, Any], reported: str) -> None:
    with pytest.raises(StatusError, match=reported):
        check_applied_config({**service(), **change}, SERVICES.merge_schema("v1"))


@pytest.mark.parametrize("ports", [[{"port": 80}, {"port": 80}], ["http"]])
def test_apply_rejects_items_without_unique_keys(ports: list[Any]) -> None:
    live = apply(None, service(80), "me")
    with pytest.raises(StatusError):
        apply(live, service(type="NodePort") | {"spec": {"ports": [*ports]}}, "me")


def test_malformed_managed_fields_are_ignored() -> None:
    odd = [{"manager": "x"}, {"manager": "y", "operation": "Update", "fieldsV1": {"f:spec": 5, "k:{": {}}}]
    live = {**service(type="ClusterIP"), "metadata": {**META, "managedFields": odd}}
    assert apply(live, service(type="NodePort"), "me")["spec"] == {"type": "NodePort"}


def test_create_owns_no_status_fields() -> None:
    api, path = Api(), "/api/v1/namespaces/team/pods"
    created = api.post(path, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert created["status"]["phase"] == "Pending"
    assert [sorted(entry["fieldsV1"]) for entry in created["metadata"]["managedFields"]] == [["f:spec"]]
    config = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Running"}}
    headers = {"content-type": "application/apply-patch+yaml"}
    assert api.ask("PATCH", f"{path}/p/status?fieldManager=me", config, headers=headers).code == 200
