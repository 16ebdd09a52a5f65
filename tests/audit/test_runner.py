"""The runner: every cell ends in a record, once; resumed, side by side, and with failures."""

import json
from pathlib import Path

import pytest
from campaigns import SMALL, content, planned

from leakscope.audit import cell_run
from leakscope.audit.cell import CELLS, Role, read_manifest
from leakscope.audit.cell_run import Busy, ended, run_cell
from leakscope.audit.executors import InProcess, Local
from leakscope.audit.runner import PROGRESS, begin, run_campaign
from leakscope.errors import BadInput


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The unbroken run that others are compared with."""
    out = tmp_path_factory.mktemp("whole")
    state = run_campaign(planned(out), out, InProcess(out, Path()))
    return out, state


def test_every_cell_ends_in_a_record(whole):
    out, state = whole
    manifest = read_manifest(out)
    assert len(manifest.cells) == 36
    assert len(state.ended) == state.total == 36
    statuses = {cell.key: manifest.record(out, cell).status for cell in manifest.cells}
    assert set(statuses.values()) == {"finished", "refused", "skipped"}
    for cell in manifest.cells:
        record = manifest.record(out, cell)
        assert (record.cell, record.role) == (cell.key, cell.role)
        if cell.model_name == "mlp" and cell.role is Role.ATTACK:
            # The first layer gives the image away, so nothing else need be tried.
            assert record.status == ("finished" if cell.attack == "linear-layer" else "skipped")
        if cell.model_name == "lenet" and cell.attack == "inverting-gradients":
            assert record.status == "finished"
            assert (out / CELLS / cell.key / "reconstruction-0.png").exists()


def test_a_control_sees_no_signal(whole):
    out, _ = whole
    manifest = read_manifest(out)
    by_role = {
        cell.role: manifest.record(out, cell)
        for cell in manifest.cells
        if cell.model_name == "lenet" and cell.attack == "inverting-gradients" and cell.batch == 0
    }
    attack, control = by_role[Role.ATTACK], by_role[Role.CONTROL]
    assert attack.settings == control.settings
    assert attack.scores["metrics"] != control.scores["metrics"]


def test_the_same_command_again_runs_nothing(whole):
    out, _ = whole
    before = content(out)
    ran = []
    executor = InProcess(out, Path())
    executor.submit = ran.append
    run_campaign(planned(out), out, executor)
    assert not ran
    assert content(out) == before


def test_progress_is_written_for_those_who_follow(whole):
    out, _ = whole
    progress = json.loads((out / PROGRESS).read_text())
    assert (progress["done"], progress["total"], progress["running"]) == (36, 36, [])


def test_stopped_and_resumed_ends_the_same(whole, tmp_path):
    steps = []

    def stop():
        steps.append(1)
        return len(steps) % 40 == 39

    for _ in range(30):
        state = run_campaign(planned(tmp_path), tmp_path, InProcess(tmp_path, Path(), every=0, stop=stop), stop=stop)
        if len(state.ended) == state.total:
            break
    assert len(state.ended) == state.total
    assert content(tmp_path) == content(whole[0])


def test_processes_give_the_same_records_as_this_one(whole, tmp_path):
    run_campaign(planned(tmp_path), tmp_path, Local(tmp_path, Path(), jobs=2))
    assert content(tmp_path) == content(whole[0])


def test_a_failed_cell_is_recorded_and_the_campaign_goes_on(tmp_path, monkeypatch):
    manifest = planned(tmp_path)
    real = cell_run.invert

    def breaks(case, *args, **options):
        if case.attack_name == "tag" and case.role == "attack":
            raise RuntimeError("out of memory")
        return real(case, *args, **options)

    monkeypatch.setattr(cell_run, "invert", breaks)
    state = run_campaign(manifest, tmp_path, InProcess(tmp_path, Path()))
    assert len(state.ended) == state.total
    failed = [cell for cell in manifest.cells if manifest.record(tmp_path, cell).status == "failed"]
    assert {cell.attack for cell in failed} == {"tag"}
    record = manifest.record(tmp_path, failed[0])
    assert "RuntimeError: out of memory" in record.message
    assert "Traceback" in record.error
    # Failed cells stay as they are, until they are asked for again.
    monkeypatch.setattr(cell_run, "invert", real)
    assert sum(
        e.status == "failed" for e in run_campaign(manifest, tmp_path, InProcess(tmp_path, Path())).ended.values()
    )
    again = run_campaign(manifest, tmp_path, InProcess(tmp_path, Path()), retry_failed=True)
    assert not any(e.status == "failed" for e in again.ended.values())


def test_a_model_that_cannot_be_loaded_is_a_failed_cell(tmp_path):
    manifest = planned(tmp_path, SMALL.replace("leakscope:lenet-dlg", "leakscope:no-such-net"))
    run_campaign(manifest, tmp_path, InProcess(tmp_path, Path()))
    records = [manifest.record(tmp_path, cell) for cell in manifest.cells if cell.model_name == "lenet"]
    assert {record.status for record in records} == {"failed", "skipped"}


def test_two_processes_do_not_run_the_same_cell(tmp_path):
    cell = planned(tmp_path).cells[0]
    folder = tmp_path / CELLS / cell.key
    folder.mkdir(parents=True)
    with cell_run._locked(folder), pytest.raises(Busy):
        run_cell(cell, folder, base=Path())
    assert ended(folder) is None
    run_cell(cell, folder, base=Path())
    assert ended(folder) is not None


def test_a_folder_belongs_to_one_campaign(tmp_path):
    planned(tmp_path)
    with pytest.raises(BadInput, match="holds the campaign 'small'"):
        planned(tmp_path, SMALL.replace('name = "small"', 'name = "other"'))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "package.json").write_text("{}")
    with pytest.raises(BadInput, match="something else"):
        planned(elsewhere)


def test_a_campaign_that_grows_keeps_what_it_has(whole, tmp_path):
    import shutil

    shutil.copytree(whole[0], tmp_path / "out")
    grown = planned(
        tmp_path / "out", SMALL.replace("bundled:cat,coffee,astronaut", "bundled:cat,coffee,astronaut,brick")
    )
    # More images are another table, so another cell: only the self-contained ones are found again.
    assert len(grown.cells) > 36
    assert begin is not None
