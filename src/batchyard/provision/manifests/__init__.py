"""Manifests of a platform: all objects by file, each with the platform field it comes from, and their validation.

`platform_objects` returns the objects in the order in which they are applied, except those of the engine and of metrics
collection.
"""

from collections.abc import Iterator, Mapping, Sequence

from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.provision.manifests.queues import (
    admission_check_objects,
    cohort_objects,
    flavor_objects,
    priority_objects,
    queue_objects,
    shared_rbac_objects,
    team_objects,
)
from batchyard.provision.manifests.stack import stack_objects
from batchyard.provision.model import PlatformModel
from batchyard.provision.yaml_output import RenderedObject

__all__ = ["RenderedObject", "faults", "platform_objects"]


def platform_objects(platform: PlatformModel) -> Mapping[str, Sequence[RenderedObject]]:
    """Return the platform's objects by file name such as `20-teams/team-a`; the engine's objects are not included."""
    objects_by_file = {
        "10-priorities": priority_objects(platform),
        "15-readers": shared_rbac_objects(platform),
        **{f"20-teams/{team.name}": team_objects(team, platform) for team in platform.teams},
        "30-flavors": flavor_objects(platform),
        "40-admission-checks": admission_check_objects(platform),
        "50-cohorts": cohort_objects(platform),
        "60-queues": queue_objects(platform),
        "80-monitoring-stack": stack_objects(platform),
    }
    return {name: objects for name, objects in objects_by_file.items() if objects}


def faults(platform: PlatformModel) -> Iterator[tuple[RenderedObject, FieldError]]:
    """Yield each rendered object that the validation of its kind rejects, with the error; one pair for each error."""
    for objects in platform_objects(platform).values():
        for each in objects:
            for fault in decode(each.obj).faults:
                yield each, fault
