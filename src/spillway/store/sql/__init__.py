"""The SQL of the store in named files."""
