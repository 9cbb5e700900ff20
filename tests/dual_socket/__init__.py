"""An emulated host of two sockets, where the placement of instances is proven; for tests only.

QEMU emulates it in software: a boot takes minutes, and nothing else should run beside it. Root, a
Debian with mmdebstrap and qemu-system-x86 is needed.
"""
