"""Load the worker class that the config names."""

import importlib
import sys

from keima.config.older_imports import accept_older_names
from keima.paths import workspace
from keima.worker.loop import Worker


class NoWorkerClass(ValueError):
    """The worker class in the config cannot be loaded; the message has the reason and the remedy."""


def load_worker_class(name: str) -> type[Worker]:
    """Return the class ``name``, given as ``module.Class``; the module may contain dots.

    Raises:
        NoWorkerClass: there is no such module or class, the module cannot be imported, or the class is no subclass of
            ``Worker``.
    """
    module_name, _, class_name = name.rpartition(".")
    if not module_name:
        raise NoWorkerClass(f"worker_class: expected module.Class, such as custom_worker.CustomWorker, found {name!r}")
    accept_older_names()
    if str(workspace()) not in sys.path:  # the command of an installed Keima does not search the present folder
        sys.path.append(str(workspace()))
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise NoWorkerClass(
                f"worker_class {name}: its module needs {error.name}, which is not installed"
            ) from error
        where = f"put {error.name.replace('.', '/')}.py into {workspace()}"
        raise NoWorkerClass(f"worker_class {name}: there is no module {error.name}; {where}") from error
    except Exception as error:  # whatever the user's module raises
        raise NoWorkerClass(
            f"worker_class {name}: its module cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if found is None:
        raise NoWorkerClass(f"worker_class {name}: the module {module_name} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise NoWorkerClass(f"worker_class {name}: {class_name} must be a class derived from keima.worker.Worker")
    return found
