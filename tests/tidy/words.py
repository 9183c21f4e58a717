"""Words that no committed text may contain: to-do notes, local paths, hosts of package registries."""

import re
from collections.abc import Iterator

from tidy.source import SourceFile, Violation

_ALONE = "name it relative to the repository"
_REGISTRY = "leave the registry to the environment"

# The brackets keep the patterns from finding themselves.
PATTERNS = (
    (re.compile(r"\b(?:T[O]DO|FIXM[E]|XX[X]|HAC[K])\b"), "do it now, or write down the decision"),
    (re.compile(r"(?<![\w.~-])/(?:wor[k]/|roo[t]/[.]|hom[e]/\w+/|tm[p]/wor[k])"), _ALONE),
    (re.compile(r"\b(?:pypi|pythonhosted|npmjs|crates|rubygems|anaconda|maven)[.](?:org|com|io)\b"), _REGISTRY),
    (re.compile(r"--(?:extra-)?index[-]url\b|\bproxy[.]golang[.]org\b"), _REGISTRY),
    (re.compile(r"\b[Ii]ssu[e]\s+#?\d"), "say the reason itself"),
)


def banned_words(file: SourceFile) -> Iterator[Violation]:
    """Yield lines that contain such a word."""
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(file.text):
            line = file.text.count("\n", 0, match.start()) + 1
            what = f"the text says {match[0].strip()!r}"
            yield Violation(file.path, line, "banned-word", match[0], what, instead)


def debris(file: SourceFile) -> Iterator[Violation]:
    """Yield leftovers of debugging, and suppressed checks without a rule code."""
    for number, line in enumerate(file.text.splitlines(), 1):
        for pattern, what, instead in _DEBRIS:
            if pattern.search(line):
                yield Violation(file.path, number, "debris", line.strip(), what, instead)


_DEBRIS = (
    (re.compile(r"#\s*noq[a]\s*$"), "silences every rule of the line", "name the rule"),
    (re.compile(r"#\s*type:\s*ignor[e]\s*(?:#|$)"), "silences every type error of the line", "name the error"),
    (re.compile(r"^\s*(?:breakpoin[t]\(|import (?:i?pd[b]|pprin[t])\b|i[c]\()"), "debugging left behind", "remove it"),
    (re.compile(r"^(?:<{7}|>{7}) "), "an unresolved merge", "resolve it"),
)
