"""How the programs write logs. A disk that is full must neither end them nor cover the terminal with tracebacks."""

import logging

ROOMS = ("training", "views", "distributed")  # whose modules log: their loggers are named after these
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(handler: logging.Handler) -> None:
    """Write what this process has to say by ``handler``, unless it has been told otherwise before."""
    if logging.getLogger().handlers:
        handler.close()
        return
    logging.raiseExceptions = False  # else each line that finds no room on the disk is a traceback on the terminal
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[handler])


def room_loggers() -> list[logging.Logger]:
    """The loggers above those of all our modules."""
    return [logging.getLogger(room) for room in ROOMS]


def log_also_to(logger: logging.Logger, handler: logging.Handler) -> None:
    """Have what ``logger`` says be written by ``handler`` too, in the same form."""
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
