"""Descriptions of kinds and fields."""

import pkgutil

import msgspec

from batchyard.api import scheme
from batchyard.api.scheme import description, load_scope_for_kind

#: Kinds without stored objects.
UNSTORED = (
    *("APIService", "Binding", "ComponentStatus", "LocalSubjectAccessReview", "NodeMetrics", "PodMetrics"),
    *("PendingWorkloadsSummary", "SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview"),
    *("SubjectAccessReview", "TokenReview"),
)


def test_every_kind_has_description() -> None:
    assert [
        info.kind for info in scheme.KINDS if not description(info.kind) and info.constant not in scheme.FILE_KINDS
    ] == []


def test_every_description_refers_to_known_kind_or_field() -> None:
    scopes = {load_scope_for_kind(info, version).name for info in scheme.KINDS for version in info.versions}
    result = {name: scheme.field_table(name) for name in sorted(scopes | {"core", "native"})}
    known = {
        place for table in result.values() for name in table for place in (name, *(f"{name}.{f}" for f in table[name]))
    }
    known |= dict.fromkeys(UNSTORED).keys()
    named = {f"*.{place.rpartition('.')[2]}" for place in known}
    texts = msgspec.json.decode(pkgutil.get_data("batchyard.api.schema", "descriptions.json") or b"")
    assert [place for place in texts if place not in known | named] == []


def test_field_without_description_uses_description_of_its_name() -> None:
    assert description("Job", "metadata") == description("Pod", "metadata") != ""
    assert description("Job", "spec") != description("Pod", "spec")
    assert description("Nothing", "at-all") == ""


def test_descriptions_end_with_period_and_have_at_most_150_characters() -> None:
    texts = msgspec.json.decode(pkgutil.get_data("batchyard.api.schema", "descriptions.json") or b"")
    assert [place for place, text in texts.items() if not text.endswith(".") or len(text) > 150] == []
