"""What removing a platform consists of, in order, and what it leaves behind."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchyard.plan.model import Platform
from batchyard.plan.render import ENGINE
from batchyard.plan.steps import cluster, google, obsolete
from batchyard.plan.steps.cluster import Reached
from batchyard.plan.steps.create import where
from batchyard.plan.steps.manifests import Part, parts
from batchyard.plan.steps.model import Consent, Probe, Step, run
from batchyard.plan.steps.readings import prints_anything
from batchyard.plan.steps.tools import KUBECTL

#: What outlives a cluster: load balancers, disks.
_OUTLIVES = ("services", "persistentvolumeclaims")


def destroy(
    platform: Platform, files: Mapping[str, str], reached: Reached, *, is_unprotecting: bool = False
) -> list[Step]:
    """The steps that remove a platform again; `reached`: how its cluster is reached.

    A cluster on GKE that is protected from deletion is so until somebody takes that away: `is_unprotecting`.
    """
    if platform.google is not None:
        return _on_google(platform, reached, parts(platform, files), google.protection(is_unprotecting))
    all_parts = parts(platform, files)
    steps = [
        KUBECTL.step(),
        cluster.api_server(reached),
        cluster.what_runs(reached),
        obsolete.told(reached, platform, all_parts, "; it goes too"),
        _asking(f"This deletes {platform.name} from {where(reached)}: {_doomed(platform, all_parts)}."),
        cluster.drained(reached, _queue_names(platform)),
        *cluster.emptied(reached, namespaces(all_parts)),
        obsolete.destroyed(reached, platform, all_parts),
    ]
    for part in reversed(all_parts):
        step = cluster.deleted(reached, part)
        steps.append(replace(step, only_if=cluster.nobody_else(reached)) if part.path == ENGINE else step)
    return steps


def _on_google(platform: Platform, reached: Reached, all_parts: Sequence[Part], protection: Step) -> list[Step]:
    """What runs goes first: nodes and disks go with it that Terraform knows nothing of. Then Terraform's own."""
    made = platform.google
    assert made is not None, "it is on GKE"
    there = Probe(
        run(
            *("gcloud", "container", "clusters", "list", f"--project={made.project}", f"--location={platform.region}"),
            *(f"--filter=name={platform.name}", "--format=value(name)"),
        ),
        prints_anything("the cluster is not there"),
    )
    seen = [
        google.credentials(platform, made, reached.kubeconfig, reached.ask),
        cluster.api_server(reached),
        cluster.what_runs(reached),
        obsolete.told(reached, platform, all_parts, "; it goes too"),
    ]
    emptied = [
        cluster.drained(reached, _queue_names(platform)),
        *cluster.emptied(reached, namespaces(all_parts), _OUTLIVES),
        obsolete.destroyed(reached, platform, all_parts),
        cluster.scaled_down(reached, _pools_that_stay(platform)),
    ]
    doomed = f"all that Terraform made for it, the cluster above all: {_doomed(platform, all_parts)}"
    return [
        *google.tools(),
        *google.who(made.project),
        google.state_is_there(platform, made),
        google.initialized(),
        *([] if protection.commands else [protection]),
        *(replace(step, only_if=there) for step in seen),
        _asking(f"This deletes {platform.name} in {made.project}, and {doomed}."),
        *(replace(step, only_if=there) for step in emptied),
        *([protection] if protection.commands else []),
        google.destroyed(made),
    ]


def _asking(question: str) -> Step:
    """A step that only asks: before anything is deleted, and again where one goes on."""
    return Step("confirm", "ask whether to delete it", consent=Consent(question, destroys=True))


def _pools_that_stay(platform: Platform) -> list[str]:
    """The pools that never have no node."""
    return [pool["name"] for pool in platform.node_pools if _least_nodes(pool)]


def _least_nodes(pool: Mapping[str, Any]) -> int:
    scaling = pool.get("autoscaling")
    least = pool.get("nodeCount", 0) if scaling is None else scaling.get("totalMin", scaling.get("min", 0))
    return int(least)


def _queue_names(platform: Platform) -> list[str]:
    return [queue.name for queue in platform.queues]


def namespaces(all_parts: Sequence[Part]) -> list[str]:
    """The namespaces of teams. That of the engine is none of them: what has finalizers goes only while it runs."""
    return [name for part in all_parts if part.path != ENGINE for name in part.named("Namespace")]


def _doomed(platform: Platform, all_parts: Sequence[Part]) -> str:
    """What is lost, in words."""
    count = len(platform.queues)
    lost = f"{count} ClusterQueue{'' if count == 1 else 's'}"
    names = namespaces(all_parts)
    return f"{lost}, and all that is in the namespaces {', '.join(names)}" if names else lost
