"""Cloud Build: two files that create and destroy the platform where nobody's own machine is to do it."""

from typing import Final

from batchyard.plan.engine import deployed
from batchyard.plan.model import Google, Platform

#: What the steps run in, as published.
_TERRAFORM: Final = "hashicorp/terraform:1.11.4"
_CLOUD_SDK: Final = "gcr.io/google.com/cloudsdktool/google-cloud-cli:528.0.0"
#: An account's id has 30 characters at most.
_NAME_LENGTH_MAX: Final = 24

_HEAD: Final = """\
# {what} in Cloud Build, as {account}.
# Who that is, and what he may do, is in terraform/build, which is applied once before:
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
  # Goes on from what is there: run it again after a failure, or after a change of platform.yaml.
  - id: terraform
    name: {terraform}
    dir: terraform
    entrypoint: sh
    args:
      - -ceu
      - |
        terraform init -input=false
        terraform apply -input=false -auto-approve -lock-timeout=10m

  # What decides comes first, and is waited for: its kinds and webhooks must be there for the rest.
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

_WAIT: Final = "        kubectl wait --for=condition=Available -n {namespace} deployment/{name} --timeout=10m"

_ACTIVE: Final = "        kubectl wait --for=condition=Active --timeout=5m clusterqueues.kueue.x-k8s.io {names}\n"

_DESTROY: Final = """\
  # So that nobody destroys it by mistake.
  - id: consent
    name: {terraform}
    entrypoint: sh
    args:
      - -ceu
      - |
        [ "$_NAME" = "{cluster}" ] || {{ echo "say --substitutions=_NAME={cluster} to destroy it"; exit 1; }}

  # Left behind: the bucket of the state, the account of Cloud Build (terraform/build), the APIs, and what jobs have
  # written to buckets and disks of their own. Images in the repository go with it.
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
        terraform destroy $$words
substitutions:
  _NAME: ""
"""


def build_account(platform: Platform) -> str:
    """The id of the service account that runs builds, as terraform/build makes it."""
    return f"{platform.name[:_NAME_LENGTH_MAX].removesuffix('-')}-build"


def build_files(platform: Platform, google: Google, bucket: str) -> dict[str, str]:
    """build/create.yaml and build/destroy.yaml."""
    words = {
        "project": google.project or "PROJECT",
        "account": build_account(platform),
        "bucket": bucket,
        "terraform": _TERRAFORM,
        "sdk": _CLOUD_SDK,
        "cluster": platform.name,
        "region": platform.region,
        "waits": "\n".join(_WAIT.format(namespace=each.namespace, name=each.name) for each in deployed(platform)),
    }
    names = " ".join(queue.name for queue in platform.queues if not queue.is_stopped)
    words["active"] = _ACTIVE.format(names=names) if names else ""
    consent = f" \\\n#       --substitutions=_NAME={platform.name}"
    create = _HEAD.format(what=f"Creates {platform.name}", name="create", more="", **words) + _CREATE.format(**words)
    destroy = _HEAD.format(what=f"Destroys {platform.name}", name="destroy", more=consent, **words)
    return {"build/create.yaml": create, "build/destroy.yaml": destroy + _DESTROY.format(**words)}
