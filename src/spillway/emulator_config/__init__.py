"""The `Config.json` of Microsoft's emulator: its reader and its writer, over one table of what such a file can say."""
