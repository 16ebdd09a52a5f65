"""Where a study lives: an SQLite file by default, any database that Optuna takes, or a journal file."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leakscope.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["named", "open_storage", "shown"]

_JOURNAL: Final = "journal:"
_SQLITE: Final = "sqlite"
_WAIT: Final = 60
"""Seconds to wait for a lock on an SQLite file."""


def open_storage(url: str) -> BaseStorage:
    """The storage at ``url``: ``sqlite:///FILE``, ``postgresql://USER@HOST/NAME``, …, or ``journal:FILE``."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("Tuning", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith(_JOURNAL):
        return _journal(Path(url.removeprefix(_JOURNAL).removeprefix("//")))
    if "://" not in url:
        raise BadInput(
            f"'{url}' is no storage: give a URL such as sqlite:///FILE or postgresql://USER@HOST/NAME, or journal:FILE."
        )
    return _database(url)


def shown(url: str) -> str:
    """``url`` without its password, for people and for files."""
    if "://" not in url:
        return url
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url.partition("://")[0] + "://…"


def named(study: str, objective: str) -> str:
    """A study's full name, which says what it went by: an oracle's study can never pass for a realistic one."""
    return f"{study}.{objective}"


def _journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if not path.name:
        raise BadInput("A journal needs a file: journal:FILE.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as error:
        raise BadInput(f"The journal '{path}' cannot be opened: {error.strerror or error}.") from error


def _database(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

    local = url.startswith(_SQLITE)
    options: dict[str, Any] = {"connect_args": {"timeout": _WAIT}} if local else {"pool_pre_ping": True}
    for attempt in range(6):
        try:
            storage = RDBStorage(url, engine_kwargs=options)
        except NoSuchModuleError as error:
            raise BadInput(f"'{shown(url)}' names an unknown kind of database: {error}.") from error
        except ImportError as error:
            if url.startswith("postgresql"):
                raise MissingExtra("A PostgreSQL storage", "postgres") from error
            raise BadInput(f"'{shown(url)}' needs a Python driver that is not installed: {error}.") from error
        except SQLAlchemyError as error:  # two processes that make the tables at once get in each other's way
            if attempt == 5:
                first = str(error).partition("\n")[0]
                raise BadInput(f"The storage '{shown(url)}' cannot be opened: {first}") from error
            time.sleep(random.uniform(0.1, 0.3) * 2**attempt)  # not part of any result
            continue
        if local:
            _serialise(storage)
        return get_storage(storage)
    raise AssertionError("unreachable")


def _serialise(storage: Any) -> None:
    """Take SQLite's write lock at the start of every transaction.

    SQLite knows no row locks: without this, two processes could both read that a trial waits and both claim it.
    """
    from sqlalchemy import event

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(storage.engine, "begin", begin)
