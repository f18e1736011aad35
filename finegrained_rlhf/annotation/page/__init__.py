"""Our own annotation page: one file that works from the disk, without a server or a network."""
