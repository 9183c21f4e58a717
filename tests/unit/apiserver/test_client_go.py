"""Requests of client-go and controller-runtime, header by header, and the responses that they need.

Sources: k8s.io/client-go (discovery, rest, metadata, cache, leaderelection); sigs.k8s.io/controller-runtime.
"""

from typing import Any

import pytest

from unit.apiserver.api import Api, config_map
from unit.apiserver.test_protobuf import entry, field, metadata, protobuf_envelope

DISCOVERY = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
PROTOBUF = "application/vnd.kubernetes.protobuf"
#: The Accept headers of typed clients, of clients that may choose, and of dynamic clients.
ACCEPTED = (f"{PROTOBUF}, */*", f"{PROTOBUF},application/json", "application/json, */*", "application/json")
METADATA = "".join(
    f"{media_type};as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1,"
    for suffix in ("List", "")
    for media_type in (PROTOBUF, "application/json")
)
MAPS = "/api/v1/namespaces/team/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"
REFLECTOR = (
    "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=300&watch=1"
)


def test_aggregated_discovery_returns_all_kinds_in_two_documents() -> None:
    api = Api()
    core, named = (api.ask("GET", path, headers={"accept": DISCOVERY}) for path in ("/api", "/apis"))
    assert core.content_type == named.content_type == DISCOVERY.partition(",")[0]
    versions = {group["metadata"].get("name", ""): group["versions"] for group in named.body["items"]}
    (jobset,) = versions["jobset.x-k8s.io"][0]["resources"]
    assert jobset["responseKind"] == {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}
    assert jobset["subresources"][0]["subresource"] == "status"
    assert [version["version"] for version in versions["kueue.x-k8s.io"]] == ["v1beta2", "v1beta1", "v1alpha1"]


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_typed_clients_get_json_responses(accepted: str) -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    for path in (MAPS, f"{MAPS}/a"):
        assert api.ask("GET", path, headers={"accept": accepted}).content_type == "application/json"


def test_protobuf_or_cbor_only_clients_are_rejected() -> None:
    for accepted in (PROTOBUF, "application/cbor"):
        answer = Api().ask("GET", MAPS, headers={"accept": accepted})
        assert (answer.code, answer.body["reason"]) == (406, "NotAcceptable")
    cbor = Api().ask("POST", MAPS, b"\xd9\xd9\xf7\xa0", headers={"content-type": "application/cbor"})
    assert (cbor.code, cbor.body["reason"]) == (415, "UnsupportedMediaType")


def test_protobuf_request_body_is_decoded() -> None:
    api, headers = Api(), {"content-type": PROTOBUF, "accept": ACCEPTED[0]}
    sent = protobuf_envelope("v1", "ConfigMap", field(1, metadata("typed")) + field(2, entry("a", "1")))
    assert api.ask("POST", MAPS, sent, headers=headers).body["data"] == {"a": "1"}
    options = protobuf_envelope("v1", "DeleteOptions", field(2, field(1, "another")))
    assert api.ask("DELETE", f"{MAPS}/typed", options, headers=headers).body["reason"] == "Conflict"


def test_reflector_streams_initial_list_and_resumes_from_bookmark() -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    first, bookmark = api.watch(f"{MAPS}?{REFLECTOR}").take_buffered_data()
    assert (first["type"], bookmark["type"]) == ("ADDED", "BOOKMARK")
    about = bookmark["object"]["metadata"]
    assert about["annotations"] == {"k8s.io/initial-events-end": "true"}
    api.post(MAPS, config_map("b"))
    again = f"{MAPS}?allowWatchBookmarks=true&resourceVersion={about['resourceVersion']}&timeoutSeconds=300&watch=true"
    assert [event["object"]["metadata"]["name"] for event in api.watch(again).take_buffered_data()] == ["b"]


def test_reflector_list_returns_pages_of_one_revision() -> None:
    api = Api()
    for name in ("a", "b", "c"):
        api.post(MAPS, config_map(name))
    first = api.get(f"{MAPS}?limit=2&resourceVersion=0")
    api.post(MAPS, config_map("d"))
    rest = api.get(f"{MAPS}?limit=2&continue={first['metadata']['continue']}")
    assert [obj["metadata"]["name"] for obj in rest["items"]] == ["c"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_future_revision_is_rejected_as_too_large() -> None:
    answer = Api().ask("GET", f"{MAPS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan")
    assert (answer.code, answer.body["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")


def test_metadata_informer_gets_partial_metadata_in_bookmarks() -> None:
    api = Api()
    api.post(MAPS, config_map("a", colour="red"))
    reported = api.get(MAPS, accept=METADATA)
    assert (reported["kind"], "data" in reported["items"][0]) == ("PartialObjectMetadataList", False)
    events = api.watch(
        f"{MAPS}?{REFLECTOR}", accept=METADATA.partition(",")[2].replace("List", "")
    ).take_buffered_data()
    kinds = [(event["object"]["kind"], event["object"]["apiVersion"]) for event in events]
    assert kinds == [("PartialObjectMetadata", "meta.k8s.io/v1")] * 2


def test_lease_update_with_old_revision_conflicts() -> None:
    api, spec = Api(), {"holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    times = {"acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"}
    held = api.post(LEASES, {"metadata": {"name": "kueue"}, "spec": {**spec, **times}})
    # Go writes the creation time of an object in whole seconds.
    about: dict[str, Any] = {**held["metadata"], "creationTimestamp": held["metadata"]["creationTimestamp"][:19] + "Z"}
    renewed = {**held, "metadata": about, "spec": {**held["spec"], "renewTime": "2026-01-01T00:00:02.000000Z"}}
    assert api.ask("PUT", f"{LEASES}/kueue", renewed).code == 200
    stolen = {**held, "spec": {**held["spec"], "holderIdentity": "other"}}
    answer = api.ask("PUT", f"{LEASES}/kueue", stolen)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"].startswith('Operation cannot be fulfilled on leases.coordination.k8s.io "kueue": ')


def test_controller_applies_status_with_its_field_manager() -> None:
    api, queues = Api(), "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
    api.post(queues, {"metadata": {"name": "q"}, "spec": {}})
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    sent = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "q"}}
    apply = {"content-type": "application/apply-patch+yaml"}
    path = f"{queues}/q/status?fieldManager=kueue-admission&force=true"
    answer = api.ask("PATCH", path, {**sent, "status": {"conditions": [condition]}}, headers=apply)
    assert (answer.code, answer.body["status"]["conditions"][0]["reason"]) == (200, "Ready")
    entry_ = next(each for each in answer.body["metadata"]["managedFields"] if each["manager"] == "kueue-admission")
    assert (entry_["operation"], entry_["subresource"]) == ("Apply", "status")


def test_merge_patch_with_current_revision_removes_finalizer() -> None:
    api, merge = Api(), {"content-type": "application/merge-patch+json"}
    created = api.post(MAPS, {**config_map("a"), "metadata": {"name": "a", "finalizers": ["example.com/held"]}})
    gone = api.ask("DELETE", f"{MAPS}/a").body
    assert gone["metadata"]["deletionTimestamp"]
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"], "finalizers": None}}
    assert api.ask("PATCH", f"{MAPS}/a", stale, headers=merge).body["reason"] == "Conflict"
    fresh = {"metadata": {"resourceVersion": gone["metadata"]["resourceVersion"], "finalizers": None}}
    assert api.ask("PATCH", f"{MAPS}/a", fresh, headers=merge).code == 200
    assert api.ask("GET", f"{MAPS}/a").code == 404


def test_secret_string_data_is_stored_as_data() -> None:
    api, secrets = Api(), "/api/v1/namespaces/team/secrets"
    sent = {"metadata": {"name": "a"}, "data": {"raw": "AP8=", "key": "AA=="}, "stringData": {"key": "text"}}
    created = api.post(secrets, sent)
    assert (created["data"], "stringData" in created) == ({"raw": "AP8=", "key": "dGV4dA=="}, False)
    (entry_,) = created["metadata"]["managedFields"]
    assert entry_["fieldsV1"]["f:data"].keys() == {".", "f:raw", "f:key"}
    merge = {"content-type": "application/merge-patch+json"}
    patched = api.ask("PATCH", f"{secrets}/a", {"stringData": {"more": "b"}}, headers=merge).body
    assert (patched["data"]["more"], "stringData" in patched) == ("Yg==", False)


def test_secret_size_limit_counts_decoded_data() -> None:
    api, secrets = Api(), "/api/v1/namespaces/team/secrets"
    for name, size, code in (("a", 2**20, 201), ("b", 2**20 + 1, 422)):
        sent = {"metadata": {"name": name}, "stringData": {"key": "x" * size}}
        assert api.ask("POST", secrets, sent).code == code


def test_null_value_in_string_map_becomes_empty_string() -> None:
    sent = {"metadata": {"name": "a", "labels": {"l": None}}, "data": {"a": None}, "binaryData": {"b": None}}
    created = Api().post(MAPS, sent)
    assert (created["metadata"]["labels"], created["data"], created["binaryData"]) == ({"l": ""}, {"a": ""}, {"b": ""})
