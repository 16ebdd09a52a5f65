"""The sentences: what they claim follows from the findings, and nothing is called safe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign_folder import build
from leakscope.audit.findings import Finding, Findings, Level, SelfTest
from leakscope.report.limits import limits
from leakscope.report.load import Audit, load
from leakscope.report.tradeoff import tradeoffs
from leakscope.report.view import ladder
from leakscope.report.words import advice, answer, count, duration, headline, question, tally


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return load(build(tmp_path_factory.mktemp("campaign")))


def _with(audit: Audit, *levels: Level, done: int | None = None) -> Audit:
    """The same audit with the findings of these levels only."""
    kept = tuple(f for f in audit.findings.findings if f.level in levels)
    findings = replace(audit.findings, findings=kept, done=audit.findings.done if done is None else done)
    return replace(audit, findings=findings)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((Level.EXACT, Level.NOTHING), "Images come back exactly."),
        ((Level.RECOGNISABLE,), "Images come back, and can be recognised."),
        ((Level.TRACES, Level.UNKNOWN), "Traces of images come back."),
        ((Level.NOTHING,), "Nothing was found with the attacks tried."),
        ((Level.NOTHING, Level.UNKNOWN), "Nothing was found so far, and some of it is still open."),
        ((Level.UNKNOWN,), "There is no answer yet."),
        ((), "There is no answer yet."),
    ],
)
def test_headlines(audit: Audit, levels: tuple[Level, ...], words: str) -> None:
    findings = _with(audit, *levels).findings
    assert headline(findings) == words
    assert "safe" not in answer(findings).replace("must not be read as safe", "")


def test_an_unfinished_campaign_does_not_claim_to_have_found_nothing(audit: Audit) -> None:
    assert "still open" in headline(_with(audit, Level.NOTHING, done=1).findings)


def test_the_answer_names_the_worst(audit: Audit) -> None:
    assert "vit (sgd, no defence)" in answer(audit.findings)
    assert "convnet" in answer(_with(audit, Level.RECOGNISABLE, Level.TRACES).findings)
    some = answer(_with(audit, Level.NOTHING, Level.UNKNOWN).findings)
    assert some.startswith("Nothing was found in 2 of 3 set-ups. In the others, no attack ran to its end")
    assert "That is evidence, not proof." in answer(_with(audit, Level.NOTHING).findings)
    assert dict(tally(audit.findings)) == dict.fromkeys(Level, 1) | {Level.NOTHING: 2}


def test_the_question_is_the_operators(audit: Audit) -> None:
    assert question(audit).startswith("Could the coordinating server")
    asked = replace(audit, manifest=replace(audit.manifest, campaign={}))
    assert question(asked) == "What could the server see of the clients' images?"


def test_advice_compares_what_differs_in_one_thing(audit: Audit) -> None:
    vit, convnet = advice(audit)
    assert (vit.finding.model, vit.finding.defence) == ("vit", "none")
    assert [(c.what, c.level) for c in vit.helps] == [
        ("defence “strong-noise”", Level.NOTHING),
        ("defence “noise”", Level.TRACES),
        ("model “convnet”", Level.RECOGNISABLE),
    ]
    # An unknown verdict is no improvement, however low it ranks.
    assert [(c.what, c.level) for c in vit.fails] == [("model “resnet”", Level.UNKNOWN)]
    assert vit.helps[0].cost is not None
    assert vit.helps[0].cost.text == "−8.3% accuracy, noise of 0.2 × the update, 1 × the bytes"
    assert [c.what for c in convnet.helps] == ["client “train-mode”"]
    assert not advice(_with(audit, Level.NOTHING, Level.UNKNOWN))


def test_a_defended_set_up_without_its_baseline_stands_for_itself(audit: Audit) -> None:
    (one,) = advice(_with(audit, Level.TRACES))
    assert one.finding.defence == "noise"
    assert not one.helps
    assert not one.fails


def test_defences_are_compared_by_a_cost_they_share(audit: Audit) -> None:
    (trade,) = tradeoffs(audit)
    assert [finding.defence for finding, _ in trade.rows] == ["none", "noise", "strong-noise"]
    assert trade.measure == "accuracy lost"
    assert "strong-noise" in trade.figure
    without = replace(audit, records={key: replace(r, evidence={}) for key, r in audit.records.items()})
    (trade,) = tradeoffs(without)
    assert trade.measure == "noise in the update, relative to its size"
    findings = [replace(f, evidence=replace(f.evidence, identifiability={})) for f in audit.findings.findings]
    (trade,) = tradeoffs(replace(without, findings=replace(audit.findings, findings=tuple(findings))))
    assert not trade.figure


def test_limits_say_what_was_not_shown(audit: Audit) -> None:
    text = dict(limits(audit))
    assert "13 attack runs were planned. 6 did not apply" in text["What was tried, and what was not"]
    assert "2 failed and are never counted as safe." in text["What was tried, and what was not"]
    assert "4 of 4 got through" in text["Do the attacks work here at all?"]
    assert "Of 5 attack runs that brought something back, 5 were" in text["What would have come out anyway"]
    assert "No attacker here knew" in text["Attackers who know the defence"]
    bare = replace(audit, cells={}, records={}, findings=_changed(audit.findings, ()))
    text = dict(limits(bare))
    assert "No attack was put to a self-test" in text["Do the attacks work here at all?"]
    assert "no prior-only controls" in text["What would have come out anyway"]


def test_limits_name_attacks_that_failed_their_self_test(audit: Audit) -> None:
    tests = (SelfTest(cell="a", attack="dlg", passed=False, message=""),)
    changed = replace(audit, findings=_changed(audit.findings, tests))
    assert "0 of 1 got through. Not so dlg" in dict(limits(changed))["Do the attacks work here at all?"]


def test_limits_know_an_attacker_who_knows(audit: Audit) -> None:
    knowing = {key: replace(cell, knows=("defence",)) for key, cell in audit.cells.items()}
    assert "“server” knew" in dict(limits(replace(audit, cells=knowing)))["Attackers who know the defence"]


def test_the_ladder_goes_from_little_knowledge_to_much(audit: Audit) -> None:
    finding = audit.findings.findings[0]
    more = replace(finding, attacker="insider", level=Level.EXACT)
    cells = dict(audit.cells)
    for key, cell in audit.cells_of(finding).items():
        cells[f"{key}-2"] = replace(cell, attacker="insider", knows=("batch size", "hyper-parameters", "labels"))
    changed = replace(audit, cells=cells, findings=replace(audit.findings, findings=(more, *audit.findings.findings)))
    attackers, rows = ladder(changed)
    assert attackers == ["server", "insider"]
    assert rows[0][0] == finding.target
    assert [None if view is None else view.finding.attacker for view in rows[0][1]] == ["server", "insider"]
    assert rows[1][1][1] is None


def test_counts_and_times() -> None:
    assert [count(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert [duration(s) for s in (1, 40, 180, 9000)] == ["1 second", "40 seconds", "3 minutes", "2.5 hours"]


def _changed(findings: Findings, tests: tuple[SelfTest, ...]) -> Findings:
    def one(finding: Finding) -> Finding:
        return replace(finding, evidence=replace(finding.evidence, self_tests=tests))

    return replace(findings, findings=tuple(one(finding) for finding in findings.findings))
