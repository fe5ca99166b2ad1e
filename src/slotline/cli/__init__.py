"""The command line. An extra: importing slotline never imports it."""
