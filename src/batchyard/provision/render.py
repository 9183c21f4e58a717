"""Renders a platform to files: Terraform, manifests, and the cluster file of the embedded platform.

terraform/, build/          Google Cloud resources, and Cloud Build files for them manifests/00-engine/        the
engine: applied first, and waited for manifests/                  everything else, in the order of the kustomization
cluster.yaml                for `batchyard up --cluster` and `batchyard simulate --cluster` configuration.yaml for
`batchyard up --config`, with settings that no object has
"""

from collections.abc import Mapping
from typing import Final

from batchyard.provision import engine, monitoring
from batchyard.provision.drivers import driver_resources
from batchyard.provision.kueue_configuration import own_configuration
from batchyard.provision.manifests import made
from batchyard.provision.manifests.stack import access_objects
from batchyard.provision.model import PlatformModel
from batchyard.provision.terraform import files as terraform
from batchyard.provision.yaml_output import yaml_text

MANIFESTS: Final = "manifests"
ENGINE: Final = f"{MANIFESTS}/00-engine"
MONITORING: Final = "70-monitoring"
CLUSTER: Final = "cluster.yaml"
CONFIGURATION: Final = "configuration.yaml"


def render(platform: PlatformModel) -> Mapping[str, str]:
    """Return the text of every file by path, sorted."""
    found = {f"{ENGINE}/{name}": text for name, text in engine.files(platform, access_objects(platform)).items()}
    found |= {f"{MANIFESTS}/{name}": text for name, text in _manifests(platform).items()}
    found |= terraform.files(platform)
    if platform.cluster is not None:
        found[CLUSTER] = yaml_text([platform.cluster])
    kueue_settings = own_configuration(platform)
    if kueue_settings is not None:
        found[CONFIGURATION] = yaml_text([kueue_settings])
    return dict(sorted(found.items()))


def _manifests(platform: PlatformModel) -> Mapping[str, str]:
    found = {f"{name}.yaml": yaml_text(each.obj for each in objects) for name, objects in made(platform).items()}
    resources = list(found)
    watched = monitoring.files(platform)
    if watched:
        found |= {f"{MONITORING}/{name}": text for name, text in watched.items()}
        resources.append(MONITORING)
    resources += driver_resources(platform)
    return {"kustomization.yaml": yaml_text([engine.kustomization(resources)]), **found}
