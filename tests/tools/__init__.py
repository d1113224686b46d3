"""Real parts for the tests: a broker process, a slow network, a slow or failing disk, the JavaScript SDK, histories.

Nothing here knows a decision of the broker; everything talks to it as a user would.
"""
