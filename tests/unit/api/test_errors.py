"""What can be wrong, with the place and the remedy."""

import pytest

from batchyard.api.errors import ApiError, Conflict, FieldError, Forbidden, InvalidObject, NotFound


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FieldError("spec.count", "is below 0", "write 0 or more"), "spec.count: is below 0; write 0 or more"),
        (FieldError("spec.count", "is below 0"), "spec.count: is below 0"),
        (FieldError("", "is no object", "write a mapping"), "is no object; write a mapping"),
    ],
)
def test_a_fault_says_place_problem_and_remedy(error: FieldError, text: str) -> None:
    assert str(error) == text


def test_all_faults_of_an_object_are_told_at_once() -> None:
    faults = [FieldError("a", "one"), FieldError("b", "two", "three")]
    error = InvalidObject(faults)
    assert (str(error), error.faults) == ("a: one; b: two; three", tuple(faults))


def test_reasons_are_those_of_kubernetes() -> None:
    reasons = [error.reason for error in (ApiError, InvalidObject, Conflict, NotFound, Forbidden)]
    assert reasons == ["InternalError", "Invalid", "Conflict", "NotFound", "Forbidden"]
