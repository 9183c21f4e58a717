"""Terraform files of a platform, by path: static modules, and variables from platform.yaml.

`terraform/` is the platform; `terraform/build/` the account of Cloud Build, with its own state; `build/` the builds.
Source: docs/terraform.md.
"""

import pkgutil
from collections.abc import Iterable, Mapping
from typing import Final

from batchyard.provision.engine import KUEUE_WEBHOOK_PORT
from batchyard.provision.model import Google, Part, PlatformEngine, PlatformModel
from batchyard.provision.terraform import hcl
from batchyard.provision.terraform.build_files import MODULES, build_files
from batchyard.provision.terraform.pools import future_reservations, node_pools, reservations

_ROOT: Final = ("main.tf", "outputs.tf", "variables.tf", "versions.tf")
_DASHBOARD: Final = "modules/monitoring/gpu-dashboard.json"
_PROFILES: Final = {"balanced": "BALANCED", "optimize-utilization": "OPTIMIZE_UTILIZATION"}
_DRIVERS: Final = {"default": "DEFAULT", "latest": "LATEST", "disabled": "INSTALLATION_DISABLED"}
#: The label for the platform's costs in Cloud Billing, and for finding leftovers.
_LABEL: Final = "platform"

_IGNORED: Final = """\
# Terraform's local files; neither git nor Cloud Build need them.
.terraform/
*.tfplan
*.tfstate*
"""
_BACKEND: Final = """\
# Terraform's state. Create the bucket, with versioning, before `terraform init`:
#
#     gcloud storage buckets create gs://{bucket} --project={project} --location={region} \\
#       --uniform-bucket-level-access --public-access-prevention
#     gcloud storage buckets update gs://{bucket} --versioning
terraform {{
  backend "gcs" {{
    bucket = {quoted}
    prefix = {prefix}
  }}
}}
"""
_VARIABLES_HEADER: Final = """\
# Variables of {name}, rendered by `batchyard platform render` from its platform.yaml.
# Change platform.yaml and render again. The variables are described in variables.tf.
"""


def files(platform: PlatformModel) -> dict[str, str]:
    """Return every file by its path below the rendered folder; none if the platform is not on GKE."""
    google, cluster = platform.google, platform.cluster
    if google is None or cluster is None:
        return {}
    bucket = google.state_bucket or f"{google.project or 'PROJECT'}-{platform.name}-state"
    made = {f"terraform/{name}": _static(f"root/{name}") for name in _ROOT}
    made |= {f"terraform/{path}": _static(path) for path in _module_paths()}
    made[".gitignore"] = _IGNORED
    made["terraform/backend.tf"] = _backend(platform, google, bucket, google.state_prefix)
    made["terraform/terraform.tfvars"] = _variables(platform, google, cluster)
    if google.build:
        made |= {f"terraform/build/{name}": _static(f"cloud_build/{name}") for name in _ROOT}
        made["terraform/build/backend.tf"] = _backend(platform, google, bucket, f"{google.state_prefix}-build")
        made["terraform/build/terraform.tfvars"] = _build_variables(platform, google, bucket)
        made |= build_files(platform, google, bucket)
    return dict(sorted(made.items()))


def _module_paths() -> Iterable[str]:
    yield from (f"modules/{module}/{name}" for module in MODULES for name in _ROOT)
    yield _DASHBOARD


def _static(path: str) -> str:
    content = pkgutil.get_data("batchyard.provision.terraform", path)
    assert content is not None, f"{path} is part of the package"
    return content.decode()


def _backend(platform: PlatformModel, google: Google, bucket: str, prefix: str) -> str:
    return _BACKEND.format(
        bucket=bucket,
        project=google.project or "PROJECT",
        region=platform.region,
        quoted=hcl.quoted(bucket),
        prefix=hcl.quoted(prefix),
    )


def _variables(platform: PlatformModel, google: Google, cluster: Part) -> str:
    """Return terraform.tfvars, one paragraph per subject."""
    paragraphs = [
        _VARIABLES_HEADER.format(name=platform.name),
        hcl.assignments(_place(platform, google, cluster)),
        hcl.assignments({"network": _network(google), **_webhook_ports(platform)}),
        hcl.assignments(_cluster(platform, google)),
        *_autoscaling(cluster),
        hcl.assignments({"disk": {"size_gb": google.disk_size_gb, "type": google.disk_type}, **_driver(google)}),
        hcl.assignments({"node_pools": node_pools(cluster)}),
        *_paragraph("reservations", reservations(cluster)),
        *_paragraph("future_reservations", future_reservations(cluster, google.submitted)),
        hcl.assignments({"repository": google.repository, "dashboards": google.dashboards}),
        *_paragraph("more_repositories", more_repositories(platform, google)),
        *_paragraph("teams", _teams(platform)),
    ]
    return "\n".join(paragraphs)


def _paragraph(name: str, values: Mapping[str, hcl.Value]) -> Iterable[str]:
    return [hcl.assignments({name: values})] if values else []


def _place(platform: PlatformModel, google: Google, cluster: Part) -> dict[str, hcl.Value]:
    """Return the project, region, zones and labels. Without a project Terraform asks for one."""
    project: dict[str, hcl.Value] = {"project": google.project} if google.project else {}
    labels = {_LABEL: platform.name, **google.labels}
    place: dict[str, hcl.Value] = {"name": platform.name, "region": platform.region, "zones": cluster["spec"]["zones"]}
    return {**project, **place, "labels": labels}


def _network(google: Google) -> dict[str, hcl.Value]:
    network = google.network
    ranges: dict[str, hcl.Value] = {"nodes": network.nodes, "pods": network.pods, "services": network.services}
    ranges["control_plane"] = network.control_plane
    if network.private_endpoint:
        ranges["private_endpoint"] = True
    if network.authorized:
        ranges["authorized"] = [{"name": name, "cidr": cidr} for name, cidr in network.authorized]
    return ranges


def _webhook_ports(platform: PlatformModel) -> dict[str, hcl.Value]:
    """Return the engine's webhook ports that a private control plane cannot reach by default."""
    return {"webhook_ports": [KUEUE_WEBHOOK_PORT]} if platform.engine is PlatformEngine.KUEUE else {}


def _cluster(platform: PlatformModel, google: Google) -> dict[str, hcl.Value]:
    group = security_group(platform)
    return {
        "release_channel": google.release_channel,
        "deletion_protection": google.deletion_protection,
        **({"security_group": group} if group else {}),
        "image_streaming": google.image_streaming,
        "managed_prometheus": google.managed_prometheus,
        "cost_allocation": google.cost_allocation,
        "filestore": google.filestore,
    }


def security_group(platform: PlatformModel) -> str:
    """Return GKE's security group for the teams' groups; '' if they name none, or of several domains."""
    groups = [group for team in platform.teams for group in (*team.members.groups, *team.admins.groups)]
    domains = {group.partition("@")[2] for group in groups if "@" in group}
    return f"gke-security-groups@{domains.pop()}" if len(domains) == 1 else ""


def _autoscaling(cluster: Part) -> Iterable[str]:
    autoscaling = cluster["spec"].get("autoscaling") or {}
    profile = _PROFILES[autoscaling.get("profile", "balanced")]
    values: dict[str, hcl.Value] = {"autoscaling_profile": profile}
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits") or ()
    if limits:
        fields = ("resource", "min", "max")
        values["auto_provisioning"] = [{field: row[field] for field in fields if field in row} for row in limits]
    return [hcl.assignments(values)]


def _driver(google: Google) -> dict[str, hcl.Value]:
    return {"gpu_driver": _DRIVERS[google.gpu_driver]}


def more_repositories(platform: PlatformModel, google: Google) -> dict[str, hcl.Value]:
    """Return the other repositories that images name, with their locations."""
    named = {image.repository: image.location or platform.region for image in google.images if image.repository}
    return {name: location for name, location in sorted(named.items()) if name != google.repository}


def _teams(platform: PlatformModel) -> dict[str, hcl.Value]:
    """Return the service accounts of the teams."""
    rows: dict[str, hcl.Value] = {}
    for team in platform.teams:
        identity = team.identity
        row: dict[str, hcl.Value] = {
            "namespace": team.namespace,
            "service_account": identity.name,
            "account": identity.google_name,
        }
        row |= {"roles": list(identity.roles)} if identity.roles else {}
        row |= {"buckets": list(identity.buckets)} if identity.buckets else {}
        rows[team.name] = row
    return rows


def _build_variables(platform: PlatformModel, google: Google, bucket: str) -> str:
    teams: dict[str, hcl.Value] = {
        team.name: {"roles": list(team.identity.roles), "buckets": list(team.identity.buckets)}
        for team in platform.teams
    }
    project: dict[str, hcl.Value] = {"project": google.project} if google.project else {}
    values = hcl.assignments({**project, "name": platform.name, "state_bucket": bucket})
    return "\n".join([_VARIABLES_HEADER.format(name=platform.name), values, hcl.assignments({"teams": teams})])
