"""The public door to Java: `python -m spillway.spark.java` prints what JAVA_HOME is to be (docs/spark.md)."""

import sys

from spillway.spark.platform.java import SparkMissing as SparkMissing
from spillway.spark.platform.java import find_java as find_java
from spillway.spark.platform.java import main as main

if __name__ == "__main__":
    sys.exit(main())
