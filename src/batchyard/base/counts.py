"""Counts with their nouns, as texts for users."""


def pluralize(noun: str, count: int) -> str:
    """Return the noun unchanged if the count is one, else in the plural, such as pods, entries or losses."""
    if count == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def count_with_noun(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 pod`, `0 pods` or `1,200 pods`."""
    return f"{count:,} {pluralize(noun, count)}"


def select_verb(count: int, singular: str, plural: str) -> str:
    """Return `singular` if the count is one, else `plural`: the form of a verb whose subject has this count."""
    return singular if count == 1 else plural
