"""Sockets, TLS, the wall clock, and the pump that carries values from room to room. Knows no HTTP and no SDK."""
