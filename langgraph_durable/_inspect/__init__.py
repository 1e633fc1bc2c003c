"""Reading for people: the inbox of pending interrupts, and the timeline of a thread."""
