"""Functions that a user names as `module:function`, in a recipe or as an option of a command."""

import os
import re
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

_FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_function_name(name: str | None) -> bool:
    """Whether a text has the form `module:function`.

    >>> is_function_name("checks:is_right"), is_function_name("Qwen/Qwen3-0.6B")
    (True, False)
    """
    return name is not None and _FUNCTION_NAME.fullmatch(name) is not None


def import_function(name: str, option: str) -> Callable[..., Any]:
    """Return the function that `module:function` names.

    The current directory is searched after the installed packages, and for this import only.

    Args:
        name: the function.
        option: the option or key that it was given with, for the message.

    Raises:
        ValueError: the name has another form, or there is no such function.
    """
    if not is_function_name(name):
        raise ValueError(f"{option} {name!r} is not module:function, such as checks:is_right for a checks.py here.")
    directory = os.getcwd()
    added = directory not in sys.path and "" not in sys.path
    if added:
        sys.path.append(directory)
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{option} {name!r} cannot be loaded: {error}. The module is searched in the installed packages and in "
            f"{directory}."
        ) from error
    finally:
        if added and directory in sys.path:
            sys.path.remove(directory)
