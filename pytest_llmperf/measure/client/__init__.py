"""How requests are sent, stamped and read."""
