"""CustomResourceDefinitions of kinds that controllers look at and a server does not serve."""

from collections.abc import Sequence

from batchyard.live.rest_wire import HttpTransport


async def install(wire: HttpTransport, kinds: Sequence[str]) -> Sequence[str]:
    """Install those that are missing; what was done, in lines."""
    return ()
