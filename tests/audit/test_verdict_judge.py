"""Judging a folder: what stands in it decides, what is missing in it is never taken for safety."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from calibration_targets import Case, cell, write_manifest

import leakscope as ls
from leakscope.audit.cell import CELLS, Role
from leakscope.audit.findings import FINDINGS, Level
from leakscope.audit.findings_file import read_findings, write_findings
from leakscope.audit.judge import judge
from leakscope.audit.policy import Policy
from leakscope.audit.store import begin_record, ensure_writable, write_failure, write_plain, write_record
from leakscope.errors import BadInput

MODEL = "leakscope:mlp?hidden=4"
CASE = Case(name="target", model=MODEL, attack="inverting-gradients", size=16, right=frozenset())


def noise(shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


class Folder:
    """A campaign's folder, filled by hand: what each attack brought back is made up."""

    def __init__(self, out):
        self.out, self.cells = out, []
        self.model = ls.load_model(MODEL, image_size=16, num_classes=10)

    def planned(self, role=Role.ATTACK, *, case=CASE, seed=0, batch=0, **changes):
        one = replace(cell(case, role, seed), batch=batch, **changes)
        self.cells.append(one)
        return one

    def begun(self, one):
        folder = self.out / CELLS / one.key
        ensure_writable(folder)
        threat = ls.threats.HONEST_SERVER
        protocol = ls.FedSGD()
        made = ls.attack(one.attack) if one.attack else None
        given = {
            "run": one.key,
            "seed": one.seed,
            "stream": "",
            "model": self.model,
            "client": protocol,
            "threat": threat,
        }
        return folder, begin_record(**given, attack_name=one.attack, attack=made, cell=one.key, role=str(one.role))

    def add(self, names, images, role=Role.ATTACK, status=ls.Status.FINISHED, **more):
        """An attack on the photographs ``names`` that brought back ``images``."""
        one = self.planned(role, **more)
        folder, begun = self.begun(one)
        batch = ls.bundled_batch(list(names), size=16)
        outcome = ls.Outcome(status=status, message="Done.")
        found = ls.Reconstruction(
            images=images, labels=batch.labels, energy=0.0, outcome=outcome, steps=10, seconds=0.5
        )
        scores = ls.score(found, batch, ["psnr", "ssim"])
        write_record(folder, begun, batch=batch, reconstruction=found, scores=scores)
        return one

    def plain(self, status, message, **more):
        folder, begun = self.begun(one := self.planned(**more))
        write_plain(folder, replace(begun, status=status, message=message))
        return one

    def self_test(self, *, passes=True):
        truth = ls.bundled_batch(["cat"], size=16).images
        self.add(["cat"], truth if passes else noise(truth.shape), Role.SELF_TEST, case=replace(CASE, name="self-test"))

    def judged(self, policy=None):
        write_manifest(self.out, self.cells)
        return judge(self.out, policy)

    def finding(self, policy=None):
        return next(f for f in self.judged(policy).findings if f.target == "target")


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def pictures(*names):
    return ls.bundled_batch(list(names), size=16).images


def test_an_exact_copy_needs_no_self_test(folder):
    folder.add(["cat"], pictures("cat"))
    found = folder.finding()
    assert found.level is Level.EXACT
    assert found.images[0].name == "cat"
    assert found.leaked == 1.0
    assert found.interval == pytest.approx((0.025, 1.0))
    assert "1 of 1 image came back exactly by inverting-gradients" in found.summary


def test_nothing_found_rests_on_a_passed_self_test(folder):
    folder.add(["cat"], noise((1, 3, 16, 16)))
    folder.add(["cat"], noise((1, 3, 16, 16), 1), Role.CONTROL)
    assert folder.finding().level is Level.UNKNOWN
    assert "self-test" in folder.finding().summary
    assert folder.finding(Policy(require_self_test=False)).level is Level.NOTHING
    folder.self_test(passes=False)
    assert folder.finding().level is Level.UNKNOWN
    folder.cells.pop()
    folder.self_test()
    found = folder.finding()
    assert found.level is Level.NOTHING
    assert found.leaked == 0.0
    assert found.interval[1] == pytest.approx(0.975)
    assert found.evidence.self_tests[0].passed
    assert "gets through here" in found.summary
    assert found.evidence.budget["steps_spent"] == 10


def test_what_a_control_brings_as_well_is_not_recognisable(folder):
    blurred = (pictures("cat") + 0.1 * torch.randn((1, 3, 16, 16), generator=torch.Generator().manual_seed(1))).clamp(
        0, 1
    )
    folder.add(["cat"], blurred)
    folder.add(["cat"], noise((1, 3, 16, 16)), Role.CONTROL)
    folder.self_test()
    assert folder.finding().level is Level.RECOGNISABLE
    folder.add(["cat"], blurred, Role.CONTROL, seed=7)  # one seed of the control is enough
    assert folder.finding().level not in (Level.RECOGNISABLE, Level.EXACT)


def test_a_faint_likeness_is_a_trace(folder):
    folder.self_test()
    faint = 0.35 * pictures("astronaut") + 0.65 * noise((1, 3, 16, 16), 3)
    folder.add(["astronaut"], faint)
    folder.add(["astronaut"], noise((1, 3, 16, 16), 4), Role.CONTROL)
    found = folder.finding()
    assert found.level is Level.TRACES, found.images[0].reason
    assert found.leaked == 0.0
    assert found.summary.startswith("Traces of 1 of 1 image")


def test_a_self_test_counts_for_every_name_of_its_attack(folder):
    folder.self_test()
    folder.add(["cat"], noise((1, 3, 16, 16)), attack_name="matching")
    found = folder.finding()
    assert [test.attack for test in found.evidence.self_tests] == ["matching"]
    assert "matching gets through here" in found.summary


def test_failures_refusals_and_gaps_are_never_safe(folder):
    folder.self_test()
    folder.plain("refused", "It needs a single image.", case=replace(CASE, attack="linear-layer"))
    assert folder.finding().level is Level.UNKNOWN
    assert "needs a single image" in folder.finding().summary
    place, begun = folder.begun(folder.planned(seed=1))
    write_failure(place, begun, RuntimeError("out of memory"))
    assert folder.finding().level is Level.UNKNOWN
    assert {attempt.status for attempt in folder.finding().evidence.attempts} == {"refused", "failed"}
    folder.add(["cat"], noise((1, 3, 16, 16)))
    found = folder.finding()
    assert found.level is Level.NOTHING
    assert "Refused: linear-layer" in found.summary
    assert "Failed: inverting-gradients" in found.summary
    folder.planned(seed=2)  # planned, but not run
    assert folder.finding().level is Level.UNKNOWN
    assert (folder.judged().done, folder.judged().total) == (4, 5)


@pytest.mark.parametrize("status", [ls.Status.DIVERGED, ls.Status.INTERRUPTED])
def test_an_attack_that_came_to_no_end_proves_nothing(folder, status):
    folder.self_test()
    folder.add(["cat"], noise((1, 3, 16, 16)), status=status)
    assert folder.finding().level is Level.UNKNOWN


def test_damage_is_a_failure_not_a_crash(folder):
    folder.self_test()
    one = folder.add(["cat"], pictures("cat"))
    assert folder.finding().level is Level.EXACT
    (folder.out / CELLS / one.key / "reconstruction.safetensors").write_bytes(b"torn")
    assert folder.finding().level is Level.UNKNOWN
    (folder.out / CELLS / one.key / "record.json").write_text("{")
    found = folder.finding()
    assert found.level is Level.UNKNOWN
    assert found.evidence.attempts[0].status == "failed"


def test_the_worst_image_comes_first_and_the_share_counts_images(folder):
    folder.self_test()
    names = ["cat", "coffee", "brain", "temple"]
    truth = pictures(*names)
    back = torch.cat([noise((2, 3, 16, 16)), truth[2:3], noise((1, 3, 16, 16), 5)])
    folder.add(names, back)
    folder.add(names, noise((4, 3, 16, 16), 3), Role.CONTROL)
    found = folder.finding()
    assert found.images[0].name == "brain"
    assert found.level is Level.EXACT
    assert found.leaked == 0.25
    low, high = found.interval
    assert low < 0.25 < high < 1.0
    assert "1 of 4 images" in found.summary


def test_a_seed_that_is_lucky_once_widens_the_interval(folder):
    folder.add(["cat"], pictures("cat"))
    single = folder.finding().interval
    for seed in (1, 2, 3):
        folder.add(["cat"], noise((1, 3, 16, 16), seed), seed=seed)
    found = folder.finding()
    assert found.leaked == 1.0
    assert found.interval[0] < single[0]
    assert [attempt.level for attempt in found.evidence.attempts].count(Level.EXACT) == 1


def test_findings_are_sorted_and_read_back_as_they_were(folder):
    folder.self_test()
    folder.add(["cat"], noise((1, 3, 16, 16)))
    folder.add(["coffee"], pictures("coffee"), case=replace(CASE, name="worse", images=("coffee",)))
    analysis = folder.planned(Role.IDENTIFIABILITY, attack="", attack_name="")
    place, begun = folder.begun(analysis)
    write_plain(place, replace(begun, status="finished", evidence={"summary": "It is there.", "bound": float("inf")}))
    findings = folder.judged()
    assert [finding.target for finding in findings.findings] == ["worse", "target"]
    assert findings.level is Level.EXACT
    assert findings.findings[1].evidence.identifiability["summary"] == "It is there."
    assert findings.findings[1].summary.endswith("It is there.")
    write_findings(findings, folder.out)
    again = read_findings(folder.out)
    assert again == replace(findings, policy=dict(findings.policy))
    assert again.findings[0].images[0].scores["psnr"] == float("inf")
    json.loads((folder.out / FINDINGS).read_text(), parse_constant=pytest.fail)  # strict JSON


def test_pictures_of_the_same_kind_from_other_batches_take_part(folder):
    folder.self_test()
    for batch, name in enumerate(["cat", "coffee", "brain"]):
        folder.add([name], pictures(name), batch=batch)
    found = folder.finding()
    assert len(found.images) == 3
    # Two kin and the photographs, of which the original itself and its mirror image's twin do not count.
    assert min(image.gallery for image in found.images) > 5000


def test_findings_that_cannot_be_read_say_why(tmp_path):
    with pytest.raises(BadInput, match="no verdicts yet"):
        read_findings(tmp_path)
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "no schema"),
        ('{"schema": 99}', "Update"),
        ('{"schema": 1}', "damaged"),
    ):
        (tmp_path / FINDINGS).write_text(text)
        with pytest.raises(BadInput, match=message):
            read_findings(tmp_path)


def test_findings_are_read_without_torch():
    code = (
        "import sys, leakscope.audit.findings_file, leakscope.audit.policy, leakscope.audit.verdict, "
        "leakscope.audit.summaries; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
