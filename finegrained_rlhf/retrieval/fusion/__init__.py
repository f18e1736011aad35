"""Several runs made into one."""
