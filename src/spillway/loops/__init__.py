"""An event loop on a thread of its own: for blocking programs, Spark's tasks and tests, which have none."""
