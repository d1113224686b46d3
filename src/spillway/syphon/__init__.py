"""Bringing messages home: out of the backlog queues of a pairing, to the entities that they were sent to.

Works on our own client and copies bytes, so that nothing a message contains need be understood. There is one policy
(`policy.py`) and two drivers: a bounded pass (`move.py`), for jobs and commands that end, and a standing syphon
(`standing.py`), for programs that go on. Knows neither Spark nor the broker nor the SDK.
"""
