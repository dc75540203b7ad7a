"""What a relay asks of something that takes bytes out of a reply's body on its way.

The relay has none by default, and then pays one comparison a piece. Must not know what is taken out.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

__all__ = ["Sieve"]


class Sieve(Protocol):
    """Sees a body piece by piece, wherever it is cut, and gives back what goes on.

    A piece that ends in `ending`, begins where nothing is held back, and has no `mark` but in `dull` ones would come
    back as it is: it needs not be shown.
    """

    mark: ClassVar[bytes]
    dull: ClassVar[bytes]
    ending: ClassVar[bytes]

    @property
    def holds(self) -> bool:
        """Whether something is held back, or a unit of the body is half through."""

    def feed(self, piece: bytes) -> bytes:
        """What goes on now; may be empty."""

    def rest(self) -> bytes:
        """What is held back still, once the body is over."""
