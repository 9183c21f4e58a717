"""What stays when a platform is destroyed, why, what it costs, and what removes it."""

from collections.abc import Iterator

from batchyard.plan.model import Google, Platform
from batchyard.plan.steps import google
from batchyard.plan.steps.cluster import Reached
from batchyard.plan.steps.model import Command, Leftover, run

_RETAINED = '{range .items[?(@.spec.persistentVolumeReclaimPolicy=="Retain")]}{.metadata.name}{"\\n"}{end}'


def leftovers(platform: Platform, reached: Reached, folder: str) -> Iterator[Leftover]:
    """What stays when all steps are done, with the command that removes each."""
    if platform.google is None:
        yield Leftover(
            "volumes",
            "PersistentVolumes that are kept when their claim goes (reclaim policy Retain), and their disks",
            reached.kubectl("get", "persistentvolumes", f"--output=jsonpath={_RETAINED}"),
            reached.kubectl("delete", "persistentvolume", "NAME").argv,
        )
    else:
        yield from _buckets(platform, platform.google)
        yield from _machines(platform.google)
        yield from _of_the_project(platform, platform.google)
    yield Leftover("folder", f"the rendered files, the journal and the logs in {folder}", None, ("rm", "-r", folder))


def _buckets(platform: Platform, made: Google) -> Iterator[Leftover]:
    name = google.state_bucket(platform, made)
    yield Leftover(
        "state bucket",
        f"gs://{name}: Terraform's state, with old versions; billed as stored",
        _bucket(name),
        ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
    )
    if made.build:
        name = f"{made.project}_cloudbuild"
        yield Leftover(
            "sources of builds",
            f"gs://{name}: what Cloud Build was sent; billed as stored",
            _bucket(name),
            ("gcloud", "storage", "rm", "--recursive", f"gs://{name}/"),
        )
        yield Leftover(
            "who builds",
            "the service account and rights of Cloud Build, where terraform/build was applied; they cost nothing",
            None,
            ("terraform", f"-chdir={google.FOLDER}/build", "destroy"),
        )


def _bucket(name: str) -> Command:
    return run("gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=value(name)")


def _machines(made: Google) -> Iterator[Leftover]:
    """Of Compute Engine."""
    project, columns = f"--project={made.project}", "--format=value(name,zone)"
    yield Leftover(
        "disks",
        "disks of volumes that no machine uses (reclaim policy Retain), of other clusters too; billed by size",
        run("gcloud", "compute", "disks", "list", project, "--filter=name~^pvc- AND -users:*", columns),
        ("gcloud", "compute", "disks", "delete", "NAME", "--zone=ZONE", project),
    )
    yield Leftover(
        "reservations",
        "reservations that Terraform did not make; billed whether they are used or not",
        run("gcloud", "compute", "reservations", "list", project, columns),
        ("gcloud", "compute", "reservations", "delete", "NAME", "--zone=ZONE", project),
    )
    if made.submitted:
        yield Leftover(
            "future reservations",
            "submitted future reservations; billed for their window, and Google may refuse to delete them",
            run("gcloud", "compute", "future-reservations", "list", project, columns),
            ("gcloud", "compute", "future-reservations", "delete", "NAME", "--zone=ZONE", project),
        )


def _of_the_project(platform: Platform, made: Google) -> Iterator[Leftover]:
    project, place = f"--project={made.project}", f"--location={platform.region}"
    yield Leftover(
        "images",
        "repositories of images that Terraform did not make or was told to keep; billed as stored",
        run("gcloud", "artifacts", "repositories", "list", project, place, "--format=value(name)"),
        ("gcloud", "artifacts", "repositories", "delete", "NAME", place, project),
    )
    yield Leftover(
        "APIs",
        "the APIs that were enabled; they cost nothing by themselves, and others may use them",
        None,
        ("gcloud", "services", "disable", "NAME", project),
    )
    yield Leftover(
        "logs and metrics",
        "logs and metrics of the cluster, until their time of retention is over",
        None,
        ("gcloud", "logging", "logs", "delete", "NAME", project),
    )
