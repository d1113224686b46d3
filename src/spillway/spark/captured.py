"""The public door to what capture has written, each message once (docs/pipeline.md)."""

from spillway.spark.source.deduplicated_view import captured as captured
from spillway.spark.source.deduplicated_view import captured_files as captured_files
from spillway.spark.source.deduplicated_view import captured_sql as captured_sql
