"""Conditions as apimachinery sets them, and what finds them."""

from typing import Any

from batchyard.api.meta import MESSAGE_BYTES_MAX, Condition, find_condition, is_true, with_condition
from batchyard.base.instant import SECOND


def admitted(conditions: list[Condition], **changes: Any) -> list[Condition]:
    fields: dict[str, Any] = {"status": True, "reason": "Admitted", "message": "in", "now": 0}
    return with_condition(conditions, type="Admitted", **{**fields, **changes})


def test_a_new_condition_goes_to_the_end_with_all_its_fields() -> None:
    first = with_condition([], type="A", status=False, reason="R", message="m", now=0)
    both = admitted(first, generation=3)
    assert both[0] is first[0]
    assert both[1] == {
        "type": "Admitted",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
        "reason": "Admitted",
        "message": "in",
    }


def test_the_transition_time_changes_only_with_the_status() -> None:
    before = admitted([])
    reworded = admitted(before, message="still in", now=SECOND)
    assert reworded[0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"
    assert reworded[0]["message"] == "still in"
    turned = admitted(reworded, status=False, now=2 * SECOND)
    assert turned[0]["lastTransitionTime"] == "1970-01-01T00:00:02Z"


def test_nothing_new_gives_the_same_list() -> None:
    before = admitted([], generation=1)
    assert admitted(before, generation=1, now=9 * SECOND) is before
    assert admitted(before, generation=2) is not before


def test_a_condition_keeps_its_place_and_the_old_list_its_contents() -> None:
    before = with_condition(admitted([]), type="B", status=True, reason="R", message="", now=0)
    after = admitted(before, status=False)
    assert [condition["type"] for condition in after] == ["Admitted", "B"]
    assert before[0]["status"] == "True"


def test_a_long_message_is_cut_to_what_a_condition_holds() -> None:
    cut = admitted([], message="é" * MESSAGE_BYTES_MAX)[0]["message"]
    assert len(cut.encode()) <= MESSAGE_BYTES_MAX
    assert cut.endswith("é ...")
    whole = "a" * MESSAGE_BYTES_MAX
    assert admitted([], message=whole)[0]["message"] == whole


def test_conditions_are_found_in_objects_and_in_statuses() -> None:
    status = {"conditions": admitted([])}
    assert is_true(status, "Admitted")
    assert is_true({"status": status}, "Admitted")
    assert find_condition(status, "Finished") is None


def test_what_has_no_conditions_has_none_that_is_true() -> None:
    assert not is_true({}, "Admitted")
    assert not is_true({"status": None}, "Admitted")
    assert not is_true({"conditions": admitted([], status=False)}, "Admitted")
