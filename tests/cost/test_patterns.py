"""Each regular expression of the sources takes linear time."""

import time

import pytest

from cost.patterns import Pattern, attacks, patterns

SHORT = 4_000
#: In seconds: a linear pattern takes far less for the long text, a quadratic one more.
LONG = 4 * SHORT
FLOOR = 0.015
RATIO = 6
PATTERNS = list(patterns())


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern.where for pattern in PATTERNS])
def test_pattern_takes_linear_time(pattern: Pattern) -> None:
    for prefix, pump, end in attacks(pattern.compiled):
        for function in pattern.functions:
            run = getattr(pattern.compiled, function)
            texts = [prefix + pump * (length // len(pump)) + end for length in (SHORT, LONG, 4 * LONG)]
            if _seconds(run, texts[1]) > FLOOR:
                # A short time is noisy: two steps must both be steep.
                shortest, long, longest = (min(_seconds(run, text) for _ in range(3)) for text in texts)
                reported = f"{pattern.where}: {function} of {prefix!r} + {pump!r} * n + {end!r}"
                times = f"{shortest:.4f} s at n, {long:.4f} s at 4n, {longest:.4f} s at 16n"
                assert long <= RATIO * shortest or longest <= RATIO * long, f"{reported}: {times}"


def _seconds(run, text: str) -> float:  # type: ignore[no-untyped-def]
    began = time.process_time()
    result = run(text)
    if run.__name__ == "finditer":
        list(result)
    return time.process_time() - began
