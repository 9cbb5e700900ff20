"""Units: systemd unit texts rendered from a plan."""
