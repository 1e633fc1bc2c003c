"""What a call is known by: where it is made, and its arguments."""
