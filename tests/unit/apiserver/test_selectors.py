"""Label selectors and field selectors of lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.meta import Requirement
from batchyard.apiserver.selection import LabelTerms
from unit.apiserver.api import Api

MAPS = "/api/v1/namespaces/team/configmaps"


@pytest.fixture(scope="module")
def api() -> Api:
    """A server with four ConfigMaps, three of them with numbers as labels."""
    created = Api()
    for number in (1, 5, 30):
        created.post(MAPS, {"metadata": {"name": f"n{number}", "labels": {"size": str(number), "is": ""}}})
    created.post(MAPS, {"metadata": {"name": "plain"}})
    return created


def selected_names(api: Api, query: str) -> str:
    items = api.get(f"{MAPS}?{query}")["items"]
    return " ".join(each["metadata"]["name"] for each in items if not each["metadata"]["name"].startswith("kube"))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("size>4", "n30 n5"),
        ("size < 5", "n1"),
        ("size>4,size<30", "n5"),
        ("size in (1,5)", "n1 n5"),
        ("size in (1, in)", "n1"),
        ("is in ()", "n1 n30 n5"),
        ("is in (,x)", "n1 n30 n5"),
        ("size notin (1),is", "n30 n5"),
        ("!size", "plain"),
        (" size == 1 ", "n1"),
        ("is=", "n1 n30 n5"),
        ("is=,size!=1", "n30 n5"),
        ("size,size=5", "n5"),
        ("in", ""),
    ],
)
def test_label_selector_filters_list(api: Api, selector: str, names: str) -> None:
    assert selected_names(api, f"labelSelector={selector}") == names


WORDS = st.sampled_from(["a", "b", "1", "2"])


@given(
    st.lists(
        st.builds(
            Requirement,
            WORDS,
            st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
            st.lists(WORDS, min_size=1, max_size=3).map(tuple),
        ),
        max_size=4,
    ),
    st.dictionaries(WORDS, WORDS),
)
def test_label_terms_match_like_single_requirements(requirements: list[Requirement], labels: dict[str, str]) -> None:
    one_by_one = all(each.matches(labels) for each in requirements)
    assert LabelTerms(requirements).matches(labels) is one_by_one


@pytest.mark.parametrize(
    ("selector", "reported"),
    [
        ("size>x", "the value must be an integer"),
        ("size>=1", "found '=', expected: identifier"),
        ("size<", "the value must be an integer"),
        ("size=1,", "found '', expected: identifier after ','"),
        (",", "found ',', expected: identifier"),
        ("a b", "found 'b', expected: in, notin"),
        ("size=a b", "found 'b', expected: ',' or 'end of string'"),
        ("size in 1", "found '1' expected: '('"),
        ("size in (1", "found '', expected: ',', ')' or identifier"),
        ("size in (1 5)", "found '5', expected: ',' or ')'"),
        ("!size=1", "found '=', expected: ',' or 'end of string'"),
        ("!", "found '', expected: identifier"),
        ("x/y/z=1", 'Invalid value: "x/y/z"'),
        ("-a", 'Invalid value: "-a"'),
        ("size=-a", 'Invalid value: "-a"'),
        ("size in (" + "a" * 64 + ")", "must be no more than 63"),
    ],
)
def test_invalid_label_selector_is_rejected(api: Api, selector: str, reported: str) -> None:
    answer = api.ask("GET", f"{MAPS}?labelSelector={selector}")
    assert (answer.code, reported in answer.body["message"]) == (400, True), answer.body["message"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=n1,", "n1"),
        ("metadata.name=a\\,b", ""),
        (",", "n1 n30 n5 plain"),
        ("metadata.name!=n1,metadata.name!=n5", "n30 plain"),
    ],
)
def test_field_selector_filters_list(api: Api, selector: str, names: str) -> None:
    assert selected_names(api, f"fieldSelector={selector}") == names


@pytest.mark.parametrize("selector", ["metadata.name", "=n1", "metadata.name=a=b", "metadata.name=a\\", "a=b"])
def test_invalid_field_selector_is_rejected(api: Api, selector: str) -> None:
    assert api.ask("GET", f"{MAPS}?fieldSelector={selector}").code == 400


@pytest.mark.parametrize(
    ("plural", "selector", "names"),
    [
        ("services", "spec.clusterIP!=None,spec.type=ClusterIP", "plain"),
        ("services", "spec.clusterIP=None", "headless"),
        ("replicationcontrollers", "status.replicas=0", "kept"),
        ("replicationcontrollers", "status.replicas!=0", ""),
    ],
)
def test_field_selector_supports_fields_of_kind(plural: str, selector: str, names: str) -> None:
    created, ports = Api(), [{"port": 80}]
    place = "/api/v1/namespaces/team"
    created.post(f"{place}/services", {"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": ports}})
    created.post(f"{place}/services", {"metadata": {"name": "plain"}, "spec": {"ports": ports}})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"a": "b"}, "template": template}
    created.post(f"{place}/replicationcontrollers", {"metadata": {"name": "kept"}, "spec": spec})
    items = created.get(f"{place}/{plural}?fieldSelector={selector}")["items"]
    assert " ".join(each["metadata"]["name"] for each in items) == names
