"""Several processes on one study, one of them killed or silent: every trial ends once, none is lost."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from tuning_case import STUDY, run, tuning

from leakscope.audit.tuner_life import alive_here, myself
from leakscope.audit.tuner_slots import SLOT, WHY
from leakscope.audit.tuner_storage import open_storage

TRIALS = 4
DEADLINE = 200.0
# Where this machine cannot tell whether a process exists, silence must do.
GRACE = 600.0 if alive_here(myself()) else 10.0


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE:.0f} s"
        time.sleep(0.05)


@contextmanager
def _another(url: str, folder: Path, *, beat: float = 1.0) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """Another process on the study, in the middle of a trial that it has claimed."""
    ready = folder / "ready"
    script = Path(__file__).with_name("tuning_case.py")
    process = subprocess.Popen([sys.executable, str(script), url, str(TRIALS), str(beat), str(ready)])
    try:
        _until(lambda: ready.exists() or process.poll() is not None, "the other process claims a trial")
        assert process.poll() is None
        yield process, ready
    finally:
        process.kill()
        process.wait()


def _trials(url: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name=f"{STUDY}.realistic", storage=open_storage(url)).trials


def _check(url: str) -> None:
    """Every slot has ended once; what failed was a slot's earlier attempt or a spare."""
    ended = Counter(t.user_attrs[SLOT] for t in _trials(url) if t.state in (TrialState.COMPLETE, TrialState.PRUNED))
    assert ended == dict.fromkeys(range(TRIALS), 1)
    assert all(trial.state.is_finished() for trial in _trials(url))


def _one_is_killed(url: str, folder: Path) -> None:
    with _another(url, folder) as (process, ready):
        taken = int(ready.read_text())
        killed_yet = False

        def kill(row: object) -> None:
            nonlocal killed_yet
            if not killed_yet:  # both have worked on the study by now
                killed_yet = True
                process.send_signal(signal.SIGKILL)
                process.wait()

        tuned = run(tuning(trials=TRIALS, grace=GRACE), url, ended=kill)
        assert process.returncode == -signal.SIGKILL
    _check(url)
    assert [row.slot for row in tuned.rows] == list(range(TRIALS))
    # The killed one's trial is on record as failed; its slot was tried again with the same settings.
    dead = [t for t in _trials(url) if t.user_attrs.get(WHY) == "its process is gone"]
    assert [t.user_attrs[SLOT] for t in dead] == [taken]
    (row,) = [row for row in tuned.rows if row.slot == taken]
    assert row.options == dead[0].params


def test_on_sqlite_one_of_two_processes_is_killed(tmp_path: Path) -> None:
    _one_is_killed(f"sqlite:///{tmp_path}/study.db", tmp_path)


def test_in_a_journal_a_silent_process_is_replaced_and_drops_its_trial_when_it_wakes(tmp_path: Path) -> None:
    url = f"journal:{tmp_path}/study.journal"
    # The other process exists all the while; like one that was suspended, or cut off, it is only never heard of.
    with _another(url, tmp_path, beat=250.0) as (process, ready):
        run(tuning(trials=TRIALS, grace=3.0), url)
        before = [(t.number, t.state, t.values) for t in _trials(url)]
        assert len(before) > TRIALS
        ready.with_suffix(".go").touch()
        assert process.wait(DEADLINE) == 0
        assert ready.with_suffix(".done").exists()
    assert [(t.number, t.state, t.values) for t in _trials(url)] == before
    _check(url)


def _postgres_tools() -> tuple[Path, str | None]:
    """The folder of initdb and pg_ctl, and the user to run them as; skips where there is no server to be had."""
    pytest.importorskip("psycopg2", reason="no driver for PostgreSQL: pip install psycopg2-binary")
    places = [Path(found).parent for name in ("initdb",) if (found := shutil.which(name))]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()]
    if not places:
        pytest.skip("no PostgreSQL server is installed (Debian: apt install postgresql)")
    if os.getuid() != 0:
        return places[0], None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    return places[0], "postgres"


@pytest.fixture
def postgres() -> Generator[str]:
    """A server of its own, in a temporary folder, on a socket in that folder alone."""
    tools, user = _postgres_tools()
    folder = Path(tempfile.mkdtemp(prefix="leakscope-pg-", dir="/tmp"))  # a socket's path must be short
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"

    def command(name: str, *arguments: str) -> None:
        subprocess.run(
            [str(tools / name), *arguments], user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=120
        )

    try:
        try:
            command("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
            options = f"-k {folder} -c listen_addresses='' -c fsync=off"
            command("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "-t", "100", "-o", options, "start")
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"a PostgreSQL server could not be started here: {error}")
        yield f"postgresql+psycopg2://postgres@/postgres?host={folder}"
    finally:
        if (data / "postmaster.pid").exists():
            command("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def test_on_postgresql_one_of_two_processes_is_killed(postgres: str, tmp_path: Path) -> None:
    _one_is_killed(postgres, tmp_path)
