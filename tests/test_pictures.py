"""Timelines are those of the plans, in any process, and pictures show them."""

import sys

import pytest
from models import Kit, make_chain, make_skips

from keras_remat import Plan, RematError, plan
from keras_remat.planning.timeline import AGAIN, FORWARD, GRADIENT, PARTS


@pytest.fixture
def found(target):
    return plan(make_chain(Kit(target), 16), batch_size=100)


@pytest.mark.parametrize("make", [make_chain, make_skips])
def test_timelines_are_of_the_plan(make, target):
    model = make(Kit(target))
    chosen = plan(model, batch_size=100)
    before, after = chosen.plain_timeline, chosen.timeline
    assert max(before.held) == chosen.baseline_bytes and max(after.held) == chosen.peak_bytes
    calls = list(range(sum(row.calls for row in chosen.rows)))
    assert before.calls == calls + calls[::-1]
    assert before.ends[len(calls) - 1 :: len(calls)] == [PARTS, 3 * PARTS]
    assert after.ends[-1] == pytest.approx((3 + chosen.extra_work) * PARTS, abs=2)
    again = [row.calls for row in chosen.rows if row.is_block]
    assert [after.kinds.count(kind) for kind in (FORWARD, GRADIENT, AGAIN)] == [
        len(calls),
        len(calls),
        sum(again),
    ]


def test_timelines_are_kept(found):
    read = Plan.from_json(found.to_json())
    assert (read.plain_timeline, read.timeline) == (found.plain_timeline, found.timeline)
    assert read.name == found.name


@pytest.mark.needs("matplotlib")
def test_the_picture(found, tmp_path):
    path = tmp_path / "plan.png"
    memory, strip = found.plot(str(path)).axes
    assert path.read_bytes()[1:4] == b"PNG"
    plain, planned = memory.lines[:2]
    for line, timeline in ((plain, found.plain_timeline), (planned, found.timeline)):
        assert max(line.get_ydata()) * 1000 == max(timeline.held)  # kB, as the label says
        assert max(line.get_xdata()) == timeline.ends[-1] / PARTS
    assert memory.get_xlabel() and "(kB)" in memory.get_ylabel() and found.name in memory.get_title()
    peaks = [text.get_text() for text in memory.texts if text.get_text().startswith("peak")]
    assert len(peaks) == 2
    bars = [bar.get_paths()[0].get_extents() for bar in strip.collections]
    assert [bar.width for bar in bars] == [row.calls for row in found.rows]
    colors = [tuple(bar.get_facecolor()[0]) for bar in strip.collections]
    assert len({c for c, row in zip(colors, found.rows) if row.is_block}) > 1
    assert len({c for c, row in zip(colors, found.rows) if not row.is_block}) <= 1
    assert found.rows[0].first in strip.texts[0].get_text()


@pytest.mark.needs("matplotlib")
def test_a_file_that_is_no_picture(found, tmp_path):
    with pytest.raises(RematError, match="one of .*png.*Received: .*plan.json"):
        found.plot(str(tmp_path / "plan.json"))


def test_without_matplotlib(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RematError, match="Received: a Python without it .*pip install matplotlib"):
        found.plot("plan.png")
