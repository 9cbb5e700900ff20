"""A throw-away Debian 13 host with a real systemd, in which real vLLM runs; for tests only.

`python3 -m tests.guest` is its command line, `tests.guest.boot.Guest` what the tests use. Root, a
Debian (or anything with mmdebstrap and systemd-nspawn) and Python's own library are all it needs.
"""
