"""Errors with their path and remedy."""

import pytest

from batchyard.api.errors import ApiError, Conflict, FieldError, Forbidden, InvalidObject, NotFound


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FieldError("spec.count", "is below 0", "write 0 or more"), "spec.count: is below 0; write 0 or more"),
        (FieldError("spec.count", "is below 0"), "spec.count: is below 0"),
        (FieldError("", "is no object", "write a mapping"), "is no object; write a mapping"),
        (FieldError("", "is no YAML", "indent it", line=7), "line 7: is no YAML; indent it"),
        (FieldError("spec", "is set twice", "remove one", line=7), "spec: is set twice (line 7); remove one"),
    ],
)
def test_field_error_text_contains_path_problem_and_remedy(error: FieldError, text: str) -> None:
    assert str(error) == text


def test_invalid_object_error_lists_all_faults() -> None:
    faults = [FieldError("a", "one"), FieldError("b", "two", "three")]
    error = InvalidObject(faults)
    assert (str(error), error.faults) == ("a: one; b: two; three", tuple(faults))


def test_error_reasons_equal_kubernetes_reasons() -> None:
    reasons = [error.reason for error in (ApiError, InvalidObject, Conflict, NotFound, Forbidden)]
    assert reasons == ["InternalError", "Invalid", "Conflict", "NotFound", "Forbidden"]
