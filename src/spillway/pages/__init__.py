"""Pages of HTML that need nothing else: a document, its tables and its charts. Text is text, whoever wrote it."""
