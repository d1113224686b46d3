"""`format("servicebus")`: the front that Spark calls. It reads options, checks, and hands over."""

import contextlib
from collections.abc import MutableMapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spillway.client import ClientError, NotAllowed
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import ConnectionPool, NamespaceError, connection_pool, plain
from spillway.spark.platform.reasons import in_one_line
from spillway.spark.source.declaration import BROWSE
from spillway.spark.source.entity_patterns import with_entities
from spillway.spark.source.options import ReadOptions, WriteOptions, check_names, read_options, write_options
from spillway.spark.source.schema import check_schema, schema_for

FOR_USERS: Final = (OptionError, NamespaceError)


class DefaultSource(DataSource):
    """Named so because Spark looks for this name in modules that begin with `pyspark_`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with in_one_line(*FOR_USERS):
            check_names(options)

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        """Asked where a read is analysed: what is wrong is said here, before any job runs."""
        with in_one_line(*FOR_USERS):
            options = with_entities(read_options(self.options))
            check_entities(options)
            return schema_for(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spillway.spark.source.browse import BrowseReader, FilteredBrowseReader
        from spillway.spark.source.locked import LockedReader

        options = self._read_options(schema, is_streaming=False)
        if options.mode != BROWSE:
            return LockedReader(options, schema)
        return FilteredBrowseReader(options, schema) if options.has_pushdown else BrowseReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spillway.spark.source.browse import BrowseStreamReader
        from spillway.spark.source.locked import LockedStreamReader

        options = self._read_options(schema, is_streaming=True)
        return BrowseStreamReader(options, schema) if options.mode == BROWSE else LockedStreamReader(options, schema)

    def _read_options(self, schema: StructType, is_streaming: bool) -> ReadOptions:
        # Spark 4.3 tells an error of its own where a `streamReader` raises: the cause is in the traceback alone.
        with contextlib.nullcontext() if is_streaming else in_one_line(*FOR_USERS):
            options = read_options(self.options, is_streaming)
            check_schema(schema, options)
            return with_entities(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spillway.spark.source.sink import BatchWriter

        return BatchWriter(self._write_options(schema, overwrite, 'mode("overwrite")', 'mode("append")'), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spillway.spark.source.sink import StreamWriter

        said = ('outputMode("complete")', 'outputMode("append")')
        return StreamWriter(self._write_options(schema, overwrite, *said), schema)

    def _write_options(self, schema: StructType, overwrite: bool, said: str, better: str) -> WriteOptions:
        from spillway.spark.source.outgoing import check_columns
        from spillway.spark.source.sink import check_destination

        with in_one_line(*FOR_USERS):
            if overwrite:
                raise OptionError(f"{said}: messages cannot be overwritten; say {better}")
            options = write_options(self.options)
            check_columns(schema, options)
            check_destination(options)
            return options


def check_entities(options: ReadOptions) -> None:
    """That every entity is there, may be received from, and has sessions if they were asked for."""
    pool = connection_pool()
    pool.run(_check_entities(pool, options))


async def _check_entities(pool: ConnectionPool, options: ReadOptions) -> None:
    try:
        connection = await pool.connection(options.access)
    except ClientError as error:
        raise plain(error, ", ".join(options.entities[:5]), "Listen") from None
    for entity in options.entities:
        try:
            management = pool.management(connection, entity)
            if options.has_sessions:
                await management.sessions(0, 1)
            elif options.mode == BROWSE:
                await management.peek(0, 1, omit_body=True)
            else:
                receiver = await connection.receiver(entity, mode=options.mode)
                await receiver.close()
        except NotAllowed as error:
            raise NamespaceError(sessions_problem(entity, options.has_sessions, error)) from None
        except ClientError as error:
            raise plain(error, entity, "Listen") from None


def sessions_problem(entity: str, has_sessions: bool, error: NotAllowed) -> str:
    """What to set where an entity and a read do not agree about message sessions."""
    if "session" not in str(error).lower():
        return str(plain(error, entity, "Listen"))
    if has_sessions:
        return f"'{entity}' does not require sessions: leave the option sessions out ({error})"
    return f"'{entity}' requires sessions: set sessions to * or to their ids, for a job --sessions '*' ({error})"
