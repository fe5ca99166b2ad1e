"""The project's own backends; each is imported only when it is selected."""
