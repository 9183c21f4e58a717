"""Google Cloud: the resources that Terraform creates, and the validation of a platform on GKE."""

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_network
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import shown
from batchyard.cloud.catalog.nodes import PODS
from batchyard.provision.images import image_recipes
from batchyard.provision.model import Google, Network, Part, PlatformModel, PlatformTeam
from batchyard.provision.system_pods import supplies
from batchyard.provision.terraform.files import more_repositories
from batchyard.provision.terraform.pools import HYPERDISK, future_reservations, reservations


def made_on_google(platform: PlatformModel) -> Mapping[str, Sequence[str]]:
    """Return the names of the resources by type; empty if the cluster is not on GKE."""
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


# --- google rules ---
#
# Google Cloud's constraints on a platform: names, address ranges, accounts, labels.
#
# Sources: the APIs of the Resource Manager (projects), Identity and Access Management (service accounts, roles), Cloud
# Storage (buckets), Artifact Registry (repositories) and Compute Engine (labels, subnets, disks of machine families);
# GKE's documents on address ranges and on the number of pods per node.


_PROJECT: Final = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_ACCOUNT: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ACCOUNT_LENGTHS: Final = (6, 30)
_BUCKET: Final = re.compile(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
_REPOSITORY: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PLACE: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
#: The path of an image in a repository, with a tag; and an image reference in a registry.
_IMAGE: Final = re.compile(r"[a-z0-9]+(?:[._/-][a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_REFERENCE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")
_GIT: Final = re.compile(r"https://[A-Za-z0-9._~:/@%+-]+\.git(?:#[A-Za-z0-9._/@+-]*(?::[A-Za-z0-9._/@+-]*)?)?")
_ROLE: Final = re.compile(r"((projects|organizations)/[^/\s]+/)?roles/[A-Za-z0-9_.]+")
_TOO_MUCH: Final = frozenset({"roles/owner", "roles/editor"})
_LABEL_LENGTH_MAX: Final = 63
_CONTROL_PLANE_PREFIX: Final = 28
_NODES_PREFIX_MAX: Final = 29
#: Addresses that Google reserves in a subnet.
_KEPT: Final = 4
#: Prefixes of namespaces that GKE manages.
_MANAGED: Final = ("gke-managed-", "gmp-")
#: Families that boot only from Persistent Disks.
_NO_HYPERDISK: Final = frozenset({"a2", "c2", "c2d", "e2", "g2", "n1", "n2", "n2d", "t2a", "t2d"})
_BUCKET_WORDS: Final = "use 3 to 63 small letters, digits, -, _ and ., a letter or digit first and last"


def google_faults(platform: PlatformModel, google: Google) -> Iterator[FieldError]:
    """Yield all errors."""
    if platform.cluster is None:
        yield FieldError("spec.cluster", "Required value", "describe the cluster that is to be made on GKE")
        return
    yield from _name_faults(platform, google)
    yield from _label_faults(google)
    yield from _disk_faults(platform, google)
    yield from _image_faults(google)
    yield from _submission_faults(platform.cluster, google)
    ranges = list(_network_faults(google.network))
    yield from ranges or _room_faults(platform, google.network)
    accounts = dict.fromkeys(own_accounts(platform.name), "the platform itself")
    for team in platform.teams:
        yield from _team_faults(team, accounts.setdefault(team.identity.google_name, team.name))


def own_accounts(name: str) -> list[str]:
    """Return the service accounts of nodes and builds, as in the modules `identity` and `cloud_build`."""
    return [f"{name[:24].removesuffix('-')}-{who}" for who in ("nodes", "build")]


def _name_faults(platform: PlatformModel, google: Google) -> Iterator[FieldError]:
    if google.project and not _PROJECT.fullmatch(google.project):
        remedy = "use its id: 6 to 30 small letters, digits and -"
        yield FieldError("spec.google.project", f"{shown(google.project)} is no project", remedy)
    bucket = google.state_bucket or (f"{google.project}-{platform.name}-state" if google.project else "")
    if bucket and not _BUCKET.fullmatch(bucket):
        yield FieldError("spec.google.state.bucket", f"{shown(bucket)} is no name of a bucket", _BUCKET_WORDS)
    if not _REPOSITORY.fullmatch(google.repository):
        problem = f"{shown(google.repository)} is no name of a repository"
        yield FieldError("spec.google.repository", problem, "use up to 63 small letters, digits and -, a letter first")


def _label_faults(google: Google) -> Iterator[FieldError]:
    for key, value in google.labels.items():
        path = f"spec.google.labels[{key}]"
        if not (_is_label(key) and key[0].isalpha()):
            yield FieldError(path, f"{shown(key)} is no label", "use small letters, digits, - and _, a letter first")
        elif not _is_label(value) and value:
            yield FieldError(path, f"{shown(value)} is no value of a label", "use small letters, digits, - and _")


def _is_label(text: str) -> bool:
    """Whether a text is a valid label: lowercase letters of any script, digits, `-` and `_`."""
    letters = all(each in "-_" or (each.isalnum() and each == each.lower()) for each in text)
    return 0 < len(text) <= _LABEL_LENGTH_MAX and letters


def _disk_faults(platform: PlatformModel, google: Google) -> Iterator[FieldError]:
    if google.disk_type != HYPERDISK:
        return
    other = [row["name"] for row in platform.node_pools if row["machineType"].partition("-")[0] in _NO_HYPERDISK]
    if other:
        problem = f"the machines of {', '.join(other)} do not boot from {HYPERDISK}"
        remedy = "write pd-balanced: machines that support only Hyperdisk get it anyway"
        yield FieldError("spec.google.nodes.diskType", problem, remedy)


def _image_faults(google: Google) -> Iterator[FieldError]:
    """Check that images have valid names and exactly one source."""
    for index, image in enumerate(google.images):
        path = f"spec.google.images[{index}]"
        if not _IMAGE.fullmatch(image.name):
            yield FieldError(f"{path}.name", f"{shown(image.name)} is no image with a tag", "write it as trainer:v1")
        if bool(image.copy_from) == bool(image.build_from):
            problem = "an image has exactly one source"
            yield FieldError(path, problem, "write either copyFrom (an image) or buildFrom (a git repository)")
        elif image.copy_from and not _REFERENCE.fullmatch(image.copy_from):
            yield FieldError(f"{path}.copyFrom", f"{shown(image.copy_from)} is no image", "write it as ghcr.io/a/b:v1")
        elif image.build_from and not _GIT.fullmatch(image.build_from):
            remedy = "write it as https://host/path.git#REF:FOLDER"
            yield FieldError(f"{path}.buildFrom", f"{shown(image.build_from)} is no git repository", remedy)
        if image.repository and not _REPOSITORY.fullmatch(image.repository):
            problem = f"{shown(image.repository)} is no name of a repository"
            yield FieldError(f"{path}.repository", problem, "use up to 63 small letters, digits and -, a letter first")
        if image.location and not (image.repository and _PLACE.fullmatch(image.location)):
            problem = f"{shown(image.location)} is no location of a repository of its own"
            yield FieldError(f"{path}.location", problem, "name the repository too, and a location such as us")


def _submission_faults(cluster: Part, google: Google) -> Iterator[FieldError]:
    """Check that submitted reservations are future reservations of Terraform."""
    known = future_reservations(cluster)
    for index, name in enumerate(google.submitted):
        if name not in known:
            problem = f"{shown(name)} is no future reservation that Terraform creates"
            remedy = "name one of spec.cluster.reservations with a date as start, an end or a duration, and no TPUs"
            yield FieldError(f"spec.google.submitReservations[{index}]", problem, remedy)


# --- addresses ---


def _network_faults(network: Network) -> Iterator[FieldError]:
    """Check that ranges are CIDRs of accepted sizes and do not overlap."""
    found: dict[str, IPv4Network] = {}
    for field, text in _ranges(network).items():
        path = f"spec.google.network.{field}"
        cidr = cidr_of(text)
        if cidr is None:
            yield FieldError(path, f"{shown(text)} is no range of IPv4 addresses", "write it as 10.0.0.0/20")
            continue
        if field == "controlPlane" and cidr.prefixlen != _CONTROL_PLANE_PREFIX:
            yield FieldError(path, f"GKE's control planes have a /{_CONTROL_PLANE_PREFIX}", "write it as 172.16.0.0/28")
        if field == "nodes" and cidr.prefixlen > _NODES_PREFIX_MAX:
            yield FieldError(path, f"a subnet has a /{_NODES_PREFIX_MAX} at least", "write it as 10.0.0.0/20")
        other = next((name for name, known in found.items() if known.overlaps(cidr)), None)
        if other is not None:
            yield FieldError(path, f"{text} and {other} ({found[other]}) overlap", "give each a range of its own")
        found[field] = cidr
    for index, (_, text) in enumerate(network.authorized):
        if cidr_of(text) is None:
            path = f"spec.google.network.authorized[{index}].cidr"
            yield FieldError(path, f"{shown(text)} is no range of IPv4 addresses", "write it as 203.0.113.0/24")
        elif network.private_endpoint and ip_network(text).is_global:
            problem = f"{text} is public, and the control plane has no public address (privateEndpoint)"
            remedy = "list only private ranges; the DNS endpoint is reachable from anywhere, with permission"
            yield FieldError(f"spec.google.network.authorized[{index}].cidr", problem, remedy)


def _ranges(network: Network) -> dict[str, str]:
    return {
        "nodes": network.nodes,
        "pods": network.pods,
        "services": network.services,
        "controlPlane": network.control_plane,
    }


def cidr_of(text: str) -> IPv4Network | None:
    """Parse a range of IPv4 addresses; None if it is invalid."""
    try:
        found = ip_network(text)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Network) and "/" in text else None


def _room_faults(platform: PlatformModel, network: Network) -> Iterator[FieldError]:
    """Check that the maximum number of machines and their pods have addresses."""
    most_pods = {row["name"]: row.get("maxPodsPerNode", PODS) for row in platform.node_pools}
    nodes = pods = 0
    for supply in supplies(platform):
        nodes += supply.most
        pods += supply.most * _pod_addresses(most_pods.get(supply.name, PODS))
    for field, text, needed in (("nodes", network.nodes, nodes + _KEPT), ("pods", network.pods, pods)):
        cidr = cidr_of(text)
        if cidr is not None and cidr.num_addresses < needed:
            problem = f"{text} has {cidr.num_addresses} addresses, and {nodes} machines at most need {needed}"
            remedy = f"use a /{32 - (needed - 1).bit_length()} or larger, or make the pools smaller"
            yield FieldError(f"spec.google.network.{field}", problem, remedy)


def _pod_addresses(most: int) -> int:
    """Return how many pod addresses GKE gives a node: twice its maximum of pods, rounded up to a power of two."""
    return 1 << (2 * most - 1).bit_length()


# --- teams ---


def _team_faults(team: PlatformTeam, whose: str) -> Iterator[FieldError]:
    path, identity = f"{team.path}.serviceAccount", team.identity
    name, (shortest, longest) = identity.google_name, _ACCOUNT_LENGTHS
    if not (shortest <= len(name) <= longest and _ACCOUNT.fullmatch(name)):
        problem = f"{shown(name)} is no id of a Google service account"
        remedy = f"use {shortest} to {longest} small letters, digits and -"
        yield FieldError(f"{path}.googleName", problem, remedy)
    if whose != team.name:
        yield FieldError(f"{path}.googleName", f"{name} is taken: {whose} uses it", "use another")
    for index, role in enumerate(identity.roles):
        if role in _TOO_MUCH:
            problem = f"with {role} the team's pods could change everything in the project"
            yield FieldError(f"{path}.roles[{index}]", problem, "name the roles that their work needs")
        elif not _ROLE.fullmatch(role):
            yield FieldError(f"{path}.roles[{index}]", f"{shown(role)} is no role", "write it as roles/bigquery.user")
    for index, bucket in enumerate(identity.buckets):
        if not _BUCKET.fullmatch(bucket):
            problem = f"{shown(bucket)} is no name of a bucket"
            yield FieldError(f"{path}.buckets[{index}]", problem, f"write the name alone; {_BUCKET_WORDS}")
    if team.namespace.startswith(_MANAGED):
        yield FieldError(f"{team.path}.namespace", f"{team.namespace} is a namespace of GKE's own", "use another")
