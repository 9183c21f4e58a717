"""GPU drivers. By default GKE installs the version that fits its nodes.

If that is disabled, Google's DaemonSet installs them, in the version that was current for this release.
"""

from typing import Final

from batchyard.api import well_known
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pools import machine_of
from batchyard.provision.model import PlatformModel

_INSTALLER: Final = (
    "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/"
    "feb27ef33e5fdf1b8ec7dafbf4cf527ee400278a/nvidia-driver-installer/cos/daemonset-preloaded.yaml"
)


def driver_resources(platform: PlatformModel) -> list[str]:
    """Return the driver installer as kustomization resources."""
    google = platform.google
    return [_INSTALLER] if google is not None and google.gpu_driver == "disabled" and has_gpus(platform) else []


def has_gpus(platform: PlatformModel) -> bool:
    """Whether a node may have GPUs: of a pool, or by auto-provisioning."""
    cluster = platform.cluster
    if cluster is None:
        return False
    catalog = catalog_of(cluster)
    for row in platform.node_pools:
        accelerator = machine_of({"spec": row}, catalog).accelerator
        if accelerator is not None and accelerator.resource == well_known.GPU:
            return True
    limits = ((cluster["spec"].get("autoscaling") or {}).get("autoProvisioning") or {}).get("limits") or ()
    return any(row["resource"].startswith("nvidia") for row in limits)
