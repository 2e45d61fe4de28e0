"""What rooms hand to each other, as frozen values, and their JSON."""
