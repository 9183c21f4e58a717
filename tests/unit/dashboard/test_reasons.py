"""Pending reasons in few words keep the scarce resource and the missing amount."""

import pytest

from batchyard.dashboard.models.reasons import shorten_reason
from batchyard.scheduling.messages import (
    ExceedsMaxCapacity,
    InsufficientQuota,
    PodSetReasons,
    PreemptionReason,
    format_pod_set_reasons,
    preemption_message,
)

GPU = "nvidia.com/gpu"


def message(*rejections: InsufficientQuota | ExceedsMaxCapacity) -> str:
    return format_pod_set_reasons((PodSetReasons("main", rejections),))


@pytest.mark.parametrize(
    ("text", "short", "scarce"),
    [
        (message(InsufficientQuota(GPU, "spot", 8)), "8 more needed in spot", GPU),
        (
            message(InsufficientQuota("cpu", "spot", 4000), InsufficientQuota(GPU, "spot", 8)),
            "8 more needed in spot",
            GPU,
        ),
        (
            message(InsufficientQuota(GPU, "a", 8), InsufficientQuota(GPU, "b", 2)),
            "8 more needed in a or 2 more needed in b",
            GPU,
        ),
        (message(ExceedsMaxCapacity(GPU, "spot", 0, 16, 8)), "requests 16, at most 8 in spot", GPU),
        (
            message(InsufficientQuota("cpu", "a", 1000)) + ". Pending the preemption of 3 workload(s)",
            "1 more needed in a; preempts 3",
            "cpu",
        ),
        (
            preemption_message("u", "j", PreemptionReason.IN_CLUSTER_QUEUE, "/a", "/b"),
            "preempted due to prioritization in the ClusterQueue",
            "",
        ),
        ("ClusterQueue q is stopped", "ClusterQueue q is stopped", ""),
        ("couldn't assign flavors to pod set main: no flavor fits", "no flavor fits", ""),
        ("", "", ""),
    ],
)
def test_reason_is_shortened(text: str, short: str, scarce: str) -> None:
    assert shorten_reason(text) == (short, scarce)


def test_unknown_reason_is_cut() -> None:
    assert len(shorten_reason("x" * 1000).text) == 120


def test_missing_amount_is_that_of_now() -> None:
    text = message(InsufficientQuota("cpu", "a", 1000), InsufficientQuota("cpu", "b", 2500))
    quantities = {"a": "6500m", "b": None}
    reason = shorten_reason(text, lambda _, flavor: quantities[flavor])
    assert str(reason) == "cpu: 6.5 more needed in a or 2.5 more needed in b"
    assert str(shorten_reason(text, lambda *_: "")) == "enough quota is free; waits for its turn"
