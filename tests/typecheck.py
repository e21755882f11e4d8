"""The run-time type checker of the tests: an int is accepted where a float is declared, as type checkers do."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
