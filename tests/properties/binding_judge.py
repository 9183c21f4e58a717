"""Checks the answers of `why` about worlds whose binding limit is known: the limit, and each proposed change.

If the Workload only has to wait, no change can admit it. Then the time in the answer is checked: the Workload must be
admitted at that time, and not before.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, key_of
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import EPOCH, World
from properties.binding_worlds import NAMESPACE, SUBJECT, BindingWorld
from properties.proposed_changes import admits, first_time_of, one_less, world_at_query

#: The maximum delay of the platform after a stated time: the autoscaler runs every ten seconds.
_LATEST_AFTER = 11 * SECOND


class AnswerJudgment(NamedTuple):
    """The errors in an answer, and the number of its proven parts: minimal changes that admit, and correct times."""

    wrong_limit: str
    broken_changes: list[str]
    proven_count: int
    answer: dict[str, Any]


def judge(made: BindingWorld) -> AnswerJudgment:
    """Ask why the Workload of a world waits, and try each proposed change."""
    scenario = made.scenario()
    world = world_at_query(scenario)
    answer = world.platform.explainer.why(_asked(world), world.kernel.now())
    assert answer is not None
    broken, proven_count = list[str](), 0
    key = _workload(world)
    for change in answer.get("changes", ()):
        if not change["apply"]:
            continue
        if not admits(scenario, key, change["apply"], made.event):
            broken.append(f"does not admit: {change['text']}")
        elif any(admits(scenario, key, less, made.event) for less in one_less(change, world)):
            broken.append(f"is not minimal: {change['text']}")
        else:
            proven_count += 1
    if made.ends_by_itself:
        proven_count += _states_right_time(scenario, key, answer, made.event)
    return AnswerJudgment(_wrong_limit(made, answer, key), broken, proven_count, answer)


def _states_right_time(scenario: Scenario, key: Key, answer: dict[str, Any], event: str) -> bool:
    """Return whether the event happens without a change at the time that the answer states, and not before."""
    text = answer["binding"].get("until")
    if not text:
        return False
    stated = parse_time(text) - EPOCH
    happened = first_time_of(scenario, key, event, stated + _LATEST_AFTER)
    return happened is not None and stated <= happened


def _wrong_limit(made: BindingWorld, answer: dict[str, Any], workload: Key) -> str:
    binding, expected = answer.get("binding") or {}, made.expected
    where = binding.get("where") or {}
    answered = AnsweredLimit(
        binding.get("limit", ""),
        f"{where.get('kind')} {where.get('name')}".replace(f"Workload {workload.name}", f"Workload {SUBJECT}"),
        binding.get("flavor"),
        binding.get("resource"),
    )
    is_right = (
        answered.limit in expected.limits
        and any(answered.place == place or answered.place.rpartition("-")[0] == place for place in expected.places)
        and expected.flavor in {"", answered.flavor}
        and expected.resource in {"", answered.resource}
    )
    return "" if is_right else f"{answered} instead of {expected}"


class AnsweredLimit(NamedTuple):
    """The binding limit that an answer states."""

    limit: str
    place: str
    flavor: str | None
    resource: str | None


def _asked(world: World) -> Key:
    """Return the key of the job in question, or of the Workload if it has no job."""
    kinds = (scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD)
    keys = (Key(kind, NAMESPACE, SUBJECT) for kind in kinds)
    return next(key for key in keys if world.client.get(key) is not None)


def _workload(world: World) -> Key:
    return next(key for key in _workload_keys(world) if f"-{SUBJECT}-" in f"-{key.name}-")


def _workload_keys(world: World) -> Iterator[Key]:
    return map(key_of, world.objects(scheme.WORKLOAD, NAMESPACE))
