"""The lines between the levels, the interval, and the policy's own checks."""

import math

import pytest
from scipy import stats

from leakscope.audit.findings import Level, worst
from leakscope.audit.policy import Policy, clopper_pearson, policy_from
from leakscope.audit.verdict import Measured, decide
from leakscope.errors import BadInput, UnknownName


def measured(**changes):
    """A recognisable reconstruction with a control that gives nothing."""
    values = {
        "psnr": 20.0,
        "ssim": 0.6,
        "correlation": 0.9,
        "p_value": 0.0002,
        "rank": 1,
        "gallery": 5209,
        "kin_rank": 1,
        "kin": 0,
        "blank_psnr": 12.0,
        "control_psnr": 8.0,
        "control_ssim": 0.05,
        "control_correlation": 0.1,
    }
    return Measured(**(values | changes))


def level(**changes):
    return decide(measured(**changes), Policy()).level


def test_a_good_likeness_beyond_its_control_is_recognisable():
    assert level() is Level.RECOGNISABLE


def test_forty_decibels_are_exact_unless_a_blank_or_the_control_gives_them():
    assert level(psnr=45.0) is Level.EXACT
    assert level(psnr=math.inf) is Level.EXACT
    assert level(psnr=39.9) is Level.RECOGNISABLE
    assert level(psnr=45.0, blank_psnr=44.0) is not Level.EXACT
    assert level(psnr=45.0, control_psnr=44.0) is not Level.EXACT
    assert level(psnr=math.inf, control_psnr=math.inf, control_correlation=0.9) is not Level.EXACT


def test_what_the_control_also_gives_is_never_recognisable():
    for p_value in (1e-9, 0.001, 0.5):
        for psnr in (10.0, 20.0, 39.0):
            same = {"control_correlation": 0.9, "control_ssim": 0.6, "control_psnr": 19.0}
            assert level(p_value=p_value, psnr=psnr, **same) not in (Level.RECOGNISABLE, Level.EXACT)


def test_a_likeness_that_halves_what_the_control_leaves_open_is_recognisable():
    assert level(correlation=0.98, ssim=0.3, control_correlation=0.9) is Level.RECOGNISABLE
    assert level(correlation=0.94, ssim=0.3, control_correlation=0.9) is Level.TRACES


def test_a_likeness_that_is_not_identified_is_nothing():
    assert level(p_value=0.2) is Level.NOTHING


def test_a_likeness_that_pictures_of_its_kind_share_is_not_recognisable():
    assert level(kin=50, kin_rank=1) is Level.RECOGNISABLE
    assert level(kin=50, kin_rank=2) is Level.TRACES
    assert level(kin=999, kin_rank=10) is Level.RECOGNISABLE  # one in a hundred
    assert level(kin=999, kin_rank=11) is Level.TRACES


def test_an_identified_image_without_likeness_is_a_trace():
    assert level(correlation=0.3, ssim=0.1) is Level.TRACES
    assert level(correlation=0.3, ssim=0.1, p_value=0.002) is Level.NOTHING  # traces ask for more
    assert level(correlation=0.1, ssim=0.01, psnr=7.0) is Level.NOTHING  # no better than the control in anything


def test_without_a_control_only_exact_copies_count():
    bare = {"control_psnr": None, "control_ssim": None, "control_correlation": None}
    assert level(**bare) is Level.TRACES
    assert "no control" in decide(measured(**bare), Policy()).reason
    assert level(**bare, psnr=50.0) is Level.EXACT
    assert level(**bare, control_refused=True) is Level.RECOGNISABLE  # no signal, no picture: that is a control
    assert decide(measured(**bare), Policy(require_control=False)).level is Level.RECOGNISABLE


def test_missing_numbers_never_raise_a_level():
    assert level(psnr=math.nan) is Level.NOTHING
    assert level(ssim=math.nan) is Level.RECOGNISABLE  # small images have none: the layout decides
    assert level(ssim=math.nan, correlation=0.5) is Level.TRACES


def test_the_worst_counts_and_the_unknown_is_not_safe():
    assert worst([Level.NOTHING, Level.TRACES, Level.UNKNOWN]) is Level.TRACES
    assert worst([Level.NOTHING, Level.UNKNOWN]) is Level.UNKNOWN
    assert worst([Level.NOTHING, Level.NOTHING]) is Level.NOTHING
    assert worst([]) is Level.UNKNOWN


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (7, 200)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_clopper_and_pearsons(hits, trials, confidence):
    expected = stats.binomtest(hits, trials).proportion_ci(confidence_level=confidence, method="exact")
    assert clopper_pearson(hits, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_without_trials_nothing_is_known():
    assert clopper_pearson(0, 0, 0.95) == (0.0, 1.0)


def test_a_policy_comes_from_its_table():
    assert policy_from({}) == Policy()
    assert policy_from({"exact_psnr": 35}).exact_psnr == 35
    assert Policy(**Policy().plain()) == Policy()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"exact_psnr": 10.0}, "above 25"),
        ({"exact_psnr": math.nan}, "exact_psnr"),
        ({"identified_p": 0.0}, "above 0"),
        ({"identified_p": 0.5}, "up to 0.1"),
        ({"identified_p": True}, "identified_p"),
        ({"traces_p": 0.05}, "at least as strict"),
        ({"confidence": "high"}, "confidence"),
        ({"require_control": 1}, "true or false"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(table, message):
    with pytest.raises(BadInput, match=message):
        policy_from(table)


def test_an_unknown_threshold_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="exact_psnr"):
        policy_from({"exact_pnsr": 40})
