"""A scrape is told part by part."""

from collections.abc import Callable, Iterator

import pytest

from batchyard.metrics.exposition import Exposition, Scrape, groups_in

LARGE = "x" * 100_000


def texts(*parts: str) -> Callable[[], Iterator[str]]:
    return lambda: iter(parts)


def test_small_texts_go_together_and_pauses_stay() -> None:
    exposition = Exposition([("kueue", texts("a", "", "b")), ("gpus", texts(LARGE, LARGE, "c"))])
    assert list(exposition.parts()) == ["", f"ab{LARGE}{LARGE}", "c"]


def test_groups_can_be_chosen() -> None:
    exposition = Exposition([("kueue", texts("a")), ("gpus", texts("b")), ("kueue", texts("c"))])
    assert "".join(exposition.parts(["kueue"])) == "ac"
    with pytest.raises(ValueError, match="not nodes"):
        exposition.parts(["kueue", "nodes"])


def test_a_query_may_name_several_groups() -> None:
    stated = [("collect[]", "kueue"), ("other", "x"), ("collect[]", "gpus")]
    assert groups_in({"collect[]": "kueue", "other": "x"}, stated) == ["kueue", "gpus"]
    assert groups_in({}, []) == []


def test_others_have_their_turn_between_parts() -> None:
    waiting: list[Callable[[], None]] = []
    scrape = Scrape(iter(["a", "", "b"]), waiting.append)
    taken: list[object] = []
    scrape.on_news = lambda: taken.extend(scrape.take())
    taken.extend(scrape.take())
    assert (taken, list(scrape.take())) == ([b"a"], [])
    while waiting:
        waiting.pop(0)()
    assert (taken, scrape.is_over) == ([b"a", b"b"], True)


def test_who_goes_is_told_no_more() -> None:
    scrape = Scrape(iter(["a", "b"]), lambda _then: None)
    scrape.end()
    assert (scrape.is_over, list(scrape.take())) == (True, [])
