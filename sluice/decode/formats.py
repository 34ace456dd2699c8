"""The formats: which decoder a table entry gets."""

from __future__ import annotations

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.decoder import Decoder
from sluice.decode.port import TableDecoder

#: By name, as it stands in the configuration.
FORMATS = ("JSONEachRow",)


def make_decoder(table: TableText) -> TableDecoder:
    """What decodes the messages of this entry.

    :raises TerminalError: the text cannot be executed by this version.
    """
    if table.format not in FORMATS:
        raise TerminalError(
            f"table {table.target}: format {table.format} is not supported",
            f"Use one of: {', '.join(FORMATS)}.",
        )
    return Decoder(table)
