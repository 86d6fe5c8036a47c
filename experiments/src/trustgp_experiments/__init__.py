"""Studies of trustgp beside its peers, with their data sets, report and demos; not part of the library."""
