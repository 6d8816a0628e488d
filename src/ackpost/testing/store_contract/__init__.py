"""What every store must do, as checks that any implementation can be put through.

A store joins by a ``StoreHarness``; ``cases()`` gives the checks, each an async function of a ``World`` whose docstring
says the behaviour. ``run(harness, case)`` plays one and then looks at the invariants.
"""

from ackpost.testing.store_contract.suite import Case as Case
from ackpost.testing.store_contract.suite import cases as cases
from ackpost.testing.store_contract.suite import run as run
from ackpost.testing.store_contract.world import StoreHarness as StoreHarness
from ackpost.testing.store_contract.world import World as World
