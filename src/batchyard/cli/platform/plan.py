"""`batchyard platform plan`: what a platform.yaml comes to, before anything is made."""

from batchyard.api import tables
from batchyard.cli import output
from batchyard.cli.platform.files import read_source, sound_platform


def run(file: str, project: str) -> None:
    """Show it; exits with 1 where the file is no sound platform."""
    platform = sound_platform(read_source(file), project)
    rows = [[queue.name, queue.cohort, ", ".join(flavor.name for flavor in queue.flavors)] for queue in platform.queues]
    output.write(tables.format_table([["CLUSTERQUEUE", "COHORT", "FLAVORS"], *rows]))
