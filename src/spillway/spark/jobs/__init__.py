"""The jobs of the pipeline: each a Python function, a module for spark-submit, and `spillway pipeline NAME`."""
