"""What computes a step: the interface of step runners, and the plain one."""
