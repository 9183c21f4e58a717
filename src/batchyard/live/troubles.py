"""What is told of lists and watches that fail: each trouble once for as long as it lasts, and that it is over.

A kind that is not served is no trouble that passes: all else goes on beside it.
"""

from collections.abc import Iterable

from batchyard.client.informer import Informer


class Troubles:
    """See the module. `remedy` is said where a kind is not served."""

    def __init__(self, remedy: str = "") -> None:
        self._remedy = remedy
        #: What was told, and may be so still.
        self._told: dict[str, None] = {}

    def news(self, informer: Informer, all_of_them: Iterable[Informer]) -> str:
        """What is to be told now that one of them has heard something; '' if nothing."""
        if informer.trouble:
            if informer.trouble in self._told:
                return ""
            self._told[informer.trouble] = None
            return self._in_words(informer)
        if not self._told:
            return ""
        lasting = {each.trouble: each.is_served for each in all_of_them if each.trouble}
        if any(lasting.values()) or self._told.keys() == lasting.keys():
            return ""
        self._told = dict.fromkeys(lasting)
        return "goes on"

    def _in_words(self, informer: Informer) -> str:
        if informer.is_served:
            return informer.trouble
        told = f"{informer.trouble}: there are none for it, and it looks again from time to time"
        return f"{told}; {self._remedy}" if self._remedy else told
