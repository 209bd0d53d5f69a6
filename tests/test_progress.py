"""A bar is shown where it helps: while a plan takes long, on a terminal, if tqdm is there."""

import sys
from types import SimpleNamespace

import pytest
from models import Kit, make_chain

from keras_remat import plan
from keras_remat.planning import progress


class Bars(list):
    """Stands for tqdm: notes the bars that are made."""

    def tqdm(self, **options):
        bar = SimpleNamespace(done=options["initial"], is_closed=False, **options)
        bar.update = lambda count: setattr(bar, "done", bar.done + count)
        bar.close = lambda: setattr(bar, "is_closed", True)
        self.append(bar)
        return bar


@pytest.fixture
def bars(monkeypatch):
    made = Bars()
    monkeypatch.setitem(sys.modules, "tqdm", made)
    monkeypatch.setattr(progress, "_AFTER", -1.0)
    monkeypatch.setenv("KERAS_REMAT_PROGRESS", "1")
    return made


def test_a_plan_that_takes_long(bars, target):
    model = make_chain(Kit(target), 8)
    plan(model)
    (bar,) = bars
    assert bar.is_closed and bar.done == bar.total == len(model.layers)
    assert bar.desc == "Tracing calls"


def test_what_is_short_shows_none(bars, monkeypatch):
    monkeypatch.setattr(progress, "_AFTER", float("inf"))
    assert list(progress.watched([1, 2], "numbers")) == [1, 2] and not bars


@pytest.mark.parametrize(
    "variable, is_terminal, count", [(None, True, 1), (None, False, 0), ("0", True, 0), ("1", False, 1)]
)
def test_where_it_is_shown(variable, is_terminal, count, bars, monkeypatch):
    monkeypatch.delenv("KERAS_REMAT_PROGRESS")
    if variable:
        monkeypatch.setenv("KERAS_REMAT_PROGRESS", variable)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: is_terminal))
    assert list(progress.watched([1, 2], "numbers")) == [1, 2]
    assert len(bars) == count


def test_it_is_closed_by_an_error(bars):
    with pytest.raises(ZeroDivisionError):
        for number in progress.watched([1, 0], "numbers"):
            1 / number
    assert bars[0].done == 1
    del number
    assert bars[0].is_closed


def test_without_tqdm(bars, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress.watched([1, 2], "numbers")) == [1, 2] and not bars
