"""Rules of subscriptions: SQL and correlation filters, SQL actions, and the list of them that a subscription has."""
