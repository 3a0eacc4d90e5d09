"""Playing live episodes, and the record of them."""
