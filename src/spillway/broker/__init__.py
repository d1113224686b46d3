"""The core that decides: commands and the time in, records and effects out. No IO, no clock, no randomness."""
