"""Configuration: the settings table, the files of a host, and writing one endpoint's file."""
