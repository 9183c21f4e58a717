"""Sorted lists of objects, updated after each change of an object."""

from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.meta import Key, Obj
from batchyard.store.memory import KindListing


def key(namespace: str, name: str) -> Key:
    return Key("Pod", namespace, name)


def put(listing: KindListing, at: Key, obj: Obj | None) -> None:
    if obj is None:
        listing.objects.pop(at, None)
    else:
        listing.objects[at] = obj
    if listing.is_listed:
        listing.mark_changed(at)


def test_list_is_sorted_by_namespace_and_name() -> None:
    listing = KindListing()
    for namespace, name in (("b", "a"), ("a", "z"), ("a", "b"), ("", "c")):
        put(listing, key(namespace, name), {"at": f"{namespace}/{name}"})
    assert [obj["at"] for obj in listing.list_sorted()] == ["/c", "a/b", "a/z", "b/a"]


def test_list_of_namespace_has_no_objects_of_other_namespaces() -> None:
    listing = KindListing()
    for namespace in ("a", "a-b", "a.b", "ab", "b"):
        put(listing, key(namespace, "x"), {"at": namespace})
    assert [obj["at"] for obj in listing.list_sorted("a")] == ["a"]
    assert listing.list_sorted("0") == []
    assert listing.list_sorted("c") == []


def test_returned_list_does_not_change() -> None:
    listing = KindListing()
    put(listing, key("a", "x"), {"v": 1})
    handed_out = listing.list_sorted()
    put(listing, key("a", "x"), {"v": 2})
    put(listing, key("a", "y"), {"v": 3})
    assert listing.list_sorted() == [{"v": 2}, {"v": 3}]
    assert handed_out == [{"v": 1}]


def test_unchanged_list_is_reused() -> None:
    listing = KindListing()
    put(listing, key("a", "x"), {})
    assert listing.list_sorted() is listing.list_sorted()


def test_many_changes_sort_list_again() -> None:
    listing = KindListing()
    put(listing, key("a", "x"), {})
    listing.list_sorted()
    for number in range(100):
        put(listing, key("a", f"{number}"), {"n": number})
    assert not listing.is_listed
    assert len(listing.list_sorted()) == 101
    listing.validate()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans(), st.booleans()), max_size=200))
def test_updated_list_equals_sorted_list(changes: list[tuple[str, int, bool, bool]]) -> None:
    listing = KindListing()
    for number, (namespace, name, is_there, is_listed) in enumerate(changes):
        put(listing, key(namespace, f"{name}"), {"n": number} if is_there else None)
        if is_listed:
            listing.validate()
    listing.validate()
