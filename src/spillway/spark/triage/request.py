"""What is asked of dead letters: which of them, and what to do. Checked before Spark is started."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from spillway.client import parse_connection_string
from spillway.spark.platform.access import OptionError, access_options
from spillway.spark.platform.job_directory import JobDirectory
from spillway.spark.platform.option import CaFile, ConnectionString, Option, Secret, check_options
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.preflight import check_writable
from spillway.spark.source.entity_path import entity_path_of
from spillway.spark.source.options import RATE_MAX, RATE_MIN, access_of, entities_of, read_options, write_options
from spillway.spark.triage.frames import GROUPS_MAX, KEYS
from spillway.spark.triage.namespace import NamespaceDirectory, destination_problem
from spillway.spark.triage.planned import dead_letters_of, settings_of
from spillway.spark.triage.resubmission import KEEP, ResubmissionTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = 1
ABOUT: Final = "about.json"
MESSAGES_MAX: Final = 100_000
BY: Final = "reason,entity,age,error"
TOP: Final = 50
PATIENCE_S: Final = 65.0
AUTO_IDS: Final = "auto"
OLD_IDS: Final = "keep"
NEW_IDS: Final = "new"


def _flat(found: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for names in found for name in names)


@dataclass(frozen=True)
class Choice:
    """Which dead letters: of these entities (none: of all that have some), for which a condition is true."""

    entities: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "Queue or `topic/subscriptions/name`; `*` is any part of a name.",
            name="entity",
            parse=entities_of,
            is_repeated=True,
            gather=_flat,
            default="the `EntityPath` of the connection string, or all that have dead letters",
            more="With or without `/$deadletterqueue`; or several with commas between them. For `*` and for all the "
            "key needs the right Manage; else Listen is enough.",
        ),
    ] = ()
    where: Annotated[
        str,
        Option(
            "SQL",
            "Only dead letters for which this is true.",
            default="all",
            more="A condition on the [columns](#columns-of-a-dead-letter) of a dead letter.",
        ),
    ] = ""
    secret: Secret = ""
    connection_string: ConnectionString = field(default="", repr=False)
    ca_file: CaFile = ""

    @property
    def access(self) -> dict[str, str]:
        """For `format("servicebus")`."""
        return access_options(self.secret, self.connection_string, self.ca_file)


@dataclass(frozen=True)
class ShowConfig(Choice):
    by: Annotated[
        str,
        Option("NAMES", "Some of `reason`, `entity`, `age`, `error`, `pattern`, with commas between them."),
    ] = BY
    top: Annotated[int, Option("N", "How many groups, the largest.", 1, GROUPS_MAX)] = TOP
    html: Annotated[
        str, Option("FILE", "Write a page about them.", more="With the same: one file that needs nothing else.")
    ] = ""


@dataclass(frozen=True)
class MoveConfig(Choice):
    """What sending again and deleting have in common."""

    dry_run: Annotated[bool, Option("", "Say what would be done; change nothing.")] = False
    rate: Annotated[float, Option("N", "Messages a second, at most; 0: as fast as it goes.", 0, RATE_MAX)] = 0.0
    max_messages: Annotated[int, Option("N", "Messages of a run, the lowest numbers first.", 1, MESSAGES_MAX)] = (
        MESSAGES_MAX
    )
    patience_s: Annotated[float, Option("SECONDS", "How long to wait for messages in somebody's lock.", 0, 86_400)] = (
        PATIENCE_S
    )


@dataclass(frozen=True)
class ResubmitConfig(MoveConfig):
    to: Annotated[str, Option("NAME", "Queue or topic to send to.", default="back where they died")] = ""
    sets: Annotated[
        tuple[str, ...],
        Option(
            "NAME=SQL",
            "Change a field or `application_properties.NAME`: an expression over the columns.",
            name="set",
            is_repeated=True,
            more="Fields are `subject`, `session_id`, `partition_key`, `correlation_id`, `content_type`, `to`, "
            "`reply_to`, `reply_to_session_id`, `time_to_live_ms`, `scheduled_enqueue_time` and `body`; a property "
            "gets the type of the expression. `NULL` takes it out.",
        ),
    ] = ()
    message_id: Annotated[
        Literal["auto", "keep", "new"],
        Option(
            "HOW",
            "`keep` the ids, give `new` ones, or `auto`: new ones, unless the destination is known to drop no "
            "duplicates.",
            more="`keep` is refused for a destination that drops them.",
        ),
    ] = AUTO_IDS
    unsure: Annotated[
        Literal["keep", "send"],
        Option(
            "HOW",
            "What a run that died may have sent, and nobody can tell: `keep` in the dead letters, or `send`.",
        ),
    ] = KEEP
    checkpoint: Annotated[
        str,
        Option(
            "DIR",
            "Where it is written down what was sent. Needed, but for a dry run.",
            more="With the plan. That of another request is refused; of two runs at the same time one stops.",
        ),
    ] = ""


@dataclass(frozen=True)
class PurgeConfig(MoveConfig):
    yes: Annotated[bool, Option("", "Delete them. Without it they are counted.")] = False


# -- before Spark is started ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """What a config means in this namespace."""

    namespace: str
    entities: tuple[str, ...]
    destinations: dict[str, ResubmissionTarget] = field(default_factory=dict)  # by entity


def check(config: Choice) -> Checked:
    """Options, the key, that entities and destinations are there; `OptionError` or `NamespaceError` if not."""
    from spillway.spark.source.data_source import check_entities

    check_options(config)
    if isinstance(config, ShowConfig):
        _check_show(config)
    if isinstance(config, MoveConfig):
        _check_move(config)
    access = access_of(config.access)
    namespace = parse_connection_string(access.resolve()).authority
    directory = NamespaceDirectory(access)
    path = entity_path_of(access)  # what the key is for, where nothing else is said
    entities = directory.chosen(config.entities or ((path,) if path else ()))
    if entities:
        paths = json.dumps([dead_letters_of(each) for each in entities])
        check_entities(read_options({**config.access, "entity": paths}))
    destinations = _destinations(config, directory, entities) if isinstance(config, ResubmitConfig) else {}
    return Checked(namespace, entities, destinations)


def _check_show(config: ShowConfig) -> None:
    keys_of(config.by)
    if config.html:
        check_writable("html", Path(config.html).absolute().parent)


def _check_move(config: MoveConfig) -> None:
    if 0 < config.rate < RATE_MIN:
        raise OptionError(f"rate: messages a second, from {RATE_MIN:g} to {RATE_MAX:,.0f}")
    if isinstance(config, ResubmitConfig):
        _check_resubmit(config)


def _check_resubmit(config: ResubmitConfig) -> None:
    settings_of(config.sets)
    if config.dry_run and config.checkpoint:
        raise OptionError("dry-run sends nothing, so that there is nothing to write into a checkpoint")
    if not config.dry_run and not config.checkpoint.strip():
        raise OptionError(
            "checkpoint is missing: a directory where it is written down what was sent, so that a run that is killed "
            "can be started again and sends nothing twice"
        )


def keys_of(text: str) -> list[str]:
    """What to group by."""
    found = [part.strip() for part in text.split(",")]
    if len(set(found)) != len(found) or not set(found) <= set(KEYS):
        raise OptionError(f"by: some of {', '.join(KEYS)}, each once, with commas between them")
    return found


def _destinations(
    config: ResubmitConfig, directory: NamespaceDirectory, entities: Sequence[str]
) -> dict[str, ResubmissionTarget]:
    from spillway.spark.source.sink import check_destination

    found: dict[str, ResubmissionTarget] = {}
    known: dict[str, ResubmissionTarget] = {}
    for entity in entities:
        problem = None if config.to else destination_problem(entity)
        if problem is not None:
            raise OptionError(problem)
        path = config.to.strip("/") or entity
        if path not in known:
            check_destination(write_options({**config.access, "entity": json.dumps([path])}), is_patient=False)
            known[path] = directory.destination(path)
            _check_ids(config, known[path])
        found[entity] = known[path]
    return found


def _check_ids(config: ResubmitConfig, destination: ResubmissionTarget) -> None:
    if config.message_id == OLD_IDS and destination.detects:
        raise OptionError(
            f"message-id keep: '{destination.path}' drops duplicates, and would drop a message that it had not long "
            "ago, which then is nowhere; say new, or nothing"
        )


def claim(spark: "SparkSession | None", config: ResubmitConfig, checked: Checked) -> JobDirectory | None:
    """The checkpoint, if it is this resubmission's. Without Spark only one of the local file system is looked at."""
    if not config.checkpoint or (spark is None and local_path(config.checkpoint) is None):
        return None
    directory = JobDirectory(spark, config.checkpoint)
    about = {
        "job": "dead-letters resubmit",
        "format": FORMAT,
        "namespace": checked.namespace,
        "entities": sorted(config.entities),
        "where": config.where,
        "to": config.to,
        "set": sorted(config.sets),
        "message_id": config.message_id,
    }
    directory.claim(ABOUT, about, "checkpoint")
    return directory
