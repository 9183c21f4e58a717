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
            long = prefix + pump * (LONG // len(pump)) + end
            taken = _seconds(run, long)
            if taken > FLOOR:
                long_best = min(taken, _seconds(run, long), _seconds(run, long))
                short = prefix + pump * (SHORT // len(pump)) + end
                short_best = min(_seconds(run, short) for _ in range(3))
                reported = f"{pattern.where}: {function} of {prefix!r} + {pump!r} * n + {end!r}"
                assert long_best <= RATIO * short_best, f"{reported}: {short_best:.4f} s at n, {long_best:.4f} s at 4n"


def _seconds(run, text: str) -> float:  # type: ignore[no-untyped-def]
    began = time.process_time()
    result = run(text)
    if run.__name__ == "finditer":
        list(result)
    return time.process_time() - began
