"""What a process of Spark stands on: Java and Spark themselves, connections to namespaces, queries, files."""
