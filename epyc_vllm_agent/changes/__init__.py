"""Changes: what differs between what is installed and what is wanted."""
