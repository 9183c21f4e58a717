"""What Terraform makes of a platform on Google Cloud, by name, for people to look through before it costs."""

from collections.abc import Mapping, Sequence

from batchyard.plan.images import image_recipes
from batchyard.plan.model import Platform
from batchyard.plan.terraform.files import more_repositories
from batchyard.plan.terraform.pools import future_reservations, reservations


def made_on_google(platform: Platform) -> Mapping[str, Sequence[str]]:
    """The names of what is made, by what it is; nothing where the cluster is not made there."""
    google, cluster, name = platform.google, platform.cluster, platform.name
    if google is None or cluster is None:
        return {}
    accounts = [team.identity.google_name for team in platform.teams]
    made = reservations(cluster)
    booked = future_reservations(cluster)
    named = [row["name"] for row in cluster["spec"].get("reservations") or ()]
    found = {
        "network": [f"{name} with a subnet, a router and Cloud NAT"],
        "cluster": [f"{name} in {platform.region}, private, channel {google.release_channel}"],
        "node pool": [row["name"] for row in platform.node_pools],
        "reservation": list(made),
        "future reservation, draft": [each for each in booked if each not in google.submitted],
        "future reservation, submitted": [each for each in booked if each in google.submitted],
        "booked with Google, not made here": [each for each in named if each not in made and each not in booked],
        "service account": ["the nodes' own", *accounts],
        "repository": [google.repository, *more_repositories(platform, google)],
        "image": [recipe.short_name for recipe in image_recipes(platform)],
        "dashboard": ["GPUs"] if google.dashboards else [],
    }
    return {what: names for what, names in found.items() if names}
