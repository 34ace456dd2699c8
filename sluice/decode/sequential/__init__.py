"""Binary rows that follow each other with nothing between them: RowBinary and MsgPack; and messages
that are nothing but one value: RawBLOB."""
