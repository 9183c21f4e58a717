"""All files that a platform comes to, by path: Terraform, manifests, and the cluster file of the embedded platform.

terraform/, build/          what is made on Google Cloud, and Cloud Build's files for it
manifests/00-engine/        what decides: applied first, and waited for
manifests/                  everything else, in the order of the kustomization
cluster.yaml                for `batchyard up --cluster` and `batchyard simulate --cluster`
configuration.yaml          for `batchyard up --config`, where something is said that objects do not say
"""

from collections.abc import Mapping
from typing import Final

from batchyard.plan import engine, monitoring
from batchyard.plan.drivers import driver_resources
from batchyard.plan.kueue_configuration import own_configuration
from batchyard.plan.manifests import made
from batchyard.plan.manifests.stack import access_objects
from batchyard.plan.model import Platform
from batchyard.plan.terraform import files as terraform
from batchyard.plan.texts import yaml_text

MANIFESTS: Final = "manifests"
ENGINE: Final = f"{MANIFESTS}/00-engine"
MONITORING: Final = "70-monitoring"
CLUSTER: Final = "cluster.yaml"
CONFIGURATION: Final = "configuration.yaml"


def render(platform: Platform) -> Mapping[str, str]:
    """The text of every file by its path, in order."""
    found = {f"{ENGINE}/{name}": text for name, text in engine.files(platform, access_objects(platform)).items()}
    found |= {f"{MANIFESTS}/{name}": text for name, text in _manifests(platform).items()}
    found |= terraform.files(platform)
    if platform.cluster is not None:
        found[CLUSTER] = yaml_text([platform.cluster])
    said = own_configuration(platform)
    if said is not None:
        found[CONFIGURATION] = yaml_text([said])
    return dict(sorted(found.items()))


def _manifests(platform: Platform) -> Mapping[str, str]:
    found = {f"{name}.yaml": yaml_text(each.obj for each in objects) for name, objects in made(platform).items()}
    resources = list(found)
    watched = monitoring.files(platform)
    if watched:
        found |= {f"{MONITORING}/{name}": text for name, text in watched.items()}
        resources.append(MONITORING)
    resources += driver_resources(platform)
    return {"kustomization.yaml": yaml_text([engine.kustomization(resources)]), **found}
