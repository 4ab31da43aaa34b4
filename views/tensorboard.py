"""Writes TensorBoard's event files without TensorBoard.

A file is a row of records, each an ``Event`` in the protocol buffers' wire format, framed as a TFRecord (tensorflow:
core/util/event.proto, core/framework/summary.proto, core/lib/io/record_writer.h). Scalars use only a corner of all
that.
"""

import struct
from collections.abc import Mapping

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types
SESSION_START = 1  # of SessionLog.SessionStatus
DATA_CLASS_SCALAR = 1  # of DataClass; the values are read without it, but not their descriptions
CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of ``data`` (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """``data`` framed as a TFRecord: length, checksum of the length, data, checksum of the data."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def version_event(wall_time: float) -> bytes:
    """The record that opens an event file; ``wall_time`` is in seconds since 1970."""
    return record(_time(wall_time) + _field(3, BYTES, b"brain.Event:2"))


def restart_event(wall_time: float, step: int) -> bytes:
    """The record of a restart: TensorBoard forgets what earlier files of the folder say of ``step`` and later ones."""
    status = _field(1, VARINT, _varint(SESSION_START))
    return record(_time(wall_time) + _field(2, VARINT, _varint(step)) + _field(7, BYTES, status))


def scalars_event(
    wall_time: float, step: int, scalars: Mapping[str, float], help_texts: Mapping[str, str] | None = None
) -> bytes:
    """The record of one step's values; ``step`` >= 0.

    Args:
        help_texts: descriptions of values; TensorBoard keeps the one that came with a value's first record.
    """
    about = help_texts or {}
    values = [
        _field(1, BYTES, tag.encode())
        + _field(2, FOUR_BYTES, struct.pack("<f", value))
        + (_field(9, BYTES, _metadata(about[tag])) if tag in about else b"")
        for tag, value in scalars.items()
    ]
    summary = b"".join(_field(1, BYTES, value) for value in values)
    return record(_time(wall_time) + _field(2, VARINT, _varint(step)) + _field(5, BYTES, summary))


def _metadata(description: str) -> bytes:
    """A SummaryMetadata of the plugin for scalars, which shows the description."""
    plugin = _field(1, BYTES, b"scalars")
    return (
        _field(1, BYTES, plugin)
        + _field(3, BYTES, description.encode())
        + _field(4, VARINT, _varint(DATA_CLASS_SCALAR))
    )


def _time(wall_time: float) -> bytes:
    return _field(1, EIGHT_BYTES, struct.pack("<d", wall_time))


def _field(number: int, wire_type: int, payload: bytes) -> bytes:
    length = _varint(len(payload)) if wire_type == BYTES else b""
    return _varint(number << 3 | wire_type) + length + payload


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
