"""The command line, an extra (``slotline[cli]``): typer, rich, and matplotlib for plots."""
