"""What cuda and xpu share: the frameworks' sides, and ways of applying packets. No backend stands here."""
