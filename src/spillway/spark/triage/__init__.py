"""Dead letters: what they are, by reason and age; which of them are sent again, or deleted; what was done."""
