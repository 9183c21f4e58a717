"""Terraform and Cloud Build files of a platform, by path: static modules, and variables from platform.yaml.

`terraform/` creates the platform, `terraform/build/` the account of Cloud Build, and `build/` holds the Cloud Build
configurations. Source: docs/how-to/terraform.md.
"""

import pkgutil
from collections.abc import Iterable, Mapping
from typing import Final

from batchyard.provision.engine import KUEUE_WEBHOOK_PORT, engine_deployments
from batchyard.provision.images import ImageRecipe, image_recipes
from batchyard.provision.model import GoogleSettings, Part, PlatformEngine, PlatformModel
from batchyard.provision.terraform import pools
from batchyard.provision.terraform.pools import future_reservations, node_pools, reservations

# Cloud Build configurations that create and destroy the platform without a local machine.


#: The container images of the build steps.
_TERRAFORM_IMAGE: Final = "hashicorp/terraform:1.11.4"
_DOCKER_IMAGE: Final = "gcr.io/cloud-builders/docker"
_CLOUD_SDK_IMAGE: Final = "gcr.io/google.com/cloudsdktool/google-cloud-cli:528.0.0"
#: The Terraform modules that the root configuration uses.
MODULES: Final = (
    "cluster",
    "future_reservations",
    "identity",
    "monitoring",
    "network",
    "node_pools",
    "registry",
    "reservations",
    "services",
    "teams",
)
#: The maximum length of the platform's name in a service account's ID.
_NAME_LENGTH_MAX: Final = 24

_FILE_HEADER: Final = """\
# {what} in Cloud Build, as {account}.
# The account and its roles are defined in terraform/build, which is applied once before:
#
#     gcloud builds submit . --config=build/{name}.yaml --project={project} \\
#       --gcs-source-staging-dir=gs://{bucket}/source{more}
serviceAccount: projects/{project}/serviceAccounts/{account}@{project}.iam.gserviceaccount.com
timeout: 7200s
options:
  logging: CLOUD_LOGGING_ONLY
steps:
"""

_CREATE_TEMPLATE: Final = """\
  # It continues from the state: run it again after a failure, or after a change of platform.yaml.
  - id: terraform
    name: {terraform}
    dir: terraform
    entrypoint: sh
    args:
      - -ceu
      - |
        terraform init -input=false
        terraform apply -input=false -auto-approve -lock-timeout=10m

{images}  # The engine comes first, and is waited for: the other manifests need its kinds and webhooks.
  - id: manifests
    name: {sdk}
    entrypoint: bash
    args:
      - -ceu
      - |
        gcloud container clusters get-credentials {cluster} --location={region} --dns-endpoint
        apply="kubectl apply --server-side --force-conflicts --field-manager=batchyard-platform"
        $$apply --kustomize=manifests/00-engine
{waits}
        $$apply --kustomize=manifests
{active}"""

_IMAGE_TEMPLATE: Final = """\
  # An image that is already in its repository is not built again.
  - id: image-{name}
    name: {docker}
    entrypoint: bash
    args:
      - -ceu
      - |
        docker manifest inspect {reference} > /dev/null 2>&1 && exit 0
        engine=docker
{lines}

"""

_WAIT_AVAILABLE: Final = "        kubectl wait --for=condition=Available -n {namespace} deployment/{name} --timeout=10m"

_WAIT_ACTIVE: Final = "        kubectl wait --for=condition=Active --timeout=5m clusterqueues.kueue.x-k8s.io {names}\n"

_DESTROY_TEMPLATE: Final = """\
  # Prevents accidental destruction.
  - id: consent
    name: {terraform}
    entrypoint: sh
    args:
      - -ceu
      - |
        [ "$_NAME" = "{cluster}" ] || {{ echo "use --substitutions=_NAME={cluster} to destroy it"; exit 1; }}

  # Kept: the bucket of the state, the account of Cloud Build (terraform/build), the APIs, and the jobs' data in their
  # own buckets and disks. {registry}
  - id: terraform
    name: {terraform}
    dir: terraform
    entrypoint: sh
    args:
      - -ceu
      - |
        terraform init -input=false
        words="-input=false -auto-approve -lock-timeout=10m -var=deletion_protection=false"
        terraform apply $$words -target=module.cluster
        terraform destroy $$words{targets}
substitutions:
  _NAME: ""
"""


def cloud_build_account(platform: PlatformModel) -> str:
    """Return the ID of the Google service account that Cloud Build uses, as in terraform/build."""
    return f"{platform.name[:_NAME_LENGTH_MAX].removesuffix('-')}-build"


def cloud_build_files(platform: PlatformModel, google: GoogleSettings, bucket: str) -> dict[str, str]:
    """Return the texts of build/create.yaml and build/destroy.yaml, the Cloud Build configurations, by path.

    `bucket` is the name of the bucket with Terraform's state, in which the sources are also staged.
    """
    substitutions = {
        "project": google.project or "PROJECT",
        "account": cloud_build_account(platform),
        "bucket": bucket,
        "terraform": _TERRAFORM_IMAGE,
        "sdk": _CLOUD_SDK_IMAGE,
        "cluster": platform.name,
        "region": platform.region,
        "images": "".join(_image_build_step(recipe) for recipe in image_recipes(platform)),
        "registry": "The image repositories are kept too."
        if google.keep_repository
        else "The image repositories are deleted.",
        "targets": "".join(f" {each}" for each in destroy_targets(google)),
        "waits": "\n".join(
            _WAIT_AVAILABLE.format(namespace=each.namespace, name=each.name) for each in engine_deployments(platform)
        ),
    }
    names = " ".join(queue.name for queue in platform.queues if not queue.is_stopped)
    substitutions["active"] = _WAIT_ACTIVE.format(names=names) if names else ""
    consent = f" \\\n#       --substitutions=_NAME={platform.name}"
    create_file = _FILE_HEADER.format(
        what=f"Creates {platform.name}", name="create", more="", **substitutions
    ) + _CREATE_TEMPLATE.format(**substitutions)
    destroy_file = _FILE_HEADER.format(
        what=f"Destroys {platform.name}", name="destroy", more=consent, **substitutions
    ) + _DESTROY_TEMPLATE.format(**substitutions)
    return {"build/create.yaml": create_file, "build/destroy.yaml": destroy_file}


def destroy_targets(google: GoogleSettings) -> list[str]:
    """Return the `-target` arguments of `terraform destroy` that keep the image repositories.

    The list is empty unless `keepRepository` is set. The arguments also keep Google's APIs enabled, because the
    repositories need them.
    """
    kept_modules = ("registry", "services")
    return [f"-target=module.{name}" for name in MODULES if name not in kept_modules] if google.keep_repository else []


def _image_build_step(recipe: ImageRecipe) -> str:
    """Return the Cloud Build step that builds an image, unless its repository has it.

    Each `$` is doubled, because Cloud Build substitutes a single `$`.
    """
    lines = "\n".join(f"        {line}".replace("$", "$$") for line in recipe.lines)
    return _IMAGE_TEMPLATE.format(name=recipe.short_name, docker=_DOCKER_IMAGE, reference=recipe.reference, lines=lines)


_ROOT_FILES: Final = ("main.tf", "outputs.tf", "variables.tf", "versions.tf")
_DASHBOARD_FILE: Final = "modules/monitoring/gpu-dashboard.json"
_AUTOSCALING_PROFILES: Final = {"balanced": "BALANCED", "optimize-utilization": "OPTIMIZE_UTILIZATION"}
_GPU_DRIVER_VERSIONS: Final = {"default": "DEFAULT", "latest": "LATEST", "disabled": "INSTALLATION_DISABLED"}
#: The label for the platform's costs in Cloud Billing, and for finding leftovers.
_PLATFORM_LABEL: Final = "platform"

_GITIGNORE: Final = """\
# Terraform's local files; neither git nor Cloud Build need them.
.terraform/
*.tfplan
*.tfstate*
"""
_BACKEND_TEMPLATE: Final = """\
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


def terraform_files(platform: PlatformModel) -> dict[str, str]:
    """Return the texts of the Terraform and Cloud Build files by path; empty if the platform is not on GKE."""
    google, cluster = platform.google, platform.cluster
    if google is None or cluster is None:
        return {}
    bucket = google.state_bucket or f"{google.project or 'PROJECT'}-{platform.name}-state"
    texts_by_path = {f"terraform/{name}": _read_static_file(f"root/{name}") for name in _ROOT_FILES}
    texts_by_path |= {f"terraform/{path}": _read_static_file(path) for path in _module_paths()}
    texts_by_path[".gitignore"] = _GITIGNORE
    texts_by_path["terraform/backend.tf"] = _backend(platform, google, bucket, google.state_prefix)
    texts_by_path["terraform/terraform.tfvars"] = _variables_file(platform, google, cluster)
    if google.has_build_files:
        texts_by_path |= {f"terraform/build/{name}": _read_static_file(f"cloud_build/{name}") for name in _ROOT_FILES}
        texts_by_path["terraform/build/backend.tf"] = _backend(platform, google, bucket, f"{google.state_prefix}-build")
        texts_by_path["terraform/build/terraform.tfvars"] = _build_variables(platform, google, bucket)
        texts_by_path |= cloud_build_files(platform, google, bucket)
    return dict(sorted(texts_by_path.items()))


def _module_paths() -> Iterable[str]:
    yield from (f"modules/{module}/{name}" for module in MODULES for name in _ROOT_FILES)
    yield _DASHBOARD_FILE


def _read_static_file(path: str) -> str:
    content = pkgutil.get_data("batchyard.provision.terraform", path)
    assert content is not None, f"{path} is missing from the installed package"
    return content.decode()


def _backend(platform: PlatformModel, google: GoogleSettings, bucket: str, prefix: str) -> str:
    return _BACKEND_TEMPLATE.format(
        bucket=bucket,
        project=google.project or "PROJECT",
        region=platform.region,
        quoted=pools.hcl_string(bucket),
        prefix=pools.hcl_string(prefix),
    )


def _variables_file(platform: PlatformModel, google: GoogleSettings, cluster: Part) -> str:
    paragraphs = [
        _VARIABLES_HEADER.format(name=platform.name),
        pools.format_assignments(_location_variables(platform, google, cluster)),
        pools.format_assignments({"network": _network_variables(google), **_webhook_ports(platform)}),
        pools.format_assignments(_cluster_variables(platform, google)),
        *_autoscaling_variables(cluster),
        pools.format_assignments(
            {"disk": {"size_gb": google.disk_size_gb, "type": google.disk_type}, **_driver_variable(google)}
        ),
        pools.format_assignments({"node_pools": node_pools(cluster)}),
        *_variables_paragraph("reservations", reservations(cluster)),
        *_variables_paragraph("future_reservations", future_reservations(cluster, google.submitted_reservations)),
        pools.format_assignments({"repository": google.repository, "dashboards": google.dashboards}),
        *_variables_paragraph("more_repositories", more_repositories(platform, google)),
        *_variables_paragraph("teams", _teams_variable(platform)),
    ]
    return "\n".join(paragraphs)


def _variables_paragraph(name: str, variables: Mapping[str, pools.Value]) -> Iterable[str]:
    return [pools.format_assignments({name: variables})] if variables else []


def _location_variables(platform: PlatformModel, google: GoogleSettings, cluster: Part) -> dict[str, pools.Value]:
    project_variable: dict[str, pools.Value] = {"project": google.project} if google.project else {}
    labels = {_PLATFORM_LABEL: platform.name, **google.labels}
    zones = cluster["spec"]["zones"]
    location_variables: dict[str, pools.Value] = {"name": platform.name, "region": platform.region, "zones": zones}
    return {**project_variable, **location_variables, "labels": labels}


def _network_variables(google: GoogleSettings) -> dict[str, pools.Value]:
    network = google.network
    ranges: dict[str, pools.Value] = {"nodes": network.nodes, "pods": network.pods, "services": network.services}
    ranges["control_plane"] = network.control_plane
    if network.private_endpoint:
        ranges["private_endpoint"] = True
    if network.authorized_networks:
        ranges["authorized"] = [{"name": name, "cidr": cidr} for name, cidr in network.authorized_networks]
    return ranges


def _webhook_ports(platform: PlatformModel) -> dict[str, pools.Value]:
    """Return the Terraform variable with Kueue's webhook port; {} if the platform does not use Kueue.

    The variable opens the port in the firewall. GKE's control plane cannot reach it otherwise.
    """
    return {"webhook_ports": [KUEUE_WEBHOOK_PORT]} if platform.engine is PlatformEngine.KUEUE else {}


def _cluster_variables(platform: PlatformModel, google: GoogleSettings) -> dict[str, pools.Value]:
    security_group_email = security_group(platform)
    return {
        "release_channel": google.release_channel,
        "deletion_protection": google.deletion_protection,
        **({"security_group": security_group_email} if security_group_email else {}),
        "image_streaming": google.image_streaming,
        "managed_prometheus": google.managed_prometheus,
        "cost_allocation": google.cost_allocation,
        "filestore": google.filestore,
    }


def security_group(platform: PlatformModel) -> str:
    """Return the Google group that GKE requires for RBAC with groups.

    It is '' if no group of the teams is an email address, or if the domains of these addresses differ.
    """
    group_emails = [group for team in platform.teams for group in (*team.members.groups, *team.admins.groups)]
    group_domains = {group.partition("@")[2] for group in group_emails if "@" in group}
    return f"gke-security-groups@{group_domains.pop()}" if len(group_domains) == 1 else ""


def _autoscaling_variables(cluster: Part) -> Iterable[str]:
    autoscaling = cluster["spec"].get("autoscaling") or {}
    profile = _AUTOSCALING_PROFILES[autoscaling.get("profile", "balanced")]
    variables: dict[str, pools.Value] = {"autoscaling_profile": profile}
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits") or ()
    if limits:
        fields = ("resource", "min", "max")
        variables["auto_provisioning"] = [{field: row[field] for field in fields if field in row} for row in limits]
    return [pools.format_assignments(variables)]


def _driver_variable(google: GoogleSettings) -> dict[str, pools.Value]:
    return {"gpu_driver": _GPU_DRIVER_VERSIONS[google.gpu_driver]}


def more_repositories(platform: PlatformModel, google: GoogleSettings) -> dict[str, pools.Value]:
    """Return the location of each image repository besides the platform's own, by name."""
    locations = {image.repository: image.location or platform.region for image in google.images if image.repository}
    return {name: location for name, location in sorted(locations.items()) if name != google.repository}


def _teams_variable(platform: PlatformModel) -> dict[str, pools.Value]:
    rows_by_team: dict[str, pools.Value] = {}
    for team in platform.teams:
        identity = team.identity
        row: dict[str, pools.Value] = {"namespace": team.namespace, "service_account": identity.name}
        row["account"] = identity.google_name
        row |= {"roles": list(identity.roles)} if identity.roles else {}
        row |= {"buckets": list(identity.buckets)} if identity.buckets else {}
        rows_by_team[team.name] = row
    return rows_by_team


def _build_variables(platform: PlatformModel, google: GoogleSettings, bucket: str) -> str:
    teams: dict[str, pools.Value] = {
        team.name: {"roles": list(team.identity.roles), "buckets": list(team.identity.buckets)}
        for team in platform.teams
    }
    project_variable: dict[str, pools.Value] = {"project": google.project} if google.project else {}
    variables: dict[str, pools.Value] = {**project_variable, "name": platform.name, "state_bucket": bucket}
    paragraphs = [pools.format_assignments(variables), pools.format_assignments({"teams": teams})]
    return "\n".join([_VARIABLES_HEADER.format(name=platform.name), *paragraphs])
