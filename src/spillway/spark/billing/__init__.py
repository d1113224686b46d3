"""What ledgers come to: their files, the rules and lists of prices, the report. It knows nothing of outages."""
