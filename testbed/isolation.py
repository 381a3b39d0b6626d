"""Namespaces of its own for everything that builds a network: unshare(1)."""

# The command that follows runs as process 1 of new network, mount and process namespaces, so the kernel removes every
# process, interface and qdisc when it ends. --kill-child: also when unshare itself is killed.
ISOLATE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
