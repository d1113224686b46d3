"""Bad input against a live broker (bad input B1 to B14), stalled clients, floods, and a fuzzer of live frames."""
