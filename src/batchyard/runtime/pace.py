"""How long containers take to start in a simulated cluster: to be pulled, unpacked and let go.

Drawn for each pod by the seed and its uid, from what the Cluster says (`times.podStart`).
"""

from collections.abc import Callable

from batchyard.api.meta import Obj
from batchyard.base.chance import triangular
from batchyard.base.instant import Duration
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.times import POD_START, spread_of
from batchyard.runtime.pod_life import Pace


def pace_of(cluster: Obj | None, seed: int) -> Pace:
    """The pace of a cluster; in a world without one everything starts at once."""
    return Pace() if cluster is None else Pace(_start_delay(cluster, seed))


def _start_delay(cluster: Obj, seed: int) -> Callable[[Obj], Duration]:
    catalog = catalog_of(cluster)
    spread = spread_of(POD_START, catalog.machine(""), cluster, catalog)  # the same on every machine

    def delay(pod: Obj) -> Duration:
        return triangular(*spread, seed, POD_START, pod["metadata"]["uid"])

    return delay
