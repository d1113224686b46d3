"""`spillway store`: looks at what a namespace remembers, without a broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from spillway.cli.errors import CommandError, UsageError

group = typer.Typer(help="The store of a data directory: what is wrong with it.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the broker.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="This namespace only, if the directory has several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")]
DATA: Final = Path("spillway-data")


@group.command("check")
def check(data: Data = DATA, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Look at every row and every tree of a store that no broker has open. It takes time, and changes nothing.

    Exits with status 1 if anything is wrong.
    """
    from spillway.store.check import check as find_all
    from spillway.store.directory import DataDirectory
    from spillway.store.errors import StoreError
    from spillway.store.set_apart import SetApart

    journals = list(journals_of(data, namespace))
    is_sound = True
    try:
        directory = DataDirectory(data)
    except StoreError as error:
        raise CommandError(str(error)) from error
    try:
        for journal in journals:
            apart = SetApart(None)
            findings = find_all(journal, apart)
            is_sound = is_sound and not findings
            if as_json:
                print(json.dumps({"namespace": journal.parent.name, "findings": findings, "rows": apart.found}))
                continue
            for finding in findings:
                print(f"{journal.parent.name}: {finding}")
            if not findings:
                print(f"{journal.parent.name}: all is well")
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        directory.close()
    if not is_sound:
        raise typer.Exit(1)


@group.command("set-apart")
def set_apart(data: Data = DATA, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Show rows that could not be read, as they were found. A broker may be running."""
    from spillway.store.set_apart import NAME, read_set_apart, text_of

    for journal in journals_of(data, namespace):
        try:
            for row in read_set_apart(journal.with_name(NAME)):
                if as_json:
                    print(json.dumps({"namespace": journal.parent.name, **row}, ensure_ascii=False))
                else:
                    print(f"{journal.parent.name}: {text_of(row)}")
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from error


def journals_of(data: Path, namespace: str | None) -> Iterator[Path]:
    """The journals of a directory by name, or the one of this namespace."""
    from spillway.store.directory import JOURNAL_NAME

    found = sorted(data.glob(f"*/{JOURNAL_NAME}"))
    if namespace is not None:
        found = [path for path in found if path.parent.name == namespace.lower()]
        if not found:
            raise UsageError(f"--namespace {namespace}: {data} has none of that name")
    if not found:
        raise CommandError(f"{data} has no namespace: --data DIR names the data directory of a broker")
    yield from found
