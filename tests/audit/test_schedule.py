"""Which cells run, which wait, which need not run: pure logic over ended cells."""

from dataclasses import replace

from leakscope.audit.cell import Cell, Role
from leakscope.audit.record import FAILED, REFUSED, SKIPPED
from leakscope.audit.schedule import Ended, Schedule

BLANK = Cell(
    role=Role.ATTACK,
    target="m/i/c",
    model_name="m",
    images_name="i",
    client_name="c",
    defence_name="none",
    attacker="server",
    attack_name="",
    model={"name": "leakscope:mlp"},
    images={"from": ["bundled:cat"]},
    batch=0,
    client={"type": "fedsgd"},
)
FORM = replace(BLANK, attack="linear-layer", attack_name="linear-layer", rung=0)
LOOP = replace(BLANK, attack="dlg", attack_name="dlg", rung=1)
CONTROL = replace(LOOP, role=Role.CONTROL)
TEST = replace(LOOP, role=Role.SELF_TEST, target="self-test", attacker="self-test")
ANALYSIS = replace(BLANK, role=Role.IDENTIFIABILITY)
CELLS = (FORM, LOOP, CONTROL, TEST, ANALYSIS)


def ended(status="finished", energy=1.0, steps=10):
    return Ended(status=status, energy=energy, steps=steps)


def test_higher_rungs_wait_for_lower_ones():
    schedule = Schedule(CELLS)
    assert [cell for cell in CELLS if schedule.ready(cell, {})] == [FORM]
    assert schedule.ready(LOOP, {FORM.key: ended(REFUSED)})
    assert not schedule.ready(CONTROL, {FORM.key: ended(REFUSED)})
    assert schedule.ready(CONTROL, {LOOP.key: ended()})


def test_what_a_closed_form_settles_is_not_repeated():
    schedule = Schedule(CELLS)
    assert "linear-layer" in schedule.needless(LOOP, {FORM.key: ended(energy=1e-9, steps=0)})
    # A residual that is left, a loop's low loss, a refusal and a failure settle nothing.
    for before in (ended(energy=1e-2, steps=0), ended(energy=1e-9), ended(REFUSED, 0, 0), ended(FAILED, 0, 0)):
        assert schedule.needless(LOOP, {FORM.key: before}) is None


def test_what_a_closed_form_gave_away_needs_no_analysis():
    schedule = Schedule(CELLS)
    both = {FORM.key: ended(energy=1e-9, steps=0), LOOP.key: ended(SKIPPED)}
    assert not schedule.ready(ANALYSIS, {FORM.key: both[FORM.key]})
    assert "information is there" in schedule.needless(ANALYSIS, both)
    assert schedule.needless(ANALYSIS, both | {FORM.key: ended(REFUSED, 0, 0)}) is None


def test_another_batch_or_attacker_is_another_ladder():
    other = replace(LOOP, batch=1)
    more = replace(LOOP, attacker="informed")
    schedule = Schedule((*CELLS, other, more))
    assert schedule.ready(other, {})
    assert schedule.ready(more, {})


def test_controls_and_self_tests_of_what_did_not_run_are_needless():
    schedule = Schedule(CELLS)
    for status in (REFUSED, SKIPPED, FAILED):
        for cell in (CONTROL, TEST):
            assert schedule.needless(cell, {LOOP.key: ended(status)}) is not None
    for cell in (CONTROL, TEST):
        assert schedule.needless(cell, {LOOP.key: ended()}) is None


def test_names_do_not_change_what_a_cell_is():
    assert replace(LOOP, model_name="x", attack_name="y", rung=5).key == LOOP.key
    keys = {LOOP.key, CONTROL.key, ANALYSIS.key, replace(LOOP, seed=1).key, replace(LOOP, files={"a": "b"}).key}
    keys |= {replace(LOOP, options={"steps": 3}).key, replace(LOOP, knows=("labels",)).key}
    assert len(keys) == 7
