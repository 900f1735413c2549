"""What people see: tables on a terminal, and the objects that `--json` prints."""
