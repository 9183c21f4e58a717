"""The programs that the steps run, and the oldest versions that do."""

from typing import Final, NamedTuple

from batchyard.provision.steps.model import Probe, Step, demand, run
from batchyard.provision.steps.probe_parsers import is_version, succeeds


class Tool(NamedTuple):
    """A program of the user's: what asks it for its version as JSON, where that stands, and the least there must be."""

    name: str
    asked: tuple[str, ...]
    field: tuple[str, ...]
    least: tuple[int, ...]
    remedy: str

    def step(self) -> Step:
        """The demand that it is there and new enough."""
        least = ".".join(map(str, self.least))
        return demand(
            f"tool-{self.name}",
            f"{self.name} is there, {least} or newer",
            Probe(run(*self.asked, limit_seconds=60), is_version(self.field, self.least)),
            self.remedy,
        )


#: Server-side apply with a diff that heeds --force-conflicts, and --dry-run=server.
KUBECTL: Final = Tool(
    "kubectl",
    ("kubectl", "version", "--client", "--output=json"),
    ("clientVersion", "gitVersion"),
    (1, 28),
    "install kubectl: https://kubernetes.io/docs/tasks/tools/",
)
#: What terraform/versions.tf asks for.
TERRAFORM: Final = Tool(
    "terraform",
    ("terraform", "version", "-json"),
    ("terraform_version",),
    (1, 9),
    "install Terraform: https://developer.hashicorp.com/terraform/install",
)
#: The first that gets credentials by --dns-endpoint.
GCLOUD: Final = Tool(
    "gcloud",
    ("gcloud", "version", "--format=json"),
    ("Google Cloud SDK",),
    (496,),
    "install the gcloud CLI: https://cloud.google.com/sdk/docs/install",
)
AUTH_PLUGIN: Final = demand(
    "tool-gke-gcloud-auth-plugin",
    "gke-gcloud-auth-plugin is there, by which kubectl gets its credentials",
    Probe(run("gke-gcloud-auth-plugin", "--version", limit_seconds=60), succeeds()),
    "gcloud components install gke-gcloud-auth-plugin, or the package google-cloud-cli-gke-gcloud-auth-plugin",
)
