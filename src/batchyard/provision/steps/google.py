"""Steps on Google Cloud: login, project, APIs, Terraform state, terraform apply, cluster credentials, images.

Flags and fields are those of the gcloud CLI (`gcloud help`, as of 528) and of Terraform 1.11 (`terraform -help`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.provision.images import ImageRecipe, image_recipes
from batchyard.provision.model import GoogleSettings, PlatformModel
from batchyard.provision.steps import model, probe_parsers
from batchyard.provision.steps.cluster import ManifestPart
from batchyard.provision.terraform.files import destroy_targets

# Programs that the steps run, with their minimum versions.


class RequiredProgram(NamedTuple):
    """A required program: the command that prints its version as JSON, the version field, and the minimum."""

    name: str
    version_command: tuple[str, ...]
    #: The path of the version in the JSON document, as keys.
    version_field: tuple[str, ...]
    minimum: tuple[int, ...]
    remedy: str

    def step(self) -> model.PlatformStep:
        """Return a step that requires the program in its minimum version."""
        minimum_text = ".".join(map(str, self.minimum))
        return model.requirement_step(
            f"tool-{self.name}",
            f"{self.name} {minimum_text} or newer is installed",
            model.Probe(
                model.command(*self.version_command, limit_seconds=60),
                probe_parsers.version_at_least(self.version_field, self.minimum),
            ),
            self.remedy,
        )


#: The first kubectl version whose `diff` respects --force-conflicts.
KUBECTL: Final = RequiredProgram(
    "kubectl",
    ("kubectl", "version", "--client", "--output=json"),
    ("clientVersion", "gitVersion"),
    (1, 28),
    "install kubectl: https://kubernetes.io/docs/tasks/tools/",
)
#: The minimum version in terraform/versions.tf.
TERRAFORM: Final = RequiredProgram(
    "terraform",
    ("terraform", "version", "-json"),
    ("terraform_version",),
    (1, 9),
    "install Terraform: https://developer.hashicorp.com/terraform/install",
)
#: The first gcloud version whose `get-credentials` has --dns-endpoint.
GCLOUD: Final = RequiredProgram(
    "gcloud",
    ("gcloud", "version", "--format=json"),
    ("Google Cloud SDK",),
    (496,),
    "install the gcloud CLI: https://cloud.google.com/sdk/docs/install",
)
AUTH_PLUGIN: Final = model.requirement_step(
    "tool-gke-gcloud-auth-plugin",
    "gke-gcloud-auth-plugin is installed, for kubectl's credentials",
    model.Probe(model.command("gke-gcloud-auth-plugin", "--version", limit_seconds=60), probe_parsers.succeeds()),
    "gcloud components install gke-gcloud-auth-plugin, or the package google-cloud-cli-gke-gcloud-auth-plugin",
)


#: APIs that gcloud and Terraform need before Terraform enables the rest. None of them costs anything.
FIRST_APIS: Final = (
    "cloudresourcemanager.googleapis.com",
    "serviceusage.googleapis.com",
    "cloudbilling.googleapis.com",
    "iam.googleapis.com",
    "storage.googleapis.com",
)
#: Terraform's folder in the rendered folder, and its plan files (paths are below that folder).
TERRAFORM_FOLDER: Final = "terraform"
PLAN_FILE: Final = "create.tfplan"
DESTROY_PLAN_FILE: Final = "destroy.tfplan"
#: The time limit of `terraform apply`: a regional cluster takes 15 minutes, pools that wait for machines longer.
APPLY_LIMIT_SECONDS: Final = 2 * 3600
#: The time limit to build or copy an image: one with PyTorch has about 10 GB.
_IMAGE_LIMIT: Final = 2 * 3600
#: The shell line that chooses the container engine of this machine.
_ENGINE_SCRIPT: Final = """\
engine=$(command -v podman || command -v docker) || {
  echo "error: neither podman nor docker is installed" >&2
  exit 1
}"""
#: The option to wait for a lock that another Terraform run holds.
_LOCK_OPTION: Final = "-lock-timeout=10m"
_QUIET_OPTIONS: Final = ("-input=false", "-no-color")
#: Transient errors: a recently enabled API, a busy or failing server, an operation in progress.
_TRANSIENT_ERRORS: Final = (
    "has not been used in project",
    "SERVICE_DISABLED",
    "Error 429",
    "Error 500",
    "Error 502",
    "Error 503",
    "connection reset by peer",
    "i/o timeout",
    "TLS handshake timeout",
    "is currently performing another operation",
    "is currently creating cluster",
)


def terraform(*arguments: str, limit_seconds: int = 600) -> model.StepCommand:
    """Return a `terraform` command with these arguments, which runs in the platform's Terraform folder."""
    return model.command("terraform", f"-chdir={TERRAFORM_FOLDER}", *arguments, limit_seconds=limit_seconds)


def state_bucket(platform: PlatformModel, google: GoogleSettings) -> str:
    """Return the name of the bucket that stores Terraform's state."""
    return google.state_bucket or f"{google.project}-{platform.name}-state"


def tool_steps() -> list[model.PlatformStep]:
    """Return the steps that check for the programs which later steps run, such as gcloud and terraform."""
    return [TERRAFORM.step(), GCLOUD.step(), AUTH_PLUGIN, KUBECTL.step()]


def account_steps(project: str) -> list[model.PlatformStep]:
    """Return steps that require a gcloud account, Application Default Credentials and access to the project."""
    return [
        model.requirement_step(
            "signed-in",
            "gcloud has an active account",
            model.Probe(
                model.command("gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"),
                probe_parsers.prints_anything("no account is active"),
            ),
            "gcloud auth login",
        ),
        model.requirement_step(
            "application-credentials",
            "Terraform has Application Default Credentials",
            model.Probe(
                model.StepCommand(("gcloud", "auth", "application-default", "print-access-token"), is_secret=True),
                probe_parsers.succeeds(),
            ),
            "gcloud auth application-default login",
        ),
        model.requirement_step(
            "project",
            f"project {project} exists, and your account has access to it",
            model.Probe(
                model.command("gcloud", "projects", "describe", project, "--format=json"),
                probe_parsers.field_equals("lifecycleState", "ACTIVE", "it is being deleted"),
            ),
            f"gcloud projects create {project}, or name another with --project",
        ),
    ]


def project_steps(project: str) -> list[model.PlatformStep]:
    """Return steps that enable the APIs in FIRST_APIS, and that require a billing account of the project."""
    return [
        _enable_apis_step(project),
        model.requirement_step(
            "billing",
            "the project has a billing account",
            model.Probe(
                model.command("gcloud", "billing", "projects", "describe", project, "--format=json"),
                probe_parsers.field_equals("billingEnabled", True, "no billing account is linked"),
            ),
            f"gcloud billing projects link {project} --billing-account=ACCOUNT (gcloud billing accounts list)",
        ),
    ]


def _enable_apis_step(project: str) -> model.PlatformStep:
    return model.PlatformStep(
        "first-apis",
        "enable the APIs that Terraform itself needs",
        commands=(model.command("gcloud", "services", "enable", *FIRST_APIS, f"--project={project}", "--quiet"),),
        probes=(
            model.Probe(
                model.command(
                    "gcloud", "services", "list", "--enabled", f"--project={project}", "--format=value(config.name)"
                ),
                probe_parsers.lists_all(FIRST_APIS),
            ),
        ),
        retry=model.Retry(2, 20, _TRANSIENT_ERRORS),
        patience_seconds=180,
        is_prerequisite=True,
        remedy="you need roles/serviceusage.serviceUsageAdmin on the project",
    )


def bucket_steps(platform: PlatformModel, google: GoogleSettings) -> list[model.PlatformStep]:
    """Return steps that create the bucket for Terraform's state and enable object versioning."""
    name = state_bucket(platform, google)
    url = f"gs://{name}"
    describe_command = model.command("gcloud", "storage", "buckets", "describe", url, "--format=json")
    create_command = ("gcloud", "storage", "buckets", "create", url, f"--project={google.project}")
    return [
        model.PlatformStep(
            "state-bucket",
            f"create {url} for Terraform's state",
            commands=(
                model.command(
                    *create_command,
                    f"--location={platform.region}",
                    "--uniform-bucket-level-access",
                    "--public-access-prevention",
                    "--quiet",
                ),
            ),
            probes=(
                model.Probe(
                    describe_command,
                    probe_parsers.field_equals(
                        "uniform_bucket_level_access", True, "it has no uniform bucket-level access"
                    ),
                ),
            ),
            consent=model.Consent(
                f"This creates the bucket {url}; its storage is billed (a state is a few hundred KB)."
            ),
            retry=model.Retry(2, 20, _TRANSIENT_ERRORS),
            is_prerequisite=True,
            remedy="bucket names are global: choose another with spec.google.state.bucket",
        ),
        model.PlatformStep(
            "state-versions",
            f"enable versioning of {url} for Terraform's state",
            commands=(model.command("gcloud", "storage", "buckets", "update", url, "--versioning", "--quiet"),),
            probes=(
                model.Probe(
                    describe_command, probe_parsers.field_equals("versioning_enabled", True, "versioning is disabled")
                ),
            ),
        ),
    ]


def require_state_bucket_step(platform: PlatformModel, google: GoogleSettings) -> model.PlatformStep:
    """Return a step that requires the bucket with Terraform's state, without which Terraform knows no resources."""
    name = state_bucket(platform, google)
    return model.requirement_step(
        "state-bucket",
        f"the bucket gs://{name} with Terraform's state exists",
        model.Probe(
            model.command("gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=json"),
            probe_parsers.succeeds(),
        ),
        "Terraform finds its resources only with this state: use the file and project that created the platform",
    )


def terraform_init_step() -> model.PlatformStep:
    """Return a step that runs `terraform init` in the platform's Terraform folder."""
    return model.PlatformStep(
        "terraform-init",
        "initialize Terraform: providers and state",
        commands=(terraform("init", *_QUIET_OPTIONS, _LOCK_OPTION),),
        retry=model.Retry(2, 20, _TRANSIENT_ERRORS),
        remedy="this machine needs access to registry.terraform.io, or a mirror of it (terraform providers mirror)",
    )


def terraform_apply_step() -> model.PlatformStep:
    """Return a step that runs `terraform apply`; the step is done if Terraform's plan is empty."""
    return model.PlatformStep(
        "terraform-apply",
        "plan and apply: network, cluster, pools, accounts",
        commands=(terraform("apply", *_QUIET_OPTIONS, _LOCK_OPTION, PLAN_FILE, limit_seconds=APPLY_LIMIT_SECONDS),),
        probes=(
            model.Probe(
                terraform(
                    "plan", *_QUIET_OPTIONS, _LOCK_OPTION, "-detailed-exitcode", f"-out={PLAN_FILE}", limit_seconds=1800
                ),
                probe_parsers.parse_terraform_plan,
            ),
        ),
        consent=model.Consent(
            "Terraform: {seen}. Its resources are billed by the hour; `batchyard platform plan` shows the cost.",
            destroys_pattern=r"[1-9]\d* to destroy",
        ),
        retry=model.Retry(3, 60, _TRANSIENT_ERRORS),
        is_checked=False,
        remedy=(
            "fix the error and run the command again: Terraform continues from its state. If the state is still locked "
            "after a crash: terraform -chdir=terraform force-unlock ID"
        ),
    )


def image_steps(
    platform: PlatformModel, google: GoogleSettings, all_parts: Sequence[ManifestPart]
) -> Iterator[model.PlatformStep]:
    """Yield a step for each image that the platform builds or copies, then one for each other image of the manifests.

    The latter steps only require that the image exists. Images outside the project's registries get no step.
    """
    recipes = image_recipes(platform)
    for recipe in recipes:
        yield _image_step(recipe)
    built_images = {recipe.reference for recipe in recipes}
    registry_path = f"-docker.pkg.dev/{google.project}/"
    for image in dict.fromkeys(image for part in all_parts for image in part.images() if registry_path in image):
        if image not in built_images:
            name = image.rpartition("/")[2].partition(":")[0].partition("@")[0]
            yield model.requirement_step(
                f"image-{name}", f"{image} exists", _image_probe(image), f"push it: podman push {image}"
            )


def _image_step(recipe: ImageRecipe) -> model.PlatformStep:
    login_command = model.command("gcloud", "auth", "configure-docker", recipe.registry, "--quiet")
    script = "\n".join([_ENGINE_SCRIPT, *recipe.lines])
    return model.PlatformStep(
        f"image-{recipe.short_name}",
        recipe.summary,
        commands=(login_command, model.command("sh", "-ceu", script, limit_seconds=_IMAGE_LIMIT)),
        probes=(_image_probe(recipe.reference),),
        retry=model.Retry(2, 20, _TRANSIENT_ERRORS),
        remedy=(
            "this machine needs podman or docker, and access to the image's sources; or push the image from "
            "another machine, and run the same command again"
        ),
    )


def _image_probe(image: str) -> model.Probe:
    arguments = ("gcloud", "artifacts", "docker", "images", "describe", image, "--format=value(image_summary.digest)")
    return model.Probe(model.command(*arguments), probe_parsers.prints_anything("no image"))


def credentials_step(
    platform: PlatformModel, google: GoogleSettings, kubeconfig: str, ready_command: model.StepCommand
) -> model.PlatformStep:
    """Return a step that writes the cluster's credentials to a kubeconfig; it is done if the API server accepts them.

    The credentials use the DNS endpoint, which also exists for clusters without a public address.
    """
    arguments = ["gcloud", "container", "clusters", "get-credentials", platform.name]
    arguments += [f"--location={platform.region}", f"--project={google.project}", "--dns-endpoint", "--quiet"]
    return model.PlatformStep(
        "credentials",
        f"write the cluster's credentials to {kubeconfig}",
        commands=(model.StepCommand(tuple(arguments), environment=(("KUBECONFIG", kubeconfig),)),),
        probes=(model.Probe(ready_command, probe_parsers.succeeds()),),
        is_checked=False,
        is_prerequisite=True,
        retry=model.Retry(2, 20, _TRANSIENT_ERRORS),
        remedy="you need roles/container.clusterViewer to connect, and roles/container.admin to install the platform",
    )


def protection_step(is_unprotecting: bool) -> model.PlatformStep:
    """Return a step that requires the cluster's deletion protection to be off, or turns it off (`is_unprotecting`)."""
    protection_probe = model.Probe(terraform("show", "-json", "-no-color"), parse_protection)
    if not is_unprotecting:
        return model.requirement_step(
            "unprotected",
            "the cluster is not protected from deletion",
            protection_probe,
            "use --unprotect; or set deletionProtection: false in spec.google, run create, then destroy again",
        )
    options = ("-auto-approve", "-target=module.cluster", "-var=deletion_protection=false")
    arguments = ("apply", *_QUIET_OPTIONS, _LOCK_OPTION, *options)
    return model.PlatformStep(
        "unprotect",
        "turn off the cluster's deletion protection",
        commands=(terraform(*arguments, limit_seconds=1800),),
        probes=(protection_probe,),
        retry=model.Retry(3, 60, _TRANSIENT_ERRORS),
    )


def destroy_step(google: GoogleSettings) -> model.PlatformStep:
    """Return a step that destroys the platform's Terraform resources.

    With `keepRepository`, the image repositories and the enabled APIs are kept.
    """
    target_arguments = destroy_targets(google)
    options = (*_QUIET_OPTIONS, _LOCK_OPTION, *target_arguments, f"-out={DESTROY_PLAN_FILE}")
    plan_command = terraform("plan", "-destroy", *options, limit_seconds=1800)
    kept_prefixes = ("module.registry.", "module.services.") if target_arguments else ()
    return model.PlatformStep(
        "terraform-destroy",
        f"let Terraform destroy its resources in {google.project}",
        commands=(
            plan_command,
            terraform("apply", *_QUIET_OPTIONS, _LOCK_OPTION, DESTROY_PLAN_FILE, limit_seconds=APPLY_LIMIT_SECONDS),
        ),
        probes=(
            model.Probe(
                terraform("state", "list"), probe_parsers.prints_nothing("resources left in the state", kept_prefixes)
            ),
        ),
        retry=model.Retry(3, 60, (*_TRANSIENT_ERRORS, "resourceInUseByAnotherResource")),
        remedy="delete the resources in the error (such as a load balancer's firewall rule), then run destroy again",
    )


def parse_protection(command_output: model.CommandOutput) -> model.ProbeResult:
    """Return the probe result of `terraform show -json`: success if no resource has deletion protection."""
    document = command_output.document()
    if document is None:
        return model.ProbeResult(False, command_output.main_error)
    root = (document.get("values") or {}).get("root_module") or {}
    names = [row["address"] for row in _resources(root) if row.get("values", {}).get("deletion_protection")]
    return model.ProbeResult(not names, f"protected: {', '.join(names)}" if names else "")


def _resources(module: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    resources = list(module.get("resources", ()))
    for child in module.get("child_modules", ()):
        resources += _resources(child)
    return resources
