"""Programs that the steps run, with their minimum versions."""

from typing import Final, NamedTuple

from batchyard.provision.steps.model import PlatformStep, Probe, demand, run
from batchyard.provision.steps.probe_parsers import is_version, succeeds


class Tool(NamedTuple):
    """A program: the command that prints its version as JSON, the path of the version, and the minimum."""

    name: str
    version_command: tuple[str, ...]
    field: tuple[str, ...]
    least: tuple[int, ...]
    remedy: str

    def step(self) -> PlatformStep:
        """Return the demand that it is installed and new enough."""
        least = ".".join(map(str, self.least))
        return demand(
            f"tool-{self.name}",
            f"{self.name} {least} or newer is installed",
            Probe(run(*self.version_command, limit_seconds=60), is_version(self.field, self.least)),
            self.remedy,
        )


#: Server-side apply with a diff that respects --force-conflicts, and --dry-run=server.
KUBECTL: Final = Tool(
    "kubectl",
    ("kubectl", "version", "--client", "--output=json"),
    ("clientVersion", "gitVersion"),
    (1, 28),
    "install kubectl: https://kubernetes.io/docs/tasks/tools/",
)
#: The minimum in terraform/versions.tf.
TERRAFORM: Final = Tool(
    "terraform",
    ("terraform", "version", "-json"),
    ("terraform_version",),
    (1, 9),
    "install Terraform: https://developer.hashicorp.com/terraform/install",
)
#: The first version with --dns-endpoint for credentials.
GCLOUD: Final = Tool(
    "gcloud",
    ("gcloud", "version", "--format=json"),
    ("Google Cloud SDK",),
    (496,),
    "install the gcloud CLI: https://cloud.google.com/sdk/docs/install",
)
AUTH_PLUGIN: Final = demand(
    "tool-gke-gcloud-auth-plugin",
    "gke-gcloud-auth-plugin is installed, for kubectl's credentials",
    Probe(run("gke-gcloud-auth-plugin", "--version", limit_seconds=60), succeeds()),
    "gcloud components install gke-gcloud-auth-plugin, or the package google-cloud-cli-gke-gcloud-auth-plugin",
)
