"""The public door to a session of Spark (docs/spark.md)."""

from spillway.spark.platform.session import Say as Say
from spillway.spark.platform.session import activate_session as activate_session
from spillway.spark.platform.session import build_session as build_session
from spillway.spark.platform.session import say_on_stderr as say_on_stderr
