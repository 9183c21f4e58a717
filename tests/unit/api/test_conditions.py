"""Setting conditions as apimachinery does, and finding them."""

from typing import Any

from batchyard.api.meta import MESSAGE_BYTES_MAX, Condition, Obj, StatusDraft, find_condition, is_true, with_condition
from batchyard.base.instant import SECOND


def with_admitted(conditions: list[Condition], **changes: Any) -> list[Condition]:
    fields: dict[str, Any] = {"status": True, "reason": "Admitted", "message": "in", "now": 0}
    return with_condition(conditions, type="Admitted", **{**fields, **changes})


def test_new_condition_is_appended_with_all_fields() -> None:
    first = with_condition([], type="A", status=False, reason="R", message="m", now=0)
    both = with_admitted(first, generation=3)
    assert both[0] is first[0]
    assert both[1] == {
        "type": "Admitted",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
        "reason": "Admitted",
        "message": "in",
    }


def test_transition_time_changes_with_status_only() -> None:
    before = with_admitted([])
    reworded = with_admitted(before, message="still in", now=SECOND)
    assert reworded[0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"
    assert reworded[0]["message"] == "still in"
    turned = with_admitted(reworded, status=False, now=2 * SECOND)
    assert turned[0]["lastTransitionTime"] == "1970-01-01T00:00:02Z"


def test_with_condition_returns_same_list_without_change() -> None:
    before = with_admitted([], generation=1)
    assert with_admitted(before, generation=1, now=9 * SECOND) is before
    assert with_admitted(before, generation=2) is not before


def test_with_condition_keeps_order_and_does_not_modify_input() -> None:
    before = with_condition(with_admitted([]), type="B", status=True, reason="R", message="", now=0)
    after = with_admitted(before, status=False)
    assert [condition["type"] for condition in after] == ["Admitted", "B"]
    assert before[0]["status"] == "True"


def test_long_condition_message_is_truncated() -> None:
    cut = with_admitted([], message="é" * MESSAGE_BYTES_MAX)[0]["message"]
    assert len(cut.encode()) <= MESSAGE_BYTES_MAX
    assert cut.endswith("é ...")
    whole = "a" * MESSAGE_BYTES_MAX
    assert with_admitted([], message=whole)[0]["message"] == whole


def test_condition_lookup_accepts_objects_and_statuses() -> None:
    status = {"conditions": with_admitted([])}
    assert is_true(status, "Admitted")
    assert is_true({"status": status}, "Admitted")
    assert find_condition(status, "Finished") is None


def test_is_true_returns_false_without_conditions() -> None:
    assert not is_true({}, "Admitted")
    assert not is_true({"status": None}, "Admitted")
    assert not is_true({"conditions": with_admitted([], status=False)}, "Admitted")


def test_equal_conditions_of_two_objects_are_one_object() -> None:
    first, second, later = (set_status({"metadata": {"generation": 1}}, now) for now in (0, 0, SECOND))
    assert first is second
    assert later == {**first, "lastTransitionTime": "1970-01-01T00:00:01Z"}


def set_status(obj: Obj, now: int) -> Condition:
    draft = StatusDraft(obj, now)
    draft.set_condition("Admitted", True, "Admitted", "in")
    condition: Condition = draft.result()["status"]["conditions"][0]
    return condition
