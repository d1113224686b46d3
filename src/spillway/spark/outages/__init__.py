"""What the events of pairings tell: outages, order and duplicates, pictures. It knows nothing of prices."""
