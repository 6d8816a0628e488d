"""Failed checks of the contract show the values they compared."""

import pytest

pytest.register_assert_rewrite("ackpost.testing.store_contract")
