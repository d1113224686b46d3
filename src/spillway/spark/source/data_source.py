"""`format("servicebus")`: the front that Spark calls. It reads options, checks, and hands over."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spillway.client import ClientError
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import ConnectionPool, connection_pool, plain
from spillway.spark.source.options import BROWSE, ReadOptions, check_names, read_options, write_options
from spillway.spark.source.schema import check_schema, schema_for


class DefaultSource(DataSource):
    """Named so because Spark looks for this name in modules that begin with `pyspark_`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_names(options)

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        """Asked where a read is analysed: what is wrong is said here, before any job runs."""
        options = read_options(self.options)
        check_entities(options)
        return schema_for(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spillway.spark.source.browse import BrowseReader
        from spillway.spark.source.locked import LockedReader

        options = self._read_options(schema, is_streaming=False)
        return BrowseReader(options, schema) if options.mode == BROWSE else LockedReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spillway.spark.source.browse import BrowseStreamReader
        from spillway.spark.source.locked import LockedStreamReader

        options = self._read_options(schema, is_streaming=True)
        return BrowseStreamReader(options, schema) if options.mode == BROWSE else LockedStreamReader(options, schema)

    def _read_options(self, schema: StructType, is_streaming: bool) -> ReadOptions:
        options = read_options(self.options, is_streaming)
        check_schema(schema, options)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spillway.spark.source.outgoing import check_columns
        from spillway.spark.source.sink import BatchWriter, check_destination

        if overwrite:
            raise OptionError('mode("overwrite"): messages cannot be overwritten; say mode("append")')
        options = write_options(self.options)
        check_columns(schema, options)
        check_destination(options)
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spillway.spark.source.outgoing import check_columns
        from spillway.spark.source.sink import StreamWriter, check_destination

        if overwrite:
            raise OptionError('outputMode("complete"): messages cannot be overwritten; say outputMode("append")')
        options = write_options(self.options)
        check_columns(schema, options)
        check_destination(options)
        return StreamWriter(options, schema)


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
        except ClientError as error:
            raise plain(error, entity, "Listen") from None
