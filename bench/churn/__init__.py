"""Whether anything piles up while a fleet changes all day."""
