"""Lists: pages, revisions, selectors and representations."""

from typing import Any

import pytest

from batchyard.apiserver.handlers import read
from unit.apiserver.api import Api, config_map

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def api() -> Api:
    """An API with five ConfigMaps, two of them red."""
    api = Api()
    for number in range(5):
        api.post(MAPS, config_map(f"m{number}", colour="red" if number % 3 else "green"))
    return api


def names(listed: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def test_list_pages_show_one_revision(api: Api) -> None:
    first = api.get(f"{MAPS}?limit=2")
    assert names(first) == ["m0", "m1"]
    assert first["metadata"]["remainingItemCount"] == 3
    api.ask("DELETE", f"{MAPS}/m2")
    api.post(MAPS, config_map("m21"))
    second = api.get(f"{MAPS}?limit=2&continue={first['metadata']['continue']}")
    assert names(second) == ["m2", "m3"]
    third = api.get(f"{MAPS}?limit=2&continue={second['metadata']['continue']}")
    assert names(third) == ["m4"]
    assert third["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}


def test_continued_list_rejects_resource_version(api: Api) -> None:
    token = api.get(f"{MAPS}?limit=2")["metadata"]["continue"]
    assert api.ask("GET", f"{MAPS}?limit=2&continue={token}&resourceVersion=1").code == 400
    assert api.ask("GET", f"{MAPS}?limit=2&continue={token}&resourceVersion=0").code == 200


def test_selected_list_omits_remaining_item_count(api: Api) -> None:
    page = api.get(f"{MAPS}?limit=1&labelSelector=colour=green")
    assert names(page) == ["m0"]
    assert "remainingItemCount" not in page["metadata"]
    assert names(api.get(f"{MAPS}?limit=1&labelSelector=colour=green&continue={page['metadata']['continue']}")) == [
        "m3"
    ]


def test_old_continue_token_expires_after_many_lists(api: Api) -> None:
    token = api.get(f"{MAPS}?limit=2")["metadata"]["continue"]
    for number in range(70):
        api.post(MAPS, config_map(f"x{number}"))
        api.get(f"{MAPS}?limit=1")
    refused = api.ask("GET", f"{MAPS}?limit=2&continue={token}")
    assert (refused.code, refused.body["reason"]) == (410, "Expired")


def test_continued_list_expires_before_newer_list(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "HELD_LIST_AGE_MAX", 3)
    token = api.get(f"{MAPS}?limit=1")["metadata"]["continue"]
    for number in range(2):
        api.post(MAPS, config_map(f"x{number}"))
    newer_token = api.get(f"{MAPS}?limit=1")["metadata"]["continue"]
    api.get(f"{MAPS}?limit=1&continue={token}")
    for number in range(2, 4):
        api.post(MAPS, config_map(f"x{number}"))
    assert api.ask("GET", f"{MAPS}?limit=1&continue={token}").code == 410
    assert api.ask("GET", f"{MAPS}?limit=1&continue={newer_token}").code == 200


def test_continue_token_expires_after_many_changes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "HELD_LIST_AGE_MAX", 3)
    token = api.get(f"{MAPS}?limit=2")["metadata"]["continue"]
    for number in range(4):
        assert api.ask("GET", f"{MAPS}?limit=2&continue={token}").code == 200
        api.post(MAPS, config_map(f"x{number}"))
    refused = api.ask("GET", f"{MAPS}?limit=2&continue={token}")
    assert (refused.code, refused.body["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("continue=abc", 400),
        ("continue=eyJ2IjoibWV0YTIiLCJydiI6MSwic3RhcnQiOiIifQ", 400),
        ("limit=many", 400),
        ("resourceVersion=soon", 400),
        ("resourceVersion=99999", 504),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
        ("resourceVersion=1&resourceVersionMatch=Newest", 422),
        ("resourceVersion=1&resourceVersionMatch=Exact", 200),
        ("resourceVersion=1&resourceVersionMatch=NotOlderThan&continue=abc", 422),
        ("sendInitialEvents=true", 422),
        ("timeoutSeconds=soon", 400),
        ("watch=false&timeoutSeconds=5", 200),
        ("resourceVersion=1&resourceVersionMatch=NotOlderThan", 200),
        ("fieldSelector=spec.nodeName=a", 400),
        ("labelSelector=a in b", 400),
    ],
)
def test_list_rejects_invalid_query(api: Api, query: str, code: int) -> None:
    assert api.ask("GET", f"{MAPS}?{query}").code == code


def as_of(api: Api, path: str, revision: str) -> dict[str, Any]:
    result: dict[str, Any] = api.get(f"{path}?resourceVersion={revision}&resourceVersionMatch=Exact")
    return result


def test_list_at_exact_revision_returns_old_state(api: Api) -> None:
    was = api.get(MAPS)
    api.ask("DELETE", f"{MAPS}/m2")
    api.ask("DELETE", f"{MAPS}/m3")
    api.post(MAPS, config_map("m3", colour="blue"))
    api.post(MAPS, config_map("m21"))
    api.post("/api/v1/namespaces/other/configmaps", config_map("m2"))
    assert as_of(api, MAPS, was["metadata"]["resourceVersion"]) == was
    assert names(api.get(MAPS)) == ["m0", "m1", "m21", "m3", "m4"]


def test_list_at_exact_revision_is_sorted_by_key() -> None:
    api = Api()
    for namespace in ("team", "team-a"):
        api.post(f"/api/v1/namespaces/{namespace}/configmaps", config_map("a"))
    was = api.get("/api/v1/configmaps")
    api.ask("DELETE", "/api/v1/namespaces/team/configmaps/a")
    assert places(as_of(api, "/api/v1/configmaps", was["metadata"]["resourceVersion"])) == ["team-a/a", "team/a"]


def test_list_at_revision_before_window_is_expired() -> None:
    api = Api(window=3)
    for number in range(5):
        api.post(MAPS, config_map(f"m{number}"))
    last = int(api.get(MAPS)["metadata"]["resourceVersion"])
    assert names(as_of(api, MAPS, str(last - 3))) == ["m0", "m1"]
    refused = api.ask("GET", f"{MAPS}?resourceVersion={last - 4}&resourceVersionMatch=Exact")
    assert (refused.code, refused.body["reason"]) == (410, "Expired")
    assert refused.body["message"] == "The resourceVersion for the provided list is too old."


def test_list_returns_partial_object_metadata(api: Api) -> None:
    listed = api.get(MAPS, accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert (listed["kind"], listed["items"][0]["kind"]) == ("PartialObjectMetadataList", "PartialObjectMetadata")
    assert "data" not in listed["items"][0]


def test_list_returns_table(api: Api) -> None:
    table = api.get(MAPS, accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["m0", 1]


def test_list_rejects_accept_of_protobuf_only(api: Api) -> None:
    refused = api.ask("GET", MAPS, headers={"accept": "application/vnd.kubernetes.protobuf"})
    assert (refused.code, refused.body["reason"]) == (406, "NotAcceptable")
    both = "application/vnd.kubernetes.protobuf,application/json"
    assert api.ask("GET", MAPS, headers={"accept": both}).code == 200


def test_list_of_all_namespaces_is_sorted_by_key() -> None:
    api = Api()
    for namespace in ("team", "team-a", "other", "team-b"):
        for name in ("a", "a-b"):
            api.post(f"/api/v1/namespaces/{namespace}/configmaps", config_map(name))
    expected = [f"{namespace}/{name}" for namespace in ("other", "team-a", "team-b", "team") for name in ("a", "a-b")]
    assert places(api.get("/api/v1/configmaps")) == expected
    first = api.get("/api/v1/configmaps?limit=5")
    second = api.get(f"/api/v1/configmaps?limit=5&continue={first['metadata']['continue']}")
    assert places(first) + places(second) == expected


def places(found: Any) -> list[str]:
    return [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in found["items"]]


def test_write_returns_requested_representation() -> None:
    api, new = Api(), config_map("new")
    part = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    protobuf = {"accept": "application/vnd.kubernetes.protobuf"}
    assert api.ask("POST", MAPS, new, headers=protobuf).code == 406
    created = api.ask("POST", MAPS, new, headers={"accept": f"application/vnd.kubernetes.protobuf, {part}"}).body
    assert (created["kind"], created["metadata"]["name"], "data" in created) == ("PartialObjectMetadata", "new", False)
    gone = api.ask("DELETE", MAPS, headers={"accept": part.replace("Metadata", "MetadataList")}).body
    assert (gone["kind"], [item["kind"] for item in gone["items"]]) == (
        "PartialObjectMetadataList",
        ["PartialObjectMetadata"],
    )


@pytest.mark.parametrize(
    ("kind", "path"),
    [("PartialObjectMetadata", ""), ("PartialObjectMetadataList", "/m0"), ("PartialObjectMetadataList", "?watch=1")],
)
def test_partial_metadata_kind_must_match_request(api: Api, kind: str, path: str) -> None:
    accept = f"application/json;as={kind};v=v1;g=meta.k8s.io"
    assert api.ask("GET", f"{MAPS}{path}", headers={"accept": accept}).code == 406
