"""The words all rooms share: messages, entities, settlements, records, errors, limits. Imports nothing of ours."""
