"""What answers look up: they are worked out from what is known, and again once what they lacked has been asked for."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchyard.api.meta import Key, Obj


class Question(NamedTuple):
    """An object by its key, or the pods of a Job by the Job's uid."""

    key: Key
    owner: str = ""


class Unknown(Exception):  # noqa: N818 - what it is
    """Somebody looked up what is not known yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(str(question))
        self.question = question


class Lookups:
    """What is known for one answer; Unknown for all else."""

    def __init__(self, namespace: str, known: Mapping[Question, Sequence[Obj]]) -> None:
        self._namespace = namespace
        self._known = known

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        found = self._found(Question(key))
        return found[0] if found else None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """The pods of a Job."""
        return self._found(Question(Key("", self._namespace, ""), uid))

    def _found(self, question: Question) -> Sequence[Obj]:
        if question not in self._known:
            raise Unknown(question)
        return self._known[question]
