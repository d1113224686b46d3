"""The outage lab: two real namespaces, real clients, a real outage, and a verdict from what the clients wrote down."""
