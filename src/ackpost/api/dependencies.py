"""What handlers get by the names of their arguments."""

from __future__ import annotations

from typing import Final

from litestar.di import Provide

from ackpost.api.guards import provide_call
from ackpost.api.params import provide_page, provide_plain_page

DEPENDENCIES: Final = {
    "call": Provide(provide_call),
    "page": Provide(provide_page, sync_to_thread=False),
    "plain_page": Provide(provide_plain_page, sync_to_thread=False),
}
