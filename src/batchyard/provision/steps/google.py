"""Steps on Google Cloud: who asks, the project, its APIs, Terraform's state, what Terraform makes, credentials.

Flags and fields are those of the gcloud CLI (`gcloud help`, as of 528) and of Terraform 1.11 (`terraform -help`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.provision.images import ImageRecipe, image_recipes
from batchyard.provision.model import Google, Platform
from batchyard.provision.steps.manifests import Part
from batchyard.provision.steps.model import Answer, Command, Consent, Probe, Retry, Seen, Step, demand, run
from batchyard.provision.steps.probe_parsers import (
    lists_all,
    plan_is_empty,
    prints_anything,
    prints_nothing,
    says,
    succeeds,
)
from batchyard.provision.steps.tools import AUTH_PLUGIN, GCLOUD, KUBECTL, TERRAFORM
from batchyard.provision.terraform.build_files import destroy_targets

#: What gcloud and Terraform call themselves before Terraform has enabled the rest. None of them costs anything.
FIRST_APIS: Final = (
    "cloudresourcemanager.googleapis.com",
    "serviceusage.googleapis.com",
    "cloudbilling.googleapis.com",
    "iam.googleapis.com",
    "storage.googleapis.com",
)
#: Where Terraform's folder lies in the rendered folder, and where it leaves its plan (paths are below that folder).
FOLDER: Final = "terraform"
PLAN: Final = "create.tfplan"
DESTROY_PLAN: Final = "destroy.tfplan"
#: A regional cluster with its pools takes a quarter of an hour; pools that wait for machines take longer.
APPLY_LIMIT: Final = 2 * 3600
#: A copy of an image with PyTorch is 10 GB.
_IMAGE_LIMIT: Final = 2 * 3600
#: Chooses the container engine of this machine.
_ENGINE: Final = """\
engine=$(command -v podman || command -v docker) || {
  echo "error: neither podman nor docker is found" >&2
  exit 1
}"""
#: An earlier Terraform of ours, or somebody else's, may hold the lock of the state.
_LOCK: Final = "-lock-timeout=10m"
_QUIET: Final = ("-input=false", "-no-color")
#: What passes by itself: an API that was enabled a moment ago, a busy or failing server, an operation in progress.
_PASSES: Final = (
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


def terraform(*words: str, limit_seconds: int = 600) -> Command:
    """Terraform, in its folder."""
    return run("terraform", f"-chdir={FOLDER}", *words, limit_seconds=limit_seconds)


def state_bucket(platform: Platform, google: Google) -> str:
    """The bucket of Terraform's state."""
    return google.state_bucket or f"{google.project}-{platform.name}-state"


def tools() -> list[Step]:
    """The programs that it takes."""
    return [TERRAFORM.step(), GCLOUD.step(), AUTH_PLUGIN, KUBECTL.step()]


def who(project: str) -> list[Step]:
    """Who asks, and whether the project is there for him."""
    return [
        demand(
            "signed-in",
            "gcloud knows who you are",
            Probe(
                run("gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"),
                prints_anything("no account is active"),
            ),
            "gcloud auth login",
        ),
        demand(
            "application-credentials",
            "Terraform knows who you are: there are Application Default Credentials",
            Probe(
                Command(("gcloud", "auth", "application-default", "print-access-token"), is_secret=True),
                succeeds(),
            ),
            "gcloud auth application-default login",
        ),
        demand(
            "project",
            f"project {project} exists, and you may see it",
            Probe(
                run("gcloud", "projects", "describe", project, "--format=json"),
                says("lifecycleState", "ACTIVE", "it is being deleted"),
            ),
            f"gcloud projects create {project}, or name another with --project",
        ),
    ]


def project_is_ready(project: str) -> list[Step]:
    """The APIs without which nothing can be asked; billing, without which nothing can be made."""
    return [
        _apis(project),
        demand(
            "billing",
            "the project is billed to somebody",
            Probe(
                run("gcloud", "billing", "projects", "describe", project, "--format=json"),
                says("billingEnabled", True, "no billing account is linked"),
            ),
            f"gcloud billing projects link {project} --billing-account=ACCOUNT (gcloud billing accounts list)",
        ),
    ]


def _apis(project: str) -> Step:
    return Step(
        "first-apis",
        "enable the APIs that Terraform itself needs",
        commands=(run("gcloud", "services", "enable", *FIRST_APIS, f"--project={project}", "--quiet"),),
        probes=(
            Probe(
                run("gcloud", "services", "list", "--enabled", f"--project={project}", "--format=value(config.name)"),
                lists_all(FIRST_APIS),
            ),
        ),
        retry=Retry(2, 20, _PASSES),
        patience_seconds=180,
        carries=True,
        remedy="you need roles/serviceusage.serviceUsageAdmin on the project",
    )


def bucket_steps(platform: Platform, google: Google) -> list[Step]:
    """The bucket of the state: there, and keeping old versions."""
    name = state_bucket(platform, google)
    url = f"gs://{name}"
    described = run("gcloud", "storage", "buckets", "describe", url, "--format=json")
    make = ("gcloud", "storage", "buckets", "create", url, f"--project={google.project}")
    return [
        Step(
            "state-bucket",
            f"make {url}, where Terraform keeps its state",
            commands=(
                run(
                    *make,
                    f"--location={platform.region}",
                    "--uniform-bucket-level-access",
                    "--public-access-prevention",
                    "--quiet",
                ),
            ),
            probes=(
                Probe(described, says("uniform_bucket_level_access", True, "it has no uniform bucket-level access")),
            ),
            consent=Consent(f"This makes the bucket {url}; what it stores is billed (a state is a few hundred KB)."),
            retry=Retry(2, 20, _PASSES),
            carries=True,
            remedy="names of buckets are the whole world's: say another with spec.google.state.bucket",
        ),
        Step(
            "state-versions",
            f"let {url} keep old versions of the state",
            commands=(run("gcloud", "storage", "buckets", "update", url, "--versioning", "--quiet"),),
            probes=(Probe(described, says("versioning_enabled", True, "it keeps no old versions")),),
        ),
    ]


def state_is_there(platform: Platform, google: Google) -> Step:
    """Without its state Terraform does not know what it has made."""
    name = state_bucket(platform, google)
    return demand(
        "state-bucket",
        f"gs://{name} is there, where Terraform keeps its state",
        Probe(run("gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=json"), succeeds()),
        "without it nobody knows what Terraform has made: was the platform ever made, with this file and project?",
    )


def initialized() -> Step:
    """Terraform has its providers, and is connected with its state."""
    return Step(
        "terraform-init",
        "fetch Terraform's providers, connect it with its state",
        commands=(terraform("init", *_QUIET, _LOCK),),
        retry=Retry(2, 20, _PASSES),
        remedy="the machine needs a way to registry.terraform.io, or a mirror of it (terraform providers mirror)",
    )


def applied() -> Step:
    """What the plan says is made: the plan itself is how one sees whether it is."""
    return Step(
        "terraform-apply",
        "plan, and make what the plan says: network, cluster, pools, accounts",
        commands=(terraform("apply", *_QUIET, _LOCK, PLAN, limit_seconds=APPLY_LIMIT),),
        probes=(
            Probe(
                terraform("plan", *_QUIET, _LOCK, "-detailed-exitcode", f"-out={PLAN}", limit_seconds=1800),
                plan_is_empty,
            ),
        ),
        consent=Consent(
            "Terraform: {seen}. What it makes is billed by the hour; `batchyard platform plan` says how much.",
            destroys_where=r"[1-9]\d* to destroy",
        ),
        retry=Retry(3, 60, _PASSES),
        is_checked=False,
        remedy=(
            "mend it and run the same command again: Terraform goes on from what is there. If the state is locked "
            "by nobody: terraform -chdir=terraform force-unlock ID"
        ),
    )


def images(platform: Platform, google: Google, all_parts: Sequence[Part]) -> Iterator[Step]:
    """Build or copy the platform's images; demand the others that the manifests take from the project."""
    recipes = image_recipes(platform)
    for recipe in recipes:
        yield _made_image(recipe)
    made = {recipe.reference for recipe in recipes}
    within = f"-docker.pkg.dev/{google.project}/"
    for image in dict.fromkeys(image for part in all_parts for image in part.images() if within in image):
        if image not in made:
            name = image.rpartition("/")[2].partition(":")[0].partition("@")[0]
            yield demand(f"image-{name}", f"{image} is there", _has_image(image), f"push it: podman push {image}")


def _made_image(recipe: ImageRecipe) -> Step:
    """Build or copy an image with the container engine of this machine, unless its repository has it."""
    registry = run("gcloud", "auth", "configure-docker", recipe.registry, "--quiet")
    script = "\n".join([_ENGINE, *recipe.lines])
    return Step(
        f"image-{recipe.short_name}",
        recipe.summary,
        commands=(registry, run("sh", "-ceu", script, limit_seconds=_IMAGE_LIMIT)),
        probes=(_has_image(recipe.reference),),
        retry=Retry(2, 20, _PASSES),
        remedy=(
            "it takes podman or docker on this machine, with a way to the image's sources; or push the image from "
            "another machine, and run the same command again"
        ),
    )


def _has_image(image: str) -> Probe:
    words = ("gcloud", "artifacts", "docker", "images", "describe", image, "--format=value(image_summary.digest)")
    return Probe(run(*words), prints_anything("no image"))


def credentials(platform: Platform, google: Google, kubeconfig: str, ask: Command) -> Step:
    """Credentials of the cluster, into a kubeconfig of their own; there where the API server answers by them.

    By the DNS endpoint, which clusters without a public address have too.
    """
    words = ["gcloud", "container", "clusters", "get-credentials", platform.name]
    words += [f"--location={platform.region}", f"--project={google.project}", "--dns-endpoint", "--quiet"]
    return Step(
        "credentials",
        f"put the cluster's credentials into {kubeconfig}",
        commands=(Command(tuple(words), environment=(("KUBECONFIG", kubeconfig),)),),
        probes=(Probe(ask, succeeds()),),
        is_checked=False,
        carries=True,
        retry=Retry(2, 20, _PASSES),
        remedy="you need roles/container.clusterViewer to connect, and roles/container.admin to install the platform",
    )


def protection(is_unprotecting: bool) -> Step:
    """That nothing is protected from deletion: demanded, or made so."""
    shown = Probe(terraform("show", "-json", "-no-color"), nothing_is_protected)
    if not is_unprotecting:
        return demand(
            "unprotected",
            "the cluster is not protected from deletion",
            shown,
            "say --unprotect; or deletionProtection: false in spec.google, then create, then this again",
        )
    words = ("apply", *_QUIET, _LOCK, "-auto-approve", "-target=module.cluster", "-var=deletion_protection=false")
    return Step(
        "unprotect",
        "take the cluster's protection from deletion away",
        commands=(terraform(*words, limit_seconds=1800),),
        probes=(shown,),
        retry=Retry(3, 60, _PASSES),
    )


def destroyed(google: Google) -> Step:
    """Terraform takes back what it made."""
    targets = destroy_targets(google)
    plan = terraform("plan", "-destroy", *_QUIET, _LOCK, *targets, f"-out={DESTROY_PLAN}", limit_seconds=1800)
    spared = ("module.registry.", "module.services.") if targets else ()
    return Step(
        "terraform-destroy",
        f"let Terraform delete what it made in {google.project}",
        commands=(plan, terraform("apply", *_QUIET, _LOCK, DESTROY_PLAN, limit_seconds=APPLY_LIMIT)),
        probes=(Probe(terraform("state", "list"), prints_nothing("resources left in the state", spared)),),
        retry=Retry(3, 60, (*_PASSES, "resourceInUseByAnotherResource")),
        remedy="delete what it names (often a firewall rule or an address that a load balancer left), run this again",
    )


def nothing_is_protected(answer: Answer) -> Seen:
    """`terraform show -json`: no cluster of the state has its deletion protection on."""
    document = answer.document()
    if document is None:
        return Seen(False, answer.last_word)
    root = (document.get("values") or {}).get("root_module") or {}
    names = [row["address"] for row in _resources(root) if row.get("values", {}).get("deletion_protection")]
    return Seen(not names, f"protected: {', '.join(names)}" if names else "")


def _resources(module: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All resources of a module of a state, those of its children too."""
    rows = list(module.get("resources", ()))
    for child in module.get("child_modules", ()):
        rows += _resources(child)
    return rows
