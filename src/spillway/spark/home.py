"""The public door to Spark's home: `python -m spillway.spark.home` prints what SPARK_HOME is to be (docs/spark.md)."""

import sys

from spillway.spark.platform.spark_home import light_home as light_home
from spillway.spark.platform.spark_home import main as main

if __name__ == "__main__":
    sys.exit(main())
