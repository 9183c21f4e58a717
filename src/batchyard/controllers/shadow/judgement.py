"""When both have parted, and what is said of it: the third step of a pursuit."""

from batchyard.base.instant import Instant
from batchyard.controllers.shadow.findings import Finding
from batchyard.controllers.shadow.matching import Signature, signature_of
from batchyard.controllers.shadow.observed import Preempted
from batchyard.controllers.shadow.partings import Seen, not_done, not_foreseen
from batchyard.controllers.shadow.pursuit import Pursuit
from batchyard.core.decisions import Decision


class Judgement(Pursuit):
    """A pursuit that says when both have parted."""

    @property
    def is_overdue(self) -> bool:
        """Whether one of both has done for too long what the other has not."""
        return self._overdue_theirs() is not None or self._overdue_ours() is not None

    def overdue_since(self) -> Instant:
        """From when on the first parting is one, unless there is more to be told of before."""
        theirs, ours = self._overdue_theirs(), self._overdue_ours()
        if theirs is not None:
            return self._due(theirs)
        if ours is None:
            return self._now
        return self._since(self._stuck[ours[0]].first[signature_of(ours[1])]) + self._terms.patience

    def overdue(self) -> Signature | None:
        """What the model has decided, and the other has not done for too long; None if that is nothing."""
        found = self._overdue_ours()
        return None if found is None else signature_of(found[1])

    def awaits(self, signature: Signature) -> bool:
        """Whether the model has decided that, and the other has yet to do it."""
        return any(signature in stuck.first for stuck in self._stuck.values())

    def part(self) -> None:
        """Tell of the first parting, and go on from what the other did."""
        theirs, ours = self._overdue_theirs(), self._overdue_ours()
        cause = None if theirs is None else self._cause_of(theirs)
        if cause is not None:
            self._part_by_ours(*cause)
        elif theirs is not None:
            self._part_by_theirs(theirs)
        elif ours is not None:
            self._part_by_ours(*ours)

    def _cause_of(self, number: int) -> tuple[str, Decision] | None:
        """What the other left undone before it did what was not foreseen: the second may come of the first."""
        item = self.backlog.items[number]
        tree, observed = self._tree_of(item), item.change.decision
        stuck = self._stuck.get(tree)
        for decision in stuck.decisions if stuck is not None else ():
            first = stuck.first.get(signature_of(decision)) if stuck is not None else None
            about = decision.head.workload
            is_same = observed is not None and (observed.workload == about.key or observed[-1] == about.uid)
            since = None if first is None else self._terms.since(first, item.came)
            if since is not None and since < item.came - self._terms.settle and not is_same:
                return None if self._done(decision) is not None else (tree, decision)
        return None

    def _overdue_theirs(self) -> int | None:
        """A decision of the other, by number, that the model has not made for too long."""
        for number in self.backlog.decided:
            if self.backlog.is_front(number) and self._now >= self._due(number):
                return number
        return None

    def _overdue_ours(self) -> tuple[str, Decision] | None:
        """A decision of the model, with its tree, that the other has not made for too long."""
        for tree, stuck in self._stuck.items():
            for decision in stuck.decisions:
                first = stuck.first.get(signature_of(decision))
                is_late = first is not None and self._now - self._since(first) >= self._terms.patience
                if is_late and self._done(decision) is None:
                    return tree, decision
        return None

    def _part_by_theirs(self, number: int) -> None:
        """The other has done what the model would not."""
        item = self.backlog.items[number]
        observed, tree = item.change.decision, self._tree_of(item)
        assert observed is not None, "it is one of those with a decision"
        finding = not_foreseen(Seen(observed, item.came), self.model, self._names, self._now)
        numbers = [number]
        if isinstance(observed, Preempted):  # one parting, however many victims it has
            numbers = [each for each in self.backlog.decided if self._is_of_same(each, observed)]
        for each in numbers:
            self._show(each)
        self._found(finding)
        self._stuck.pop(tree, None)

    def _is_of_same(self, number: int, observed: Preempted) -> bool:
        other = self.backlog.items[number].change.decision
        return isinstance(other, Preempted) and other.by == observed.by and self.backlog.is_front(number)

    def _part_by_ours(self, tree: str, decision: Decision) -> None:
        """The model would do what the other has not done."""
        key = decision.head.workload.key
        self.missed[key] = signature_of(decision)
        since = self._stuck.pop(tree).first.get(self.missed[key], self._now)
        self._found(not_done(decision, self.model, since, self._now))

    def _found(self, finding: Finding) -> None:
        self.counts.parted[finding.parting.value] = self.counts.parted.get(finding.parting.value, 0) + 1
        self.findings.append(finding)
