"""How long a stream stands still while a large fleet changes."""
