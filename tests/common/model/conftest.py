from tests.oracle.zoo import zoo

__all__ = ["zoo"]
