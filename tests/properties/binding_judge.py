"""Judges what `why` answers about worlds whose binding limit is known: the limit, and each proposed change."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, key_of
from batchyard.sim.world import World
from properties.binding_worlds import NAMESPACE, SUBJECT, BindingWorld
from properties.proposed_changes import admits, one_less, world_at_query


class Judgement(NamedTuple):
    """The errors in an answer, and the number of proposed changes that admit and are minimal."""

    wrong_limit: str
    broken_changes: list[str]
    proven_count: int
    answer: dict[str, Any]


def judge(made: BindingWorld) -> Judgement:
    """Ask why the Workload of a world waits, and try each change that is proposed."""
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
    return Judgement(_wrong_limit(made, answer, key), broken, proven_count, answer)


def _wrong_limit(made: BindingWorld, answer: dict[str, Any], workload: Key) -> str:
    binding, expected = answer.get("binding") or {}, made.expected
    where = binding.get("where") or {}
    answered = ExpectedLimitAnswer(
        binding.get("limit", ""),
        f"{where.get('kind')} {where.get('name')}".replace(f"Workload {workload.name}", f"Workload {SUBJECT}"),
        binding.get("flavor"),
        binding.get("resource"),
    )
    is_right = (
        answered.limit in expected.limits
        and answered.place in expected.places
        and expected.flavor in {"", answered.flavor}
        and expected.resource in {"", answered.resource}
    )
    return "" if is_right else f"{answered} instead of {expected}"


class ExpectedLimitAnswer(NamedTuple):
    """The limit in an answer."""

    limit: str
    place: str
    flavor: str | None
    resource: str | None


def _asked(world: World) -> Key:
    """Return the key of the asked job, or of the Workload that has none."""
    kinds = (scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD)
    keys = (Key(kind, NAMESPACE, SUBJECT) for kind in kinds)
    return next(key for key in keys if world.client.get(key) is not None)


def _workload(world: World) -> Key:
    return next(key for key in _workload_keys(world) if f"-{SUBJECT}-" in f"-{key.name}-")


def _workload_keys(world: World) -> Iterator[Key]:
    return map(key_of, world.objects(scheme.WORKLOAD, NAMESPACE))
