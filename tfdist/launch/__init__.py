"""Starting the tasks of a cluster: on this machine, or by manifests elsewhere."""
