"""`spillway migrate`: a data directory for an earlier version of Spillway."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from spillway.cli.errors import CommandError
from spillway.cli.store import DATA, AsJson, Data, Namespace, journals_of


class Form(StrEnum):
    SQLITE = "sqlite"


To = Annotated[Form, typer.Option("--to", help="sqlite: without a log, as versions before it have it.")]


def command(to: To, data: Data = DATA, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Put everything into the SQLite file and do without the log, so that earlier versions can read it.

    No broker may have the directory open. The way there needs no command: `spillway serve` carries a directory over.
    """
    from spillway.store.directory import DataDirectory
    from spillway.store.errors import StoreError
    from spillway.store.migrate import FORMAT_AFTER, to_sqlite

    assert to is Form.SQLITE, "there is no other"
    journals = list(journals_of(data, namespace))
    try:
        directory = DataDirectory(data)
    except StoreError as error:
        raise CommandError(str(error)) from error
    try:
        for journal in journals:
            frames = to_sqlite(journal)
            name = journal.parent.name
            if as_json:
                print(json.dumps({"namespace": name, "format": FORMAT_AFTER, "frames": frames}))
            else:
                print(f"{name}: format {FORMAT_AFTER}, without a log ({frames} frames of it were put into the file)")
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        directory.close()
