"""Cloud Build configurations that create and destroy the platform without a local machine."""

from typing import Final

from batchyard.provision.engine import deployed
from batchyard.provision.images import ImageRecipe, image_recipes
from batchyard.provision.model import Google, PlatformModel

#: Published images of the steps.
_TERRAFORM: Final = "hashicorp/terraform:1.11.4"
_DOCKER: Final = "gcr.io/cloud-builders/docker"
_CLOUD_SDK: Final = "gcr.io/google.com/cloudsdktool/google-cloud-cli:528.0.0"
#: The modules of the root configuration.
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
#: An account ID has at most 30 characters.
_NAME_LENGTH_MAX: Final = 24

_HEAD: Final = """\
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

_CREATE: Final = """\
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

_IMAGE: Final = """\
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

_WAIT: Final = "        kubectl wait --for=condition=Available -n {namespace} deployment/{name} --timeout=10m"

_ACTIVE: Final = "        kubectl wait --for=condition=Active --timeout=5m clusterqueues.kueue.x-k8s.io {names}\n"

_DESTROY: Final = """\
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


def build_account(platform: PlatformModel) -> str:
    """Return the ID of the builds' service account, as in terraform/build."""
    return f"{platform.name[:_NAME_LENGTH_MAX].removesuffix('-')}-build"


def build_files(platform: PlatformModel, google: Google, bucket: str) -> dict[str, str]:
    """Return build/create.yaml and build/destroy.yaml."""
    words = {
        "project": google.project or "PROJECT",
        "account": build_account(platform),
        "bucket": bucket,
        "terraform": _TERRAFORM,
        "sdk": _CLOUD_SDK,
        "cluster": platform.name,
        "region": platform.region,
        "images": "".join(_image_step(recipe) for recipe in image_recipes(platform)),
        "registry": "The repositories stay too." if google.keep_repository else "Images in the repositories go.",
        "targets": "".join(f" {each}" for each in destroy_targets(google)),
        "waits": "\n".join(_WAIT.format(namespace=each.namespace, name=each.name) for each in deployed(platform)),
    }
    names = " ".join(queue.name for queue in platform.queues if not queue.is_stopped)
    words["active"] = _ACTIVE.format(names=names) if names else ""
    consent = f" \\\n#       --substitutions=_NAME={platform.name}"
    create = _HEAD.format(what=f"Creates {platform.name}", name="create", more="", **words) + _CREATE.format(**words)
    destroy = _HEAD.format(what=f"Destroys {platform.name}", name="destroy", more=consent, **words)
    return {"build/create.yaml": create, "build/destroy.yaml": destroy + _DESTROY.format(**words)}


def destroy_targets(google: Google) -> list[str]:
    """Return the arguments with which `terraform destroy` keeps the repositories; empty if they are destroyed too.

    The APIs stay enabled in any case, and the repositories depend on them.
    """
    kept = ("registry", "services")
    return [f"-target=module.{name}" for name in MODULES if name not in kept] if google.keep_repository else []


def _image_step(recipe: ImageRecipe) -> str:
    """Return one step; `$` is doubled, because Cloud Build substitutes single ones."""
    lines = "\n".join(f"        {line}".replace("$", "$$") for line in recipe.lines)
    return _IMAGE.format(name=recipe.short_name, docker=_DOCKER, reference=recipe.reference, lines=lines)
