"""Which nodes changed since a moment: so that whoever remembers something of nodes looks only at those again."""


class Changes:
    """Names in the order of their last change; moments are numbers that only grow."""

    __slots__ = ("_last", "now")

    def __init__(self) -> None:
        self.now = 0
        self._last: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Something about a node changed, came or went."""
        self.now += 1
        self._last.pop(name, None)
        self._last[name] = self.now

    def since(self, moment: int) -> list[str]:
        """The nodes that changed after a moment, the latest first."""
        if moment == self.now:
            return []
        names = []
        for name, changed in reversed(self._last.items()):
            if changed <= moment:
                break
            names.append(name)
        return names
