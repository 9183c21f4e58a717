"""What a law is: it looks at every change, and at the world when an instant is over, and reports what broke it."""

from collections.abc import Sequence
from typing import NamedTuple

from batchyard.api.meta import Key
from batchyard.base.instant import Duration, seconds
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.ledger import Ledger
from batchyard.sim.checkers.story import Stories
from batchyard.sim.world import World


class Violation(NamedTuple):
    """A broken law: which, when, what happened, and the story of the objects."""

    law: str
    at: Duration
    what: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        """Everything, the story line by line."""
        return "\n    ".join([f"{seconds(self.at):g}s {self.law}: {self.what}", *self.story])


class Scene:
    """What laws look at, and where they report."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = Ledger()
        self.stories = Stories()
        self.violations: list[Violation] = []

    def violate(self, law: "Law", what: str, *keys: Key) -> None:
        """Report a broken law, with the story of these objects."""
        self.violations.append(Violation(law.name, self.world.now(), what, self.stories.of(*keys)))


class Law:
    """One law. Each method is a moment to look; most laws need one or two of them."""

    name = ""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @property
    def ledger(self) -> Ledger:
        """What the objects say."""
        return self.scene.ledger

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left to happen in the world."""
        return not self.scene.world.kernel.pending()

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Changes are about to be told; the ledger is as before all of them."""

    def look(self, event: WatchEvent) -> None:
        """One change; the ledger is as before it."""

    def end(self, batch: Sequence[WatchEvent]) -> None:
        """All changes of a delivery have been told; the ledger has them."""

    def settle(self) -> None:
        """An instant is over."""

    def finish(self) -> None:
        """The run is over."""

    def violate(self, what: str, *keys: Key) -> None:
        """Report that the law was broken."""
        self.scene.violate(self, what, *keys)
