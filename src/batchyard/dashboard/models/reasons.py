"""Short forms of pending reasons: the scarce resource, and how much of it is missing."""

import re
from typing import Final, NamedTuple

# The messages of batchyard.scheduling.messages.
_UNUSED: Final = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
_MAXIMUM: Final = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+), previously considered podsets requests \((\S+)\)"
    r" \+ current podset request \((\S+)\) > maximum capacity \((\S+)\)"
)
_PREFIX: Final = re.compile(r"couldn't assign flavors to pod set \S+: ")
_PREEMPTION: Final = re.compile(r"Pending the preemption of (\d+) workload\(s\)")
#: Longer texts are cut; the whole message is in the tooltip and on the Workload's page.
_LENGTH_MAX: Final = 120


class ShortReason(NamedTuple):
    """A pending reason in few words, and the resource that is scarce; '' if none is."""

    text: str
    scarce: str = ""


def shorten_reason(message: str) -> ShortReason:
    """Return the informative part of a pending reason; accelerators are named before other resources."""
    missing = [(match[1], f"{match[3]} more needed in {match[2]}") for match in _UNUSED.finditer(message)]
    too_large = [
        (match[1], f"requests {match[4]}, at most {match[5]} in {match[2]}") for match in _MAXIMUM.finditer(message)
    ]
    preemption = _PREEMPTION.search(message)
    suffix = f"; preempts {preemption[1]}" if preemption else ""
    rejections = missing or too_large
    if not rejections:
        text = _PREFIX.sub("", message)
        return ShortReason(text if len(text) <= _LENGTH_MAX else f"{text[: _LENGTH_MAX - 1]}…")
    scarce = min(rejections, key=lambda rejection: "/" not in rejection[0])[0]
    details = [text for resource, text in rejections if resource == scarce]
    others = f", or {len(details) - 1} other flavors" if len(details) > 2 else ""
    text = " or ".join(details) if len(details) <= 2 else details[0] + others
    return ShortReason(f"{text}{suffix}", scarce)
