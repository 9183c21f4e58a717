"""Uids and hashes derived from a seed, so that equal runs create equal ones."""

import hashlib


def uid_for(seed: int, *parts: str) -> str:
    """Return a version-4-shaped UUID derived from the seed and the parts."""
    digest = hashlib.blake2b("\0".join((str(seed), *parts)).encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of a text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
