"""Binary rows that follow each other with nothing between them: RowBinary and MsgPack."""
