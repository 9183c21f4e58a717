"""Backoffs of node groups: their duration and their storage."""

from typing import Any

import make
from batchyard.autoscaler.expander import (
    Backoff,
    ScaleUpFailure,
    backoff_after_failure,
    backoff_key,
    parse_backoffs,
    serialize_backoffs,
)
from batchyard.base.instant import HOUR, MINUTE
from unit.autoscaler.scaling_make_core import A, groups, pool

STOCKOUT = ScaleUpFailure("ZONE_RESOURCE_POOL_EXHAUSTED", "none left")


def test_backoff_doubles_up_to_half_hour() -> None:
    known, now, minutes = None, make.NOW, []
    for _ in range(5):
        known = backoff_after_failure(known, STOCKOUT, now)
        minutes.append((known.end - now) // MINUTE)
        now = known.end
    assert minutes == [5, 10, 20, 30, 30]


def test_failures_during_backoff_do_not_extend_it() -> None:
    known = backoff_after_failure(None, STOCKOUT, make.NOW)
    assert backoff_after_failure(known, STOCKOUT, make.at(299)) is known


def test_backoff_resets_after_three_hours() -> None:
    known = backoff_after_failure(backoff_after_failure(None, STOCKOUT, make.NOW), STOCKOUT, make.at(300))
    assert known.duration == 10 * MINUTE
    assert backoff_after_failure(known, STOCKOUT, make.at(300) + 3 * HOUR).duration == 5 * MINUTE


def test_backoff_of_future_reservation_ends_half_hour_before_start() -> None:
    known = backoff_after_failure(None, ScaleUpFailure("RESERVATION_NOT_READY", "", make.at(7200)), make.NOW)
    assert known.end == make.at(5400)


def test_backoffs_round_trip() -> None:
    known = {"pool/zone": backoff_after_failure(None, STOCKOUT, make.NOW)}
    assert parse_backoffs(serialize_backoffs(known, make.NOW)) == known


def test_expired_backoffs_are_not_written() -> None:
    known = {"pool/zone": backoff_after_failure(None, STOCKOUT, make.NOW)}
    assert serialize_backoffs(known, make.NOW + 3 * HOUR) == "{}"


def test_read_backoffs_returns_nothing_for_invalid_text() -> None:
    assert parse_backoffs("") == parse_backoffs("[1]") == parse_backoffs('{"a": {"until": 3}}') == {}


def test_backoff_key_of_auto_provisioned_pool_names_its_machine() -> None:
    created: dict[str, Any] = {
        "machine": "a2-highgpu-1g",
        "provisioning": "spot",
        "autoProvisioned": True,
        "zones": [A],
    }
    one, other = (groups(pool(name, **created))[0] for name in ("one", "other"))
    assert backoff_key(one) == backoff_key(other) == f"a2-highgpu-1g+1xnvidia-tesla-a100/spot/{A}"
    assert backoff_key(groups(pool(zones=[A]))[0]) == f"pool/{A}"


def test_backoff_is_lasting_for_permanent_errors() -> None:
    assert Backoff(0, 0, 0, "INVALID_GPU_TYPE").needs_configuration_change
    assert not Backoff(0, 0, 0, "QUOTA_EXCEEDED").needs_configuration_change
