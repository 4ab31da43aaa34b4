"""Writes events for TensorBoard, with the messages and the record writer of its own package.

That package also has ``EventFileWriter``. It writes from a thread of its own, so that an iteration is on disk only some
time after it was reported, gives up at the first full disk, and imports TensorFlow wherever that is installed.
``tensorboard`` is imported at the first write.
"""

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keima.report.files.appended_file import AppendedFile
from keima.report.metrics import Metric

VERSION = "brain.Event:2"  # that an event file begins with


class EventsWriter:
    """Writes numbers for TensorBoard, to a new file for each session, with the help texts of ``metrics``.

    What ``write`` has been told is in the file when it returns, also if the process is killed then.
    """

    def __init__(self, folder: Path, metrics: Sequence[Metric]) -> None:
        self._folder = folder
        self._help_texts = {metric.name: metric.help for metric in metrics}
        self._described: set[str] = set()
        self._file: AppendedFile | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append a step's numbers; the first call makes TensorBoard forget that step and later ones of earlier
        sessions.

        Raises:
            OSError: the disk does not take them; they are appended with the next ones.
        """
        if self._file is None:
            self._file = self._begin_file(step)
        new = {name: self._help_texts[name] for name in self._help_texts.keys() & values.keys() - self._described}
        self._file.append(encode_records(_make_scalars_event(step, values, new)))
        self._described |= new.keys()

    def _begin_file(self, step: int) -> AppendedFile:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        file = AppendedFile(self._folder / f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}")
        restart = SessionLog(status=SessionLog.START)
        file.append(
            encode_records(
                Event(wall_time=now / 1e9, file_version=VERSION),
                Event(wall_time=now / 1e9, step=step, session_log=restart),
            )
        )
        return file


def encode_records(*events: Any) -> bytes:
    """Return the events as an event file has them."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    writer = RecordWriter(out)
    for event in events:
        writer.write(event.SerializeToString())
    return out.getvalue()


def _make_scalars_event(step: int, values: Mapping[str, float], help_texts: Mapping[str, str]) -> Any:
    """Return an event with one step's values; TensorBoard keeps the description from a value's first event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
    from tensorboard.plugins.scalar.metadata import PLUGIN_NAME

    plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME)
    scalars = []
    for name, value in values.items():
        scalars.append(Summary.Value(tag=name, simple_value=value))
        if name in help_texts:
            about = SummaryMetadata(
                plugin_data=plugin, summary_description=help_texts[name], data_class=DATA_CLASS_SCALAR
            )
            scalars[-1].metadata.CopyFrom(about)
    return Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
