"""The Debian package: built, installed on a fresh booted host, upgraded, removed, purged."""
