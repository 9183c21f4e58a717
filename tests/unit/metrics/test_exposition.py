"""A scrape is written part by part."""

from collections.abc import Callable, Iterator

import pytest

from batchyard.metrics.exposition import Exposition, Scrape, selected_groups

LARGE = "x" * 100_000


def texts(*parts: str) -> Callable[[], Iterator[str]]:
    return lambda: iter(parts)


def test_exposition_joins_small_texts_and_keeps_pauses() -> None:
    exposition = Exposition([("kueue", texts("a", "", "b")), ("gpus", texts(LARGE, LARGE, "c"))])
    assert list(exposition.text_chunks()) == ["", f"ab{LARGE}{LARGE}", "c"]


def test_exposition_filters_by_group_and_rejects_unknown_group() -> None:
    exposition = Exposition([("kueue", texts("a")), ("gpus", texts("b")), ("kueue", texts("c"))])
    assert "".join(exposition.text_chunks(["kueue"])) == "ac"
    with pytest.raises(ValueError, match="not nodes"):
        exposition.text_chunks(["kueue", "nodes"])


def test_groups_in_returns_every_collect_parameter() -> None:
    stated = [("collect[]", "kueue"), ("other", "x"), ("collect[]", "gpus")]
    assert selected_groups({"collect[]": "kueue", "other": "x"}, stated) == ["kueue", "gpus"]
    assert selected_groups({}, []) == []


def test_scrape_yields_to_event_loop_between_parts() -> None:
    waiting: list[Callable[[], None]] = []
    scrape = Scrape(iter(["a", "", "b"]), waiting.append)
    received: list[object] = []
    scrape.on_new_data = lambda: received.extend(scrape.take_buffered_data())
    received.extend(scrape.take_buffered_data())
    assert (received, list(scrape.take_buffered_data())) == ([b"a"], [])
    while waiting:
        waiting.pop(0)()
    assert (received, scrape.is_over) == ([b"a", b"b"], True)


def test_ended_scrape_returns_no_more_parts() -> None:
    scrape = Scrape(iter(["a", "b"]), lambda _then: None)
    scrape.end()
    assert (scrape.is_over, list(scrape.take_buffered_data())) == (True, [])
