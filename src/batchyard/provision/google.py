"""Google Cloud resources of a platform on GKE: their names, and the validation of platform fields for Google Cloud."""

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_network
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import format_value
from batchyard.base.counts import count_with_noun
from batchyard.cloud.catalog.nodes import DEFAULT_PODS_PER_NODE
from batchyard.provision.images import image_recipes
from batchyard.provision.model import GoogleSettings, Network, Part, PlatformModel, PlatformTeam
from batchyard.provision.system_pods import machine_supplies
from batchyard.provision.terraform.files import more_repositories
from batchyard.provision.terraform.pools import HYPERDISK, future_reservations, reservations


def describe_google_resources(platform: PlatformModel) -> Mapping[str, Sequence[str]]:
    """Return descriptions of the platform's Google Cloud resources, by resource type; empty if it is not on GKE."""
    google, cluster, name = platform.google, platform.cluster, platform.name
    if google is None or cluster is None:
        return {}
    account_names = [team.identity.google_name for team in platform.teams]
    reservation_names = reservations(cluster)
    future_names = future_reservations(cluster)
    declared_reservation_names = [row["name"] for row in cluster["spec"].get("reservations") or ()]
    descriptions_by_type = {
        "network": [f"{name} with a subnet, a router and Cloud NAT"],
        "cluster": [f"{name} in {platform.region}, private, channel {google.release_channel}"],
        "node pool": [row["name"] for row in platform.node_pools],
        "reservation": list(reservation_names),
        "future reservation, draft": [each for each in future_names if each not in google.submitted_reservations],
        "future reservation, submitted": [each for each in future_names if each in google.submitted_reservations],
        "booked with Google, not created by Terraform": [
            each for each in declared_reservation_names if each not in reservation_names and each not in future_names
        ],
        "service account": ["the nodes' own", *account_names],
        "repository": [google.repository, *more_repositories(platform, google)],
        "image": [recipe.short_name for recipe in image_recipes(platform)],
        "dashboard": ["GPUs"] if google.dashboards else [],
    }
    return {resource_type: texts for resource_type, texts in descriptions_by_type.items() if texts}


# Google Cloud's constraints on a platform: names, address ranges, accounts, labels.
#
# Sources: the APIs of the Resource Manager (projects), Identity and Access Management (service accounts, roles), Cloud
# Storage (buckets), Artifact Registry (repositories) and Compute Engine (labels, subnets, disks of machine families);
# GKE's documents on address ranges and on the number of pods per node.


_PROJECT_PATTERN: Final = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_ACCOUNT_PATTERN: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ACCOUNT_LENGTHS: Final = (6, 30)
_BUCKET_PATTERN: Final = re.compile(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
_REPOSITORY_PATTERN: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_REPOSITORY_REMEDY: Final = "use up to 63 lowercase letters, digits and -, a letter first"
_LOCATION_PATTERN: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
#: The path of an image in a repository, with a tag; and an image reference in a registry.
_IMAGE_PATTERN: Final = re.compile(r"[a-z0-9]+(?:[._/-][a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_IMAGE_REFERENCE_PATTERN: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")
_GIT_PATTERN: Final = re.compile(r"https://[A-Za-z0-9._~:/@%+-]+\.git(?:#[A-Za-z0-9._/@+-]*(?::[A-Za-z0-9._/@+-]*)?)?")
_ROLE_PATTERN: Final = re.compile(r"((projects|organizations)/[^/\s]+/)?roles/[A-Za-z0-9_.]+")
_FORBIDDEN_ROLES: Final = frozenset({"roles/owner", "roles/editor"})
_LABEL_LENGTH_MAX: Final = 63
_CONTROL_PLANE_PREFIX: Final = 28
_NODES_PREFIX_MAX: Final = 29
#: The number of addresses that Google reserves in a subnet.
_RESERVED_ADDRESSES: Final = 4
#: Prefixes of namespaces that GKE manages.
_GKE_NAMESPACE_PREFIXES: Final = ("gke-managed-", "gmp-")
#: Families that boot only from Persistent Disks.
_NO_HYPERDISK: Final = frozenset({"a2", "c2", "c2d", "e2", "g2", "n1", "n2", "n2d", "t2a", "t2d"})
_BUCKET_REMEDY: Final = "use 3 to 63 lowercase letters, digits, -, _ and ., a letter or digit first and last"


def google_errors(platform: PlatformModel, google: GoogleSettings) -> Iterator[FieldError]:
    """Yield the errors of platform fields that violate constraints of Google Cloud."""
    if platform.cluster is None:
        yield FieldError("spec.cluster", "Required value", "describe the GKE cluster to create")
        return
    yield from _name_errors(platform, google)
    yield from _label_errors(google)
    yield from _disk_errors(platform, google)
    yield from _image_errors(google)
    yield from _submission_errors(platform.cluster, google)
    network_errors = list(_network_errors(google.network))
    yield from network_errors or _address_space_errors(platform, google.network)
    account_owners = dict.fromkeys(platform_accounts(platform.name), "the platform itself")
    for team in platform.teams:
        yield from _team_errors(team, account_owners.setdefault(team.identity.google_name, team.name))


def platform_accounts(platform_name: str) -> list[str]:
    """Return the IDs of the Google service accounts that Terraform creates for the nodes and for Cloud Build."""
    return [f"{platform_name[:24].removesuffix('-')}-{role}" for role in ("nodes", "build")]


def _name_errors(platform: PlatformModel, google: GoogleSettings) -> Iterator[FieldError]:
    if google.project and not _PROJECT_PATTERN.fullmatch(google.project):
        remedy = "use the project ID: 6 to 30 lowercase letters, digits and -, a letter first"
        yield FieldError("spec.google.project", f"{format_value(google.project)} is not a valid project ID", remedy)
    bucket_name = google.state_bucket or (f"{google.project}-{platform.name}-state" if google.project else "")
    if bucket_name and not _BUCKET_PATTERN.fullmatch(bucket_name):
        problem = f"{format_value(bucket_name)} is not a valid bucket name"
        yield FieldError("spec.google.state.bucket", problem, _BUCKET_REMEDY)
    if not _REPOSITORY_PATTERN.fullmatch(google.repository):
        problem = f"{format_value(google.repository)} is not a valid repository name"
        yield FieldError("spec.google.repository", problem, _REPOSITORY_REMEDY)


def _label_errors(google: GoogleSettings) -> Iterator[FieldError]:
    for key, value in google.labels.items():
        path = f"spec.google.labels[{key}]"
        if not (_is_label_value(key) and key[0].isalpha()):
            yield FieldError(
                path,
                f"{format_value(key)} is not a valid label key",
                "use lowercase letters, digits, - and _, a letter first",
            )
        elif not _is_label_value(value) and value:
            problem = f"{format_value(value)} is not a valid label value"
            yield FieldError(path, problem, "use lowercase letters, digits, - and _")


def _is_label_value(text: str) -> bool:
    has_valid_characters = all(each in "-_" or (each.isalnum() and each == each.lower()) for each in text)
    return 0 < len(text) <= _LABEL_LENGTH_MAX and has_valid_characters


def _disk_errors(platform: PlatformModel, google: GoogleSettings) -> Iterator[FieldError]:
    if google.disk_type != HYPERDISK:
        return
    pool_names = [row["name"] for row in platform.node_pools if row["machineType"].partition("-")[0] in _NO_HYPERDISK]
    if pool_names:
        problem = f"the machine types of pools {', '.join(pool_names)} cannot boot from {HYPERDISK}"
        remedy = "use pd-balanced: machine types that require Hyperdisk get it anyway"
        yield FieldError("spec.google.nodes.diskType", problem, remedy)


def _image_errors(google: GoogleSettings) -> Iterator[FieldError]:
    for index, image in enumerate(google.images):
        path = f"spec.google.images[{index}]"
        if not _IMAGE_PATTERN.fullmatch(image.name):
            problem = f"{format_value(image.name)} is not an image name with a tag"
            yield FieldError(f"{path}.name", problem, "use the form trainer:v1")
        if bool(image.copy_from) == bool(image.build_from):
            problem = f"image {image.name} must have exactly one source"
            yield FieldError(path, problem, "set either copyFrom (an image) or buildFrom (a git repository)")
        elif image.copy_from and not _IMAGE_REFERENCE_PATTERN.fullmatch(image.copy_from):
            yield FieldError(
                f"{path}.copyFrom",
                f"{format_value(image.copy_from)} is not an image reference",
                "use the form ghcr.io/a/b:v1",
            )
        elif image.build_from and not _GIT_PATTERN.fullmatch(image.build_from):
            remedy = "use the form https://host/path.git#REF:FOLDER"
            problem = f"{format_value(image.build_from)} is not a git repository URL"
            yield FieldError(f"{path}.buildFrom", problem, remedy)
        if image.repository and not _REPOSITORY_PATTERN.fullmatch(image.repository):
            problem = f"{format_value(image.repository)} is not a valid repository name"
            yield FieldError(f"{path}.repository", problem, _REPOSITORY_REMEDY)
        if image.location and not image.repository:
            yield FieldError(f"{path}.location", "location is set, but repository is not", "set repository too")
        if image.location and not _LOCATION_PATTERN.fullmatch(image.location):
            problem = f"{format_value(image.location)} is not a valid location"
            yield FieldError(f"{path}.location", problem, "use a location such as us")


def _submission_errors(cluster: Part, google: GoogleSettings) -> Iterator[FieldError]:
    future_names = future_reservations(cluster)
    for index, name in enumerate(google.submitted_reservations):
        if name not in future_names:
            problem = f"{format_value(name)} is not a future reservation that Terraform creates"
            remedy = "name a reservation of spec.cluster.reservations with a start date, an end or duration and no TPUs"
            yield FieldError(f"spec.google.submitReservations[{index}]", problem, remedy)


def _network_errors(network: Network) -> Iterator[FieldError]:
    known_ranges: dict[str, IPv4Network] = {}
    for field, text in _address_ranges(network).items():
        path = f"spec.google.network.{field}"
        cidr = parse_cidr(text)
        if cidr is None:
            yield FieldError(path, f"{format_value(text)} is not an IPv4 CIDR", "use the form 10.0.0.0/20")
            continue
        if field == "controlPlane" and cidr.prefixlen != _CONTROL_PLANE_PREFIX:
            yield FieldError(path, f"{text} must be a /{_CONTROL_PLANE_PREFIX} range", "use the form 172.16.0.0/28")
        if field == "nodes" and cidr.prefixlen > _NODES_PREFIX_MAX:
            problem = f"{text} is too small: at least a /{_NODES_PREFIX_MAX} range is required"
            yield FieldError(path, problem, "use the form 10.0.0.0/20")
        other_name = next((name for name, known_range in known_ranges.items() if known_range.overlaps(cidr)), None)
        if other_name is not None:
            problem = f"{text} overlaps {other_name} ({known_ranges[other_name]})"
            yield FieldError(path, problem, "use separate ranges")
        known_ranges[field] = cidr
    for index, (_, text) in enumerate(network.authorized_networks):
        if parse_cidr(text) is None:
            path = f"spec.google.network.authorized[{index}].cidr"
            yield FieldError(path, f"{format_value(text)} is not an IPv4 CIDR", "use the form 203.0.113.0/24")
        elif network.private_endpoint and ip_network(text).is_global:
            problem = f"{text} is a public range, but the control plane has no public address (privateEndpoint)"
            remedy = "list only private ranges; the DNS endpoint is reachable from anywhere, with permission"
            yield FieldError(f"spec.google.network.authorized[{index}].cidr", problem, remedy)


def _address_ranges(network: Network) -> dict[str, str]:
    return {
        "nodes": network.nodes,
        "pods": network.pods,
        "services": network.services,
        "controlPlane": network.control_plane,
    }


def parse_cidr(text: str) -> IPv4Network | None:
    """Return the network of an IPv4 CIDR such as 10.0.0.0/20; None if the text is not a valid one."""
    try:
        network = ip_network(text)
    except ValueError:
        return None
    return network if isinstance(network, IPv4Network) and "/" in text else None


def _address_space_errors(platform: PlatformModel, network: Network) -> Iterator[FieldError]:
    max_pods_by_pool = {row["name"]: row.get("maxPodsPerNode", DEFAULT_PODS_PER_NODE) for row in platform.node_pools}
    node_count = pod_address_count = 0
    for supply in machine_supplies(platform):
        node_count += supply.maximum
        max_pods = max_pods_by_pool.get(supply.name, DEFAULT_PODS_PER_NODE)
        pod_address_count += supply.maximum * _pod_address_count(max_pods)
    node_range = ("nodes", network.nodes, node_count + _RESERVED_ADDRESSES)
    for field, text, minimum in (node_range, ("pods", network.pods, pod_address_count)):
        cidr = parse_cidr(text)
        if cidr is not None and cidr.num_addresses < minimum:
            addresses_text = count_with_noun(cidr.num_addresses, "address")
            machines_text = f"up to {count_with_noun(node_count, 'machine')}"
            problem = f"{text} has {addresses_text}, but {minimum:,} are needed for {machines_text}"
            remedy = (
                f"use a /{32 - (minimum - 1).bit_length()} or larger range, or reduce the maximum size of the pools"
            )
            yield FieldError(f"spec.google.network.{field}", problem, remedy)


def _pod_address_count(max_pods: int) -> int:
    """Return how many addresses GKE reserves for a node's pods: twice `max_pods`, rounded up to a power of two."""
    return 1 << (2 * max_pods - 1).bit_length()


def _team_errors(team: PlatformTeam, account_owner: str) -> Iterator[FieldError]:
    path, identity = f"{team.path}.serviceAccount", team.identity
    name, (min_length, max_length) = identity.google_name, _ACCOUNT_LENGTHS
    if not (min_length <= len(name) <= max_length and _ACCOUNT_PATTERN.fullmatch(name)):
        problem = f"{format_value(name)} is not a valid Google service account ID"
        remedy = f"use {min_length} to {max_length} lowercase letters, digits and -"
        yield FieldError(f"{path}.googleName", problem, remedy)
    if account_owner != team.name:
        yield FieldError(f"{path}.googleName", f"{account_owner} already uses the account {name}", "use another name")
    for index, role in enumerate(identity.roles):
        if role in _FORBIDDEN_ROLES:
            problem = f"{role} would let the team's pods change everything in the project"
            yield FieldError(f"{path}.roles[{index}]", problem, "list only the roles that the team's Jobs need")
        elif not _ROLE_PATTERN.fullmatch(role):
            yield FieldError(
                f"{path}.roles[{index}]",
                f"{format_value(role)} is not a valid IAM role",
                "use the form roles/bigquery.user",
            )
    for index, bucket in enumerate(identity.buckets):
        if not _BUCKET_PATTERN.fullmatch(bucket):
            problem = f"{format_value(bucket)} is not a valid bucket name"
            yield FieldError(f"{path}.buckets[{index}]", problem, f"use only the bucket name; {_BUCKET_REMEDY}")
    if team.namespace.startswith(_GKE_NAMESPACE_PREFIXES):
        problem = f"GKE manages the namespace {team.namespace}"
        yield FieldError(f"{team.path}.namespace", problem, "use another namespace")
