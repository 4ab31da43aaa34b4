"""The sections of the settings, a file for each; ``keima.config.schema`` composes them.

Every setting is described where it is declared; configs/config.yaml, docs/settings.md and ``--help`` say the same. A
section is a frozen pydantic model that rejects unknown keys and never converts types. Imports only ``keima.config``.
"""
