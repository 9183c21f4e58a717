"""Texts of a million letters are rejected quickly, with the messages of Kubernetes."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from batchyard.api import meta
from batchyard.api.times import parse_time
from batchyard.api.validation import rules
from batchyard.api.validation.rules import parse_nano_amount
from batchyard.api.yaml_documents import scalar_value
from batchyard.apiserver.selection import parse_label_selector
from batchyard.base.instant import SECOND, parse_duration
from batchyard.base.primitives import memoized_if_short
from unit.apiserver.api import Api

MILLION = 1_000_000
DIGITS = "1" * MILLION
NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def job(cpu: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize("cpu", [DIGITS + "x", DIGITS, "." * MILLION, "1" + "e" * MILLION, "1e" + DIGITS])
def test_long_quantity_is_rejected_in_kubernetes_words(cpu: str) -> None:
    began = time.process_time()
    answer = Api().ask("POST", "/apis/batch/v1/namespaces/default/jobs?dryRun=All", job(cpu))
    assert answer.code == 400
    assert NO_QUANTITY in answer.body["message"]
    assert time.process_time() - began < 5


@pytest.mark.parametrize("length", [19, 100, 350])
def test_quantities_of_practical_lengths_are_read(length: int) -> None:
    assert meta.parse_quantity("0" * length + "5") == 5 * meta.NANO
    assert meta.parse_quantity("1." + "0" * length) == meta.NANO
    assert meta.parse_quantity("9" * length) == min(int("9" * length), meta.INT64_MAX) * meta.NANO


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda: meta.parse_quantity(DIGITS + "x"), id="quantity"),
        pytest.param(lambda: parse_duration(DIGITS + "x"), id="duration"),
        pytest.param(lambda: parse_time("2026-01-01T00:00:00." + DIGITS), id="time"),
        pytest.param(lambda: scalar_value(DIGITS, None, is_plain=True), id="number in YAML"),
        pytest.param(lambda: scalar_value("0x" + DIGITS, None, is_plain=True), id="hexadecimal number in YAML"),
    ],
)
def test_long_text_is_rejected_quickly(read: Callable[[], Any]) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="a"):
        read()
    assert time.process_time() - began < 0.5


def test_other_long_texts_are_processed_quickly() -> None:
    began = time.process_time()
    assert parse_nano_amount(DIGITS + "x") is None
    assert rules.dns_subdomain_errors("a." * MILLION)
    assert rules.label_value_errors("-" * MILLION)
    assert parse_label_selector("a" + " " * MILLION)[0].key == "a"
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1500000ns", 1500), ("1\u00b5s", 1), ("1\u03bcs", 1), ("1.5h", 5400 * SECOND), ("999ns", 0), ("600ns600ns", 1)],
)
def test_durations_accept_units_of_go(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


def test_results_of_long_texts_are_not_cached() -> None:
    request: list[str] = []

    @memoized_if_short(maxsize=8, length_max=3)
    def length(text: str) -> int:
        request.append(text)
        return len(text)

    assert [length(text) for text in ("abc", "abc", "abcd", "abcd")] == [3, 3, 4, 4]
    assert request == ["abc", "abcd", "abcd"]
