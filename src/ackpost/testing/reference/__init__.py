"""A store in plain memory: the oracle that the real ones are compared with, and the store of the simulation."""

from ackpost.testing.reference.sharing import SharedReferenceStore as SharedReferenceStore
from ackpost.testing.reference.state import State as State
from ackpost.testing.reference.store import ReferenceStore as ReferenceStore
