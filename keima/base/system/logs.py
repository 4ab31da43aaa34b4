"""Logging of the programs. A full disk must neither end them nor fill the terminal with tracebacks."""

import logging

LOGGED_PACKAGE = "keima"  # whose modules log
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_log_handler(handler: logging.Handler) -> None:
    """Send the log of this process to ``handler``, unless logging is configured already."""
    if logging.getLogger().handlers:
        handler.close()
        return
    logging.raiseExceptions = False  # a full disk would print a traceback per line
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[handler])


def package_logger() -> logging.Logger:
    """Return the logger of all of Keima's modules."""
    return logging.getLogger(LOGGED_PACKAGE)


def add_log_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    """Send ``logger`` to ``handler`` too, in the same format."""
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
