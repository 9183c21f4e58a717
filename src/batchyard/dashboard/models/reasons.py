"""Short forms of pending reasons: the scarce resource, and how much of it is missing."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.amounts import readable_quantity
from batchyard.scheduling.messages import INSUFFICIENT_QUOTA_PATTERN

# The messages of batchyard.scheduling.messages.
_MAXIMUM: Final = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+), previously considered podsets requests \((\S+)\)"
    r" \+ current podset request \((\S+)\) > maximum capacity \((\S+)\)"
)
_PREFIX: Final = re.compile(r"(?:couldn't|failed to) assign flavors to pod set \S+: ")
_PREEMPTED: Final = re.compile(r"Preempted to accommodate a workload \(.*\) due to (.*); preemptor path: ")
_PREEMPTION: Final = re.compile(r"Pending the preemption of (\d+) workload\(s\)")
#: Longer texts are cut; the whole message is in the tooltip and on the Workload's page.
_LENGTH_MAX: Final = 120


#: Returns what a Workload lacks now, by resource and flavor: a quantity, '' if nothing, None if that is unknown.
MissingQuota: TypeAlias = Callable[[str, str], str | None]


class ShortReason(NamedTuple):
    """A pending reason in few words, and the resource that is scarce; '' if none is."""

    text: str
    scarce: str = ""

    def __str__(self) -> str:
        """Return the reason as one line, which starts with the scarce resource if there is one."""
        return f"{self.scarce}: {self.text}" if self.scarce else self.text


def shorten_reason(message: str, missing_now: MissingQuota | None = None) -> ShortReason:
    """Return the informative part of a pending reason; accelerators are named before other resources.

    The scheduler does not update a reason when only the usage of quota changes. `missing_now` can therefore replace
    the missing quantities in the message by the current ones.
    """
    missing = []
    for resource, flavor, old_quantity in INSUFFICIENT_QUOTA_PATTERN.findall(message):
        quantity = None if missing_now is None else missing_now(resource, flavor)
        quantity = old_quantity if quantity is None else quantity
        missing.append((resource, quantity and f"{readable_quantity(resource, quantity)} more needed in {flavor}"))
    too_large = [(match[1], _too_large_text(match)) for match in _MAXIMUM.finditer(message)]
    preemption = _PREEMPTION.search(message)
    suffix = f"; preempts {preemption[1]}" if preemption else ""
    rejections = [rejection for rejection in missing if rejection[1]] or too_large
    if missing and not rejections:
        return ShortReason(f"enough quota is free; waits for its turn{suffix}")
    if preempted := _PREEMPTED.match(message):
        return ShortReason(f"preempted due to {preempted[1]}")
    if not rejections:
        text = _PREFIX.sub("", message)
        return ShortReason(text if len(text) <= _LENGTH_MAX else f"{text[: _LENGTH_MAX - 1]}…")
    scarce = min(rejections, key=lambda rejection: "/" not in rejection[0])[0]
    details = [text for resource, text in rejections if resource == scarce]
    other_flavors_text = f", or {len(details) - 1} other flavors" if len(details) > 2 else ""
    text = " or ".join(details) if len(details) <= 2 else details[0] + other_flavors_text
    return ShortReason(f"{text}{suffix}", scarce)


def _too_large_text(match: re.Match[str]) -> str:
    requested, maximum = (readable_quantity(match[1], quantity) for quantity in (match[4], match[5]))
    return f"requests {requested}, at most {maximum} in {match[2]}"
