"""Effects as they are stored: rows, statements, and the operations on them."""
