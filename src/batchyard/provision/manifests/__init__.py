"""The objects that a platform comes to on a cluster, each with the field of the platform that says so.

made(platform)     all but the engine, by the file they are in, in the order in which they are applied
faults(platform)   what is wrong with them by the rules of their kinds
"""

from collections.abc import Iterator, Mapping, Sequence

from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.provision.manifests.queues import checks, cohorts, flavors, priorities, queues
from batchyard.provision.manifests.rendered import Made
from batchyard.provision.manifests.stack import stack_objects
from batchyard.provision.manifests.teams import shared_rights, team_objects
from batchyard.provision.model import Platform

__all__ = ["Made", "faults", "made"]


def made(platform: Platform) -> Mapping[str, Sequence[Made]]:
    """The objects by the name of their file, such as `20-teams/team-a`; files without any are left out."""
    found = {
        "10-priorities": priorities(platform),
        "15-readers": shared_rights(platform),
        **{f"20-teams/{team.name}": team_objects(team, platform) for team in platform.teams},
        "30-flavors": flavors(platform),
        "40-admission-checks": checks(platform),
        "50-cohorts": cohorts(platform),
        "60-queues": queues(platform),
        "80-monitoring-stack": stack_objects(platform),
    }
    return {name: objects for name, objects in found.items() if objects}


def faults(platform: Platform) -> Iterator[tuple[Made, FieldError]]:
    """What the rules of the objects' kinds say against them, by the objects' own paths."""
    for objects in made(platform).values():
        for each in objects:
            for fault in decode(each.obj).faults:
                yield each, fault
