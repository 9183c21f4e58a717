"""Descriptions of kinds and fields."""

import pkgutil

import msgspec

from batchyard.api import scheme
from batchyard.api.schema import tables
from batchyard.api.schema.tables import description, scope_for

#: Kinds of which nothing is stored.
ASKED = (
    *("APIService", "Binding", "ComponentStatus", "LocalSubjectAccessReview", "NodeMetrics", "PodMetrics"),
    *("PendingWorkloadsSummary", "SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview"),
    *("SubjectAccessReview", "TokenReview"),
)


def test_every_kind_is_described() -> None:
    assert [
        info.kind for info in scheme.KINDS if not description(info.kind) and info.constant not in scheme.FILES
    ] == []


def test_every_description_is_of_something_there_is() -> None:
    scopes = {scope_for(info, version).name for info in scheme.KINDS for version in info.versions}
    found = {name: tables.table(name) for name in sorted(scopes | {"core", "native"})}
    known = {
        place for table in found.values() for name in table for place in (name, *(f"{name}.{f}" for f in table[name]))
    }
    known |= dict.fromkeys(ASKED).keys()
    named = {f"*.{place.rpartition('.')[2]}" for place in known}
    texts = msgspec.json.decode(pkgutil.get_data("batchyard.api.schema", "descriptions.json") or b"")
    assert [place for place in texts if place not in known | named] == []


def test_a_field_without_a_description_has_that_of_its_name() -> None:
    assert description("Job", "metadata") == description("Pod", "metadata") != ""
    assert description("Job", "spec") != description("Pod", "spec")
    assert description("Nothing", "at-all") == ""


def test_descriptions_are_short_sentences() -> None:
    texts = msgspec.json.decode(pkgutil.get_data("batchyard.api.schema", "descriptions.json") or b"")
    assert [place for place, text in texts.items() if not text.endswith(".") or len(text) > 150] == []
