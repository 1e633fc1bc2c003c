"""What people read: the inbox of pending interrupts and the timeline of a thread."""
